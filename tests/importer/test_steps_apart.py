"""A decoder whose steps have a branch: what gets there, and that all else is as it was."""

from collections import Counter
from math import inf
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from step_decoder import CPU, HEADS, OWN, SIZE, decoder

import mirage_onnx
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.importer.graph import nodes_of
from mirage_onnx.importer.steps_apart import (
  ROOM,
  is_apart,
  named_step_sizes,
  prompt_of,
  step_sizes,
  steps_apart,
)
from mirage_onnx.model_tuning import points_of
from mirage_onnx.racing import RacerAhead

pytestmark = pytest.mark.usefixtures("searched_once")


def kinds(graph):
  return Counter(n.op_type for n in graph.node)


def run(session, batch, new, room, total, seed=0, each=1):
  """All outputs, with ``new`` tokens of ``total`` and caches of ``room`` rows, and the rows that count.

  ``each``: what the mask has for a token, of which it makes lengths.
  """
  rng = np.random.default_rng(seed)
  feeds = {}
  for i in session.get_inputs():
    shape = {"qkv": (batch, new, (HEADS + 2 * OWN) * SIZE), "mask": (batch, total)}
    dims = shape.get(i.name, (batch, OWN, room, SIZE))
    feeds[i.name] = rng.standard_normal(dims).astype(np.float16)
  feeds["mask"] = np.full((batch, total), each, np.int64)
  y, *caches = session.run(None, feeds)
  return [y, *(c[:, :, :total] for c in caches)], caches[0].shape[2]


#: (new tokens, room of the cache, all tokens): steps with room, a cache that grows, prompts.
STEPS = ((1, 8, 8), (1, 20, 5), (1, 1, 1))
OTHERS = ((1, 7, 8), (1, 0, 1), (3, 0, 3), (5, 12, 5))


def test_both_branches_are_the_graph():
  model = decoder(layers=2)
  apart = steps_apart(model)
  assert is_apart(apart) and not is_apart(model)
  assert [n.op_type for n in apart.graph.node][-1] == "If"
  a, b = (ort.InferenceSession(m.SerializeToString(), providers=CPU) for m in (model, apart))
  for new, room, total in (*STEPS, *OTHERS):
    (want, length), (got, same) = (run(s, 2, new, room, total) for s in (a, b))
    assert length == same == max(room, total)
    for x, y in zip(want, got, strict=True):
      np.testing.assert_allclose(x.astype(float), y.astype(float), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("batches", [[1], [1, 2]])
def test_steps_have_kernels_and_all_else_has_not(batches):
  """Of which one size is asked for, that one only is a step's."""
  model = decoder()
  result = mirage_onnx.optimize(
    model, target="h200", workers=1, margin=-20.0, steps=True,
    shapes={"past": [16], "all": [8], "new": [1], "batch": batches},
  )  # fmt: skip
  assert [n.op_type for n in result.model.graph.node][-1] == "If"
  step, others = (a.g for a in result.model.graph.node[-1].attribute)
  assert not [n for n in step.node if n.op_type == "GroupQueryAttention"]
  assert kinds(others) == kinds(model.graph)
  assert not any(p.key == "pkg.mirage_onnx.steps" for n in nodes_of(step, others) for p in n.metadata_props)
  kernels = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  plain = ort.InferenceSession(model.SerializeToString(), providers=CPU)
  launched = 0
  for (new, room, total), steps in [*((s, 1) for s in STEPS), *((s, 0) for s in OTHERS)]:
    for batch in (1, 3):
      (want, length), (got, same) = (run(s, batch, new, room, total) for s in (plain, kernels))
      assert length == same
      for x, y in zip(want, got, strict=True):
        np.testing.assert_allclose(x.astype(float), y.astype(float), rtol=4e-3, atol=4e-3)
      before, launched = launched, sum(mirage_onnx.launches(kernels).values())
      assert launched - before >= 2 if steps and (batch == 1 or len(batches) > 1) else launched == before
  for each in (0, -1, 2, 3, 1 << 20):  # a mask that says what is no length of the cache, nor a row of a table
    for array in run(kernels, 1, 1, 20, 20, each=each)[0]:
      assert np.isfinite(array).all()
  assert sum(mirage_onnx.launches(kernels).values()) - launched >= 10


@pytest.mark.parametrize("batch", [1, 3])
def test_verify_runs_steps_and_prompts(batch):
  """Of the original, cut in the same way; with no size given, kernels run (assert launches), and a prompt."""
  model, sizes = decoder(), {"past": [16], "all": [16], "new": [1], "batch": [batch]}
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0, steps=True, shapes=sizes)
  assert step_sizes(result.model) == {"batch": batch, "new": 1} and step_sizes(model) == {}
  compared = mirage_onnx.verify(model, result.model, emulate=True, shapes={"past": [9], "all": [9]})
  assert compared.passed and len(compared.regions) == 3 and all(n.launches for n in compared.nodes)
  count = len(compared.nodes)
  assert f"the interfaces of {count} of {count} nodes follow from the original" in compared.source
  assert any("new=3" in kind for kind in compared.inputs) == (batch == 1)


