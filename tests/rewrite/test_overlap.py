"""Regions that share nodes: what a kernel recomputes stays only while somebody else reads it."""

from dataclasses import replace

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from protos import new_node, typed
from refused import refused

from mirage_onnx.rewrite.model import rewrite_model
from mirage_onnx.rewrite.replacement import Replacement, WeightUse

SHARED = ("pow", "mean", "add", "sqrt", "div", "scale")


def second_reader(toy, op="MatMul"):
  model = toy.build()
  weight = next(t for t in model.graph.initializer if t.name == "l0_w")
  other = numpy_helper.to_array(weight)[::-1]
  model.graph.initializer.append(numpy_helper.from_array(other.copy(), "l0_w2"))
  inputs = ["l0_scale", "l0_w2"] if op == "MatMul" else ["l0_scale"]
  model.graph.node.append(helper.make_node(op, inputs, ["other"], name="l0_other"))
  model.graph.output.append(typed("other", TensorProto.FLOAT16, ["batch", toy.hidden]))
  return model


def second_region(toy):
  return replace(
    toy.region(0),
    nodes=(*(f"l0_{s}" for s in SHARED), "l0_other"),
    inputs=("h0", "l0_gamma", "l0_w2"),
    weights=(WeightUse("l0_w2", (1, 0)),),
    outputs=("other",),
  )


def operators(model):
  return [n.op_type for n in model.graph.node]


@pytest.mark.parametrize("step", [1, -1])
def test_two_regions_share_a_stage_in_any_order(toy, x, step):
  model = second_reader(toy)
  regions = [toy.region(0), second_region(toy)]
  result = toy.rewritten(model, x(), regions[::step])
  assert operators(result) == ["MuGraph_0", "MuGraph_0"]
  assert len(result.functions) == 1
  assert not [v for v in result.graph.value_info if v.name == "l0_scale"]
  onnx.checker.check_model(result, full_check=True)


def test_one_region_of_two_readers(toy, x):
  """The shared stage stays for the reader that is not replaced."""
  model = second_reader(toy)
  result = toy.rewritten(model, x())
  names = [n.name for n in result.graph.node]
  assert names == [*(f"l0_{s}" for s in SHARED), "mirage/0/l0_pow", "l0_other"]


def test_only_what_the_other_reader_needs_stays(toy, x):
  model = toy.build()
  model.graph.node.append(new_node("Neg", "l0_add", "other", name="neg"))
  model.graph.output.append(typed("other", TensorProto.FLOAT16, None))
  result = toy.rewritten(model, x())
  assert operators(result) == ["Pow", "ReduceMean", "Add", "MuGraph_0", "Neg"]
  assert {t.name for t in result.graph.initializer} >= {"two", "axes", "eps"}


def test_an_interior_value_that_is_a_graph_output_stays(toy, x):
  model = toy.build()
  model.graph.output.append(typed("l0_div", TensorProto.FLOAT16, None))
  result = toy.rewritten(model, x())
  assert operators(result) == ["Pow", "ReduceMean", "Add", "Sqrt", "Div", "MuGraph_0"]


def test_an_interior_value_that_a_subgraph_captures_stays(toy, x, with_if):
  model = with_if(toy.build(), "l0_sqrt")
  result = toy.rewritten(model, x())
  assert operators(result) == ["Pow", "ReduceMean", "Add", "Sqrt", "MuGraph_0", "If"]


def test_a_region_reads_what_another_recomputes(toy, x):
  """The value between stays, because the second region is fed by it."""
  model = second_reader(toy, "Neg")
  tail = Replacement(("l0_other",), ("l0_scale",), (), ("other",), False, 1)
  result = toy.rewritten(model, x(), [toy.region(0), tail])
  assert sorted(operators(result)) == sorted(
    ["Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul", "MuGraph_0", "MuGraph_1"]
  )


def test_a_region_yields_what_another_recomputes(toy, x):
  """Then the second region's copy is private, and everybody else reads the first's."""
  model = second_reader(toy, "Neg")
  head = Replacement(tuple(f"l0_{s}" for s in SHARED), ("h0", "l0_gamma"), (), ("l0_scale",), False, 1)
  result = toy.rewritten(model, x(), [toy.region(0), head])
  assert sorted(operators(result)) == ["MuGraph_0", "MuGraph_1", "Neg"]


def test_a_region_whose_only_reader_is_replaced_last(toy, x):
  """Others have recomputed all that reads it before; it stays for the one that is to come."""
  model = toy.build()
  model.graph.output.append(typed("l0_div", TensorProto.FLOAT16, None))
  names = [f"l0_{s}" for s in SHARED]
  regions = [
    Replacement(tuple(names[:3]), ("h0",), (), ("l0_add",), False, 0),
    Replacement(tuple(names[:5]), ("h0",), (), ("l0_div",), False, 1),
    Replacement((*names[3:], "l0_linear"), ("l0_add", "h0", "l0_gamma", "l0_w"), (), ("h1",),
                False, 2),
  ]  # fmt: skip
  result = toy.rewritten(model, x(), regions)
  assert sorted(operators(result)) == ["MuGraph_0", "MuGraph_1", "MuGraph_2"]


def test_an_output_is_yielded_once(toy):
  regions = [toy.region(0), replace(toy.region(0), plan=1)]
  with refused("INTERNAL", "'h1' would be the output of two regions"):
    rewrite_model(toy.build(), regions, toy.bundle)


@pytest.mark.parametrize("taken", ["left", "right"])
def test_one_of_several_outputs_of_a_node_that_stays(toy, x, taken):
  model = toy.build()
  model.graph.node.append(new_node("Split", "h1", "left right", name="split", num_outputs=2))
  model.graph.output.extend(typed(n, TensorProto.FLOAT16, None) for n in ("left", "right"))
  half = Replacement(("split",), ("h1",), (), (taken,), False, 0)
  result = toy.rewritten(model, x(), [half])
  assert {"MuGraph_0", "Split"} <= set(operators(result))
