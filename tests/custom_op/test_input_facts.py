"""What a graph says of its inputs, and that drawn ones keep to it."""

import numpy as np
import onnx
import pytest
from cached_steps import cached_step
from onnx import TensorProto, helper, numpy_helper
from protos import new_node, typed
from step_decoder import decoder

from mirage_onnx.custom_op.compare import compare_models
from mirage_onnx.custom_op.compare_inputs import GROWS, KINDS, MASKED, SHORTER, draw_inputs
from mirage_onnx.custom_op.edge_inputs import EDGES
from mirage_onnx.custom_op.input_facts import input_facts
from tests.custom_op.test_compare_inputs import Argument

LEAST = float(np.finfo(np.float16).min)


def built(nodes, inputs, shapes=None, values=()):
  """A model of ``nodes`` (operator, inputs, outputs) with weights of these shapes."""
  weights = [numpy_helper.from_array(np.zeros(s, np.float16), n) for n, s in (shapes or {}).items()]
  made = [
    helper.make_node(op, i.split(), o.split(), domain="com.microsoft" if "Attention" in op else "")
    for op, i, o in nodes
  ]
  outputs = [typed("y", TensorProto.FLOAT16, None)]
  graph = helper.make_graph(made, "g", inputs, outputs, weights, value_info=values)
  opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
  return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def ints(name, *shape):
  return typed(name, TensorProto.INT64, shape)


def halves(name, *shape):
  return typed(name, TensorProto.FLOAT16, shape)


def test_the_table_ends_ids_and_positions():
  model = built(
    [("Gather", "words ids", "a"), ("Cast", "at", "b"), ("Gather", "places b", "c"), ("Add", "a c", "y")],
    [ints("ids", "batch", "seq"), ints("at", "batch", "seq")],
    {"words": (100, 8), "places": (7, 8)},
  )
  assert input_facts(model).limits == {"ids": 100, "at": 7}


def test_a_table_of_another_axis():
  gather = helper.make_node("Gather", ["words", "ids"], ["y"], axis=-1)
  model = built([], [ints("ids", "n")], {"words": (100, 8)})
  model.graph.node.append(gather)
  assert input_facts(model).limits == {"ids": 8}


@pytest.mark.parametrize("name", ["attention_mask", "visible"])
def test_masks_of_integers(name):
  """By what the graph does with them, or by their name."""
  model = built(
    [("Unsqueeze", f"{name} axes", "m"), ("Equal", "m zero", "h"), ("Where", "h least x", "s"),
     ("Softmax", "s", "y")],
    [ints(name, 1, 4), halves("x", 1, 1, 4)],
    {"least": ()},
  )  # fmt: skip
  assert input_facts(model).masks == {name}


def test_a_term_of_logits_is_a_mask():
  model = built(
    [("MatMul", "x w", "s"), ("Add", "s bias", "t"), ("Softmax", "t", "y")],
    [halves("x", 4, 8), halves("bias", 4, 8)],
    {"w": (8, 8)},
  )
  assert input_facts(model).masks == {"bias"}


def attention():
  """As onnxruntime-genai's builder writes it, with lengths as inputs and without."""
  node = ("GroupQueryAttention", "q k v past_k past_v lengths total", "y pk pv")
  cache = [halves(f"past_{n}", "batch", 2, "past", 8) for n in "kv"]
  return built(
    [("Identity", "x", "q"), node],
    [halves("x", "batch", "seq", 16), *(halves(n, "batch", "seq", 16) for n in "kv"), *cache,
     typed("lengths", TensorProto.INT32, ["batch", 1]), typed("total", TensorProto.INT32, [])],
    values=[halves("q", "batch", "seq", 16)],
  )  # fmt: skip


def test_lengths_add_up():
  facts = input_facts(attention())
  arguments = [Argument("past_k", "float16", ["batch", 2, "past", 8]),
               Argument("lengths", "int32", ["batch", 1]), Argument("total", "int32", [])]  # fmt: skip
  for _, feeds in draw_inputs(arguments, 0, 1, {"past": 5, "seq": 3}, {}, facts):
    assert feeds["past_k"].shape[2] == 5
    assert feeds["lengths"].tolist() == [[7]] * 4 and feeds["total"] == 8


def test_lengths_within_a_cache_of_one_size():
  """The new token has its place in it: it is no longer afterwards."""
  model = attention()
  model.graph.value_info.append(halves("pk", "batch", 2, "past", 8))
  facts = input_facts(model)
  arguments = [Argument("lengths", "int32", ["batch", 1]), Argument("total", "int32", [])]
  for _, feeds in draw_inputs(arguments, 0, 1, {"past": 5, "seq": 1}, {}, facts):
    assert feeds["lengths"].tolist() == [[4]] * 4 and feeds["total"] == 5


@pytest.mark.parametrize(
  ("fixed", "shared"), [(True, {"present_k": "past_k", "present_v": "past_v"}), (False, {})]
)
def test_a_cache_of_one_size_stays_where_it_is(fixed, shared):
  assert input_facts(cached_step(1, 2, 2, 32, 9, fixed=fixed)).shared == shared