def test_without_kernels_it_is_the_model_that_was_given():
  model = decoder()
  result = mirage_onnx.optimize(model, target="h200", workers=1, steps=True, margin=0.99)
  assert result.model.SerializeToString() == model.SerializeToString()


def test_what_a_step_is_known_to_have():
  model = decoder(layers=2)
  program = import_model(load_model(model, steps={"batch": 3, "past": 7, "other": 1}))
  (cache,) = {t.shape for n, t in program.tensors.items() if n.endswith(":then_branch/past_0_k")}
  assert cache == (3, OWN, "past", SIZE)
  program = import_model(load_model(model, steps={}))
  own = [n for n in program.nodes if n.op_type == "GroupQueryAttention"]
  assert [n.name for n in own] == ["it0", "it0/attended", "it1", "it1/attended"]
  assert all(n.barrier is None for n in own)
  assert set(program.primes.values()) == {"batch", "new", "past", "all"}
  assert program.tensors["past_0_k"].shape == ("batch", OWN, "past", SIZE)


def changed(**more):
  def make():
    return decoder(**more)

  return make


def total_is_given():
  model = decoder()
  del model.graph.node[4:7]
  model.graph.input.append(helper.make_tensor_value_info("total", TensorProto.INT32, ()))
  return model


def total_is_computed():
  model = decoder()
  model.graph.node[4].CopyFrom(helper.make_node("Cast", ["count"], ["shape"], to=TensorProto.INT64))
  return model


def present_is_computed_with():
  model = decoder()
  model.graph.node.append(helper.make_node("Neg", ["present_0_k"], ["negative"]))
  model.graph.output[1].name = "negative"
  return model


NO_DECODERS = {
  "a fixed number of tokens": changed(new=1),
  "a fixed cache": changed(past=16),
  "the query is not known": changed(layers=2, named=False),
  "one name for both": changed(past="new"),
  "the length is given": total_is_given,
  "the length is computed": total_is_computed,
  "presents that are no results": present_is_computed_with,
}


@pytest.mark.parametrize("name", NO_DECODERS)
def test_models_that_stay_as_they_are(name):
  model = NO_DECODERS[name]()
  assert steps_apart(model) is model


