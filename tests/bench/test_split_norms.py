"""``importer/split_norms.py``: norms of sums in steps of a decoder of genai's builder."""

import numpy as np
import pytest
from genai_graphs import CONFIGS, write
from onnx import helper, load
from onnxruntime import InferenceSession
from small_models import Net

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.importer.constants import known_values
from mirage_onnx.importer.graph import nodes_of
from mirage_onnx.importer.split_caches import split_caches
from mirage_onnx.importer.split_norms import norms_of_one, split_norms, whole_norms
from mirage_onnx.importer.steps_apart import steps_apart
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.cuts import TIMED
from mirage_onnx.tune.node_models import distinct_nodes, node_model
from mirage_onnx.tune.ort_run import region_model

WHOLE = "SkipSimplifiedLayerNormalization"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  made = tmp_path_factory.mktemp("decoder")
  write(made, CONFIGS["small"])
  return made


@pytest.fixture
def decoder(folder):
  return steps_apart(load(folder / "model.onnx", load_external_data=False), {"batch_size": 1})


def kinds(model, kind):
  return [n for n in nodes_of(model.graph) if n.op_type == kind]


def test_steps_only_and_back_to_the_byte(decoder):
  whole = split_caches(decoder)
  made = split_norms(whole)
  with_sums = [n for n in kinds(whole, WHOLE) if len(n.output) == 4 and n.output[3]]
  assert len(with_sums) >= 6 and len(with_sums) % 2 == 0  # half of them are of prompts
  assert len(kinds(whole, WHOLE)) - len(kinds(made, WHOLE)) == len(with_sums) // 2
  assert len(kinds(made, "Add")) - len(kinds(whole, "Add")) == len(with_sums) // 2
  added = [n.name for n in kinds(made, "Add") if n.name.endswith("/sum")]
  assert len(set(added)) == len(added) == len(with_sums) // 2
  whole_norms(made)
  assert made.SerializeToString() == whole.SerializeToString()


def test_the_parts_by_name(folder):
  loaded = load_model(folder / "model.onnx", steps={"batch_size": 1})
  pairs = norms_of_one(loaded.proto, loaded.node_names)
  assert len(pairs) >= 3
  for summed, normed in pairs:
    assert summed == f"{normed}/sum"
    assert loaded.node(summed).output[0] == loaded.node(normed).input[0]


@pytest.mark.parametrize("left", ["Add", "SimplifiedLayerNormalization"])
def test_what_is_left_of_two_has_no_mark(decoder, left):
  """The other one has been replaced."""
  made = split_norms(decoder)
  (graph,) = (
    a.g for n in made.graph.node for a in n.attribute if n.op_type == "If" and a.name == "then_branch"
  )
  kept = [n for n in graph.node if not n.metadata_props or n.op_type == left]
  assert len(kept) < len(graph.node)
  del graph.node[:]
  graph.node.extend(kept)
  whole_norms(made)
  assert [n.op_type for n in graph.node] == [n.op_type for n in kept]
  assert not any(p.key.endswith("normed") for n in graph.node for p in n.metadata_props)


@pytest.mark.parametrize("change", [
  lambda n: n.input.append("bias"), lambda n: n.output.__setitem__(1, "mean"),
  lambda n: n.input.__setitem__(2, n.input[0]),
])  # fmt: skip
def test_others_stay(decoder, change):
  """With a bias, with a mean that somebody asked for, with a scale that a run makes."""
  for n in kinds(decoder, WHOLE):
    n.output.extend([""] * (4 - len(n.output)))
    change(n)
  assert split_norms(decoder) is decoder


@pytest.mark.parametrize("change", [
  lambda a, b: setattr(a, "op_type", "Mul"), lambda a, b: setattr(b, "domain", "com.microsoft"),
  lambda a, b: b.attribute.pop(), lambda a, b: b.ClearField("attribute"), lambda a, b: b.input.append("x"),
  lambda a, b: setattr(next(x for x in b.attribute if x.name == "axis"), "i", 0),
])  # fmt: skip
def test_marks_of_other_nodes_are_not_believed(decoder, change):
  """A given model may have any: it stays as it is, without them."""
  made = split_norms(decoder)
  for a, b in [
    (x, y) for x in kinds(made, "Add") for y in kinds(made, "SimplifiedLayerNormalization")
    if x.metadata_props and y.metadata_props and x.output[0] == y.input[0]
  ]:  # fmt: skip
    change(a, b)
  before = [n.op_type for n in nodes_of(made.graph)]
  whole_norms(made)
  assert [n.op_type for n in nodes_of(made.graph)] == before
  assert not any(p.key.endswith("normed") for n in nodes_of(made.graph) for p in n.metadata_props)


def test_both_compute_what_the_node_does(rng):
  """To the last bit on a CPU: sums are rounded to fp16 in front of the norm."""
  x, skip, scale = (rng.standard_normal((2, 1, 64)).astype(np.float16) for _ in range(3))
  scale = scale[0, 0]
  found = []
  for apart in (False, True):
    net = Net(np.float16)
    names = net.input(2, 1, 64), net.input(2, 1, 64), net.constant(scale)
    if apart:
      net.Add(*names[:2])
      total = net.nodes[-1].output[0]
      y = net.SimplifiedLayerNormalization(total, names[2], axis=-1, epsilon=1e-6, stash_type=1)
    else:
      y = net.SkipSimplifiedLayerNormalization(*names, domain="com.microsoft", epsilon=1e-6)
      net.nodes[-1].output.extend(["", "", "total"])
      total = "total"
    model = net.model(y, total)
    for value in model.graph.output:
      value.CopyFrom(helper.make_tensor_value_info(value.name, 10, (2, 1, 64)))
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found.append(session.run(None, dict(zip(names[:2], (x, skip), strict=True))))
  np.testing.assert_array_equal(found[0][1], found[1][1])
  np.testing.assert_allclose(found[0][0].astype(float), found[1][0].astype(float), rtol=2e-3, atol=1e-3)


def test_onnxruntime_is_timed_with_the_node_it_was(folder):
  """Each part alone, and both as one, in a region and by itself."""
  loaded = load_model(folder / "model.onnx", steps={"batch_size": 1, "past_sequence_length": 64})
  program = import_model(loaded)
  parts = norms_of_one(loaded.proto, loaded.node_names)
  sizes = {n: 64 if "past" in n or "total" in n else 1 for n in program.primes.values()}
  program = program.sized(sizes)
  asked = [n for same in distinct_nodes(loaded, program, parts[0]).values() for n in same]
  values = known_values(loaded)
  kinds_of = {
    n.parts: [x.op_type for x in node_model(loaded, program, n.node, values, n.parts).graph.node]
    for n in asked
  }
  assert kinds_of[parts[0]] == [WHOLE] and kinds_of[()] in (["Add"], ["SimplifiedLayerNormalization"])
  found = find_candidates(program, TIMED).candidates
  c = next(c for c in found if c.nodes == set(parts[0]))
  assert [n.op_type for n in region_model(loaded, c.region).graph.node] == [WHOLE]