@pytest.mark.parametrize(("packed", "head"), [(False, 4), (True, 2)])
def test_the_size_of_a_head_follows_from_the_queries(packed, head):
  """genai's builder writes a symbol for it; with a past, onnxruntime takes one new token or one sequence."""
  model = attention()
  node = model.graph.node[1]
  node.attribute.extend([helper.make_attribute("num_heads", 4), helper.make_attribute("kv_num_heads", 2)])
  for value in model.graph.input:
    if value.name.startswith("past"):
      value.type.tensor_type.shape.dim[3].dim_param = "head"
  if packed:
    node.input[1] = node.input[2] = ""
  facts = input_facts(model)
  assert facts.sizes == {"head": head, "seq": 1}
  arguments = [Argument("past_k", "float16", ["batch", 2, "past", "head"])]
  for given, last in (({}, head), ({"head": 6}, 6)):
    assert {f["past_k"].shape[3] for _, f in draw_inputs(arguments, 0, 1, given, {}, facts)} == {last}


def test_sizes_of_what_is_joined():
  """A cache is as wide as the keys that are put behind it; the axis of joining says nothing."""
  nodes = [("Concat", "past new", "present"), ("Identity", "present", "y")]
  inputs = [halves("past", "batch", 4, "past", "head"), halves("new", "batch", 4, 1, 64)]
  model = built(nodes, inputs)
  model.graph.node[0].attribute.append(helper.make_attribute("axis", -2))
  assert dict(input_facts(model).sizes) == {"head": 64}


def test_a_mask_that_is_summed_to_lengths_hides_a_tail_only():
  model = attention()
  del model.graph.input[5:]
  model.graph.input.append(ints("attention_mask", "batch", "past_seq"))
  for op, i, o in (("ReduceSum", "attention_mask axis", "sum"), ("Sub", "sum one", "less"),
                   ("Cast", "less", "lengths")):  # fmt: skip
    model.graph.node.insert(0, new_node(op, i, o))
  facts = input_facts(model)
  assert facts.padded == facts.masks == {"attention_mask"}
  arguments = [Argument("attention_mask", "int64", ["batch", "past_seq"])]
  for kind, feeds in draw_inputs(arguments, 0, 2, {"past_seq": 6}, {}, facts):
    assert feeds["attention_mask"].sum(axis=1).tolist() == [5 if kind in MASKED else 6] * 4


def test_sizes_of_a_cache_add_up():
  names = ("past_sequence_length", "sequence_length", "total_sequence_length")
  model = built([("Identity", "x", "y")], [halves("x", *names), ints("position_ids", 1, names[1])])
  facts = input_facts(model)
  arguments = [Argument("x", "float16", list(names))]
  ((_, plain), *_), ((_, given), *_) = (
    draw_inputs(arguments, 0, 1, dims, {}, facts) for dims in ({}, {names[2]: 9})
  )
  assert plain["x"].shape == (4, 4, 8) and given["x"].shape == (4, 4, 9)


def test_sizes_of_a_cache_add_up_where_a_step_is_of_one_token():
  """As transformers' decoders are exported by torch: the mask is as long as the past and the new one."""
  inputs = [ints("input_ids", "batch", 1), ints("attention_mask", "batch", "total")]
  inputs.append(halves("x", "batch", "past"))
  model = built([("Gather", "table input_ids", "y")], inputs, {"table": (9, 8)})
  arguments = [Argument("attention_mask", "int64", ["batch", "total"]),
               Argument("x", "float16", ["batch", "past"])]  # fmt: skip
  for dims, total in (({}, 5), ({"past": 255}, 256), ({"total": 9}, 9)):
    (_, feeds), *_ = draw_inputs(arguments, 0, 1, dims, {}, input_facts(model))
    assert feeds["attention_mask"].shape == (4, total)


def test_positions_count_up_to_the_end_of_the_mask():
  model = built(
    [("Gather", "places position_ids", "y")],
    [ints("position_ids", 1, 2), ints("attention_mask", 1, 6)],
    {"places": (5, 8)},
  )
  facts = input_facts(model)
  arguments = [Argument("position_ids", "int64", [1, 2]), Argument("attention_mask", "int64", [1, 6])]
  drawn = dict(draw_inputs(arguments, 0, 1, {}, {}, facts))
  assert all(feeds["position_ids"].tolist() == [[4, 4]] for feeds in drawn.values()), "5 has no row"


def lengths_of(model, types="float16"):
  """Kind -> lengths that are drawn for a model of ``cached_step``."""
  arguments = [
    Argument(v.name, "int32" if v.type.tensor_type.elem_type == TensorProto.INT32 else types,
             [d.dim_value for d in v.type.tensor_type.shape.dim]) for v in model.graph.input
  ]  # fmt: skip
  return {kind: f["lengths"].tolist() for kind, f in draw_inputs(arguments, 0, 4, {}, {}, input_facts(model))}