def test_caches_of_a_window_stay(tmp_path):
  """Beside one with room: steps are apart all the same, and the window is nobody's room."""
  model = decoder(layers=2)
  (window,) = (n for n in model.graph.node if n.name == "it0")
  window.attribute.extend(
    [helper.make_attribute(n, v) for n, v in (("local_window_size", 8), ("sliding_window_cache", 1))]
  )
  for v in (*model.graph.input, *model.graph.output):
    if "_0_" in v.name:
      v.type.tensor_type.shape.dim[2].dim_param = f"{v.name[:4]}_window"
  apart = steps_apart(model, {"past_window": 8, "past": 16})
  assert is_apart(apart)
  step, others = (a.g for a in apart.graph.node[-1].attribute)
  marked = [n.name for n in step.node if n.metadata_props]
  assert marked == ["it1"] and kinds(step) == kinds(others)
  rows = {o.name: o.type.tensor_type.shape.dim[2].dim_param for o in step.output if "present" in o.name}
  assert {rows[n] for n in rows if "_0_" in n} == {"pres_window"} and {*rows.values()} == {
    "pres_window",
    "past",
  }
  taken = [x for n in apart.graph.node if n.op_type == "Shape" for x in n.input]
  assert "past_1_k" in taken and not any("_0_" in x for x in taken)
  for v in model.graph.input:  # all caches hold windows only
    if "past" in v.name:
      v.type.tensor_type.shape.dim[2].dim_param = "past_window"
  for n in model.graph.node:
    if n.name == "it1":
      n.attribute.append(helper.make_attribute("sliding_window_cache", 1))
  assert not is_apart(steps_apart(model))


def test_no_branch_takes_anything_from_the_condition():
  """On a GPU onnxruntime copies it there and back, and attention reads what was there before."""
  model = decoder()
  made = steps_apart(model)
  outside = {o for n in made.graph.node[:-1] for o in n.output}
  assert outside and made.graph.node[-1].op_type == "If"
  for attribute in made.graph.node[-1].attribute:
    assert not outside & {i for n in attribute.g.node for i in n.input}
  others = made.graph.node[-1].attribute[1].g
  assert kinds(others) == kinds(model.graph)


def test_operators_of_an_older_set():
  model = decoder()
  model.opset_import[0].version = 14
  assert steps_apart(model) is model


def test_a_prompt_of_such_a_model():
  sizes = {"batch": 1, "new": 1, "past": 512, "all": 300, "size": SIZE}
  assert prompt_of(decoder(), sizes) == {**sizes, "new": 256}
  assert prompt_of(decoder(), {**sizes, "all": 100})["new"] == 100
  assert prompt_of(decoder(), {**sizes, "past": 1}) is None
  assert prompt_of(helper.make_model(helper.make_graph([], "", [], [])), sizes) is None


def test_the_gate_knows_prompts(tmp_path):
  """What is no step among the declared sizes goes through the condition; without one a prompt is made up."""
  onnx.save(decoder(), tmp_path / "in.onnx")
  loaded = load_model(tmp_path / "in.onnx", steps={"batch": 1})
  step = {"batch": 1, "new": 1, "past": 512, "all": 300}
  prompt = {**step, "new": 128}
  for points, others, made in (((step, prompt), (prompt,), None), ((step,), (), {**step, "new": 256})):
    gate = RacerAhead().gate_of(SimpleNamespace(chosen=(1,), points=points), loaded, inf, 0.0)
    assert gate.others == others and gate.prompt == made
    gate.close()
  flat = load_model(tmp_path / "in.onnx")
  gate = RacerAhead().gate_of(SimpleNamespace(chosen=(1,), points=(step, prompt)), flat, inf, 0.0)
  assert gate.others == () and gate.prompt is None


def test_what_tune_times_of_a_decoder():
  """Steps, where nothing is said: what is none has no kernels, and would never be faster."""
  fixed, free = (steps_apart(decoder(), sizes) for sizes in ({"batch": 1, ROOM: 512}, {}))
  assert named_step_sizes(fixed) == {"batch": 1, "new": 1, "past": 512} and named_step_sizes(free) == {
    "new": 1
  }
  points, others = points_of(fixed, {})
  assert [(p["batch"], p["new"], p["past"], p["all"]) for p in points] == [
    (1, 1, 512, n) for n in (1, 16, 256)
  ]
  assert others == ()
  points, others = points_of(fixed, {"new": (1, 64), "all": (256,)})
  assert [p["new"] for p in points] == [1, 64] and others == points[1:]
  points, others = points_of(decoder(), {"new": (1, 64)})
  assert others == () and {p["past"] for p in points} == {1, 16, 256}


def test_lengths_that_are_made_otherwise():
  """Of a sum of shapes, say: the nodes are there once more for the condition, with their constants."""
  model = decoder()
  (taken,) = (n for n in model.graph.node if n.output[0] == "longest")
  taken.input[0] = "same"
  model.graph.node.insert(5, helper.make_node("Identity", ["shape"], ["same"]))
  apart = steps_apart(model)
  kinds = [n.op_type for n in apart.graph.node]
  assert "Gather" in kinds and "Identity" in kinds
  session = ort.InferenceSession(apart.SerializeToString(), providers=CPU)
  plain = ort.InferenceSession(model.SerializeToString(), providers=CPU)
  for new, room, total in (*STEPS, *OTHERS):
    (want, _), (got, _) = (run(s, 2, new, room, total) for s in (plain, session))
    for x, y in zip(want, got, strict=True):
      np.testing.assert_allclose(x.astype(float), y.astype(float), rtol=1e-2, atol=1e-2)


def test_gates_of_prompts_are_one_operator():
  """As onnxruntime fuses them, but not in a subgraph."""
  model = decoder()
  y = model.graph.output[0].name
  last = next(n for n in model.graph.node if y in n.output)
  last.output[0] = "raw"
  model.graph.node.extend([
    helper.make_node("Sigmoid", ["raw"], ["gate"]), helper.make_node("Mul", ["gate", "raw"], [y])
  ])  # fmt: skip
  step, others = (a.g for a in steps_apart(model).graph.node[-1].attribute)
  assert [n.op_type for n in step.node][-2:] == ["Sigmoid", "Mul"]
  assert [n.op_type for n in others.node][-1:] == ["QuickGelu"] and len(others.node) == len(step.node) - 1
  a, b = (ort.InferenceSession(m.SerializeToString(), providers=CPU) for m in (model, steps_apart(model)))
  for new, room, total in (*STEPS, *OTHERS):
    (want, _), (got, _) = (run(s, 2, new, room, total) for s in (a, b))
    np.testing.assert_allclose(want[0].astype(float), got[0].astype(float), rtol=1e-2, atol=1e-2)


def test_steps_of_caches_of_one_size():
  """Kernels with parts of the cache in advance; a cache of another size takes the graph as it was."""
  model = decoder()
  result = mirage_onnx.optimize(
    model, target="h200", workers=1, margin=-20.0, steps=20, shapes={"all": [8], "new": [1]}
  )
  assert step_sizes(result.model) == {"new": 1, ROOM: 20}
  kernels = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  plain = ort.InferenceSession(model.SerializeToString(), providers=CPU)
  launched = 0
  for new, room, total in (*STEPS, *OTHERS, (1, 20, 20), (1, 19, 20), (1, 20, 21)):
    (want, length), (got, same) = (run(s, 2, new, room, total) for s in (plain, kernels))
    assert length == same
    for x, y in zip(want, got, strict=True):
      np.testing.assert_allclose(x.astype(float), y.astype(float), rtol=4e-3, atol=4e-3)
    before, launched = launched, sum(mirage_onnx.launches(kernels).values())
    is_step = new == 1 and room == 20 and total <= 20
    assert launched - before >= 2 if is_step else launched == before
  assert mirage_onnx.verify(model, result.model, emulate=True, shapes={"past": [20], "all": [9]}).passed


@pytest.mark.parametrize(("rows", "shapes"), [(20, {"past": [16]}), (0, {}), (-1, {})])
def test_caches_of_a_size_that_is_none(rows, shapes):
  with pytest.raises(mirage_onnx.MirageError, match="OPTION_INVALID|caches of"):
    mirage_onnx.optimize(decoder(), target="h200", workers=1, steps=rows, shapes=shapes)