def test_lengths_of_a_cache_that_keeps_its_size_are_drawn():
  """Of one new token: any row of the cache is its place."""
  found = lengths_of(cached_step(64, 2, 2, 32, 9))
  assert {k for k, x in found.items() if x != [8] * 64} == {*SHORTER}
  assert all({*found[k]} == {*range(9)} for k in SHORTER) and len({*map(str, found.values())}) == 3
  for x in (
    lengths_of(cached_step(1, 2, 2, 32, 9, new=3)),
    lengths_of(cached_step(2, 2, 2, 32, 9), "bfloat16"),
  ):
    assert {*map(str, x.values())} == {str([8] * len(x["normal 0"]))}


def test_masks_of_a_cache_with_room_are_shorter():
  """Of all sequences alike, then of each; the first token is always there. A prompt is as it was."""
  model = decoder(new="seq")
  for v in (*model.graph.input, *model.graph.output):
    for d in v.type.tensor_type.shape.dim:
      d.dim_param = "total" if d.dim_param == "all" else d.dim_param
  arguments = [Argument(v.name, "int64" if v.name == "mask" else "float16",
                        [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim])
               for v in model.graph.input]  # fmt: skip
  facts, sizes = input_facts(model), {"past": 50, "seq": 1, "batch": 8}
  found = {k: f["mask"] for k, f in draw_inputs(arguments, 0, 4, sizes, {}, facts)}
  assert {k for k, x in found.items() if x.shape != (8, 50) and k != GROWS} == {*SHORTER}
  alike, apart = (found[k] for k in SHORTER)
  assert alike.all() and 1 <= alike.shape[1] < 50 and apart[:, 0].all()
  assert (np.diff(apart, axis=1) <= 0).all() and len({*apart.sum(axis=1).tolist()}) > 3
  of_prompts = draw_inputs(arguments, 0, 4, {**sizes, "seq": 3}, {}, facts)
  assert all(f["mask"].shape in ((8, 50), (8, 53)) for _, f in of_prompts)


def test_what_is_wrong_at_shorter_lengths_only_is_found():
  """Attention to the whole cache, whatever a run says: right where it is full."""
  model = cached_step(2, 2, 2, 32, 9, rotary=False)
  wrong = onnx.ModelProto()
  wrong.CopyFrom(model)
  whole = numpy_helper.from_array(np.array(8, np.int32), "whole")
  wrong.graph.node.insert(0, new_node("Max", "lengths whole", "longer"))
  wrong.graph.node[1].input[5] = "longer"
  wrong.graph.initializer.append(whole)
  data = model.SerializeToString()
  assert compare_models(data, data).passed
  found = compare_models(data, wrong.SerializeToString())
  assert not found.passed and {o.worst for o in found.outputs if not o.passed} <= {*SHORTER}
  assert compare_models(data, wrong.SerializeToString(), draws=2).passed


def test_masked_rows():
  model = built([("Add", "x mask", "s"), ("Softmax", "s", "y")], [halves("x", 8, 6), halves("mask", 8, 6)])
  facts = input_facts(model)
  arguments = [Argument("x", "float16", [8, 6]), Argument("mask", "float16", [8, 6]),
               Argument("hidden_mask", "bool", [4, 6])]  # fmt: skip
  facts = type(facts)(masks=frozenset({"mask", "hidden_mask"}))
  drawn = dict(draw_inputs(arguments, 0, 1, {}, {}, facts))
  assert list(drawn) == ["normal 0", *KINDS, *MASKED]
  rows = drawn["masked rows"]["mask"]
  assert set(rows.ravel().tolist()) == {0.0, LEAST}
  assert rows[0].tolist() == [LEAST] * 3 + [0.0] * 3 and rows[1].tolist() == [0.0] * 3 + [LEAST] * 3
  assert (rows[2] == LEAST).all() and (rows[6] == LEAST).all()
  assert set(drawn["masked rows -inf"]["mask"].ravel().tolist()) == {0.0, -np.inf}
  assert (drawn["masked throughout"]["mask"] == LEAST).all()
  assert not drawn["masked throughout"]["hidden_mask"].any()
  assert drawn["normal 0"]["hidden_mask"].all() and not drawn["normal 0"]["mask"].any()


def test_a_row_that_is_hidden_throughout_is_no_measure():
  """The original makes NaN of it, or the mean; the other model may do either, but only there."""
  nodes = [("Add", "x mask", "s"), ("Softmax", "s", "y")]
  inputs = [halves("x", 4, 6), halves("mask", 4, 6)]
  data = built(nodes, inputs).SerializeToString()
  found = compare_models(data, data, draws=1)
  assert found.passed and {*MASKED, *EDGES} <= set(found.inputs)
  wrong = built([("Neg", "mask", "m"), ("Add", "x m", "s"), ("Softmax", "s", "y")], inputs)
  failed = compare_models(data, wrong.SerializeToString(), draws=1)
  assert not failed.passed and failed.outputs[0].worst in MASKED


def test_models_of_onnx_without_inputs_of_a_kind():
  assert not input_facts(onnx.ModelProto()).masks
