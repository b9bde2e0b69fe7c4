"""Every inconsistent request is refused; nothing wrong is ever written."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from protos import new_node, typed
from refused import refused

from mirage_onnx.errors import MirageError
from mirage_onnx.rewrite.model import BodyMaker, rewrite_model
from mirage_onnx.rewrite.replacement import Replacement, WeightUse


def refuse(model, regions, code, match, **options):
  with refused(code, match):
    rewrite_model(model, regions, b"bundle", **options)


def test_not_convex(toy):
  model = toy.build(3)
  ends = Replacement(
    nodes=toy.region(0).nodes + toy.region(2).nodes,
    inputs=("h0", "l0_gamma", "l0_w", "h2", "l2_gamma", "l2_w"),
    weights=(),
    outputs=("h1", "h3"),
    workspace=False,
    plan=0,
  )
  refuse(model, [ends], "INTERNAL", "not convex")


def test_two_regions_that_need_each_other(toy):
  model = toy.build(1)
  model.graph.node.extend(
    helper.make_node("Neg", [i], [o], name=o)
    for i, o in (("h0", "a0"), ("a0", "b1"), ("b1", "a2"), ("h0", "b0"), ("b0", "a1"))
  )
  model.graph.node.append(new_node("Add", "a2 a1", "end", name="end"))
  model.graph.output.append(typed("end", TensorProto.FLOAT16, None))
  a = Replacement(("a0", "a2", "a1"), ("h0", "b1", "b0"), (), ("a0", "a2", "a1"), False, 0)
  b = Replacement(("b0", "b1"), ("h0", "a0"), (), ("b0", "b1"), False, 1)
  refuse(model, [a, b], "INTERNAL", "not convex")


def test_unknown_node(toy):
  region = replace(toy.region(0), nodes=("nowhere",))
  refuse(toy.build(), [region], "INTERNAL", "no node 'nowhere'")


@pytest.mark.parametrize("change", ["op", "attribute", "constant", "operands"])
def test_one_plan_with_two_bodies(toy, change):
  model = toy.build(2)
  nodes = {n.name: n for n in model.graph.node}
  match change:
    case "op":
      nodes["l1_add"].op_type = "Sub"
    case "attribute":
      nodes["l1_mean"].attribute.append(helper.make_attribute("keepdims", 1))
    case "constant":
      model.graph.initializer.append(numpy_helper.from_array(np.array(0.5, np.float16), "eps1"))
      nodes["l1_add"].input[1] = "eps1"
    case "operands":
      nodes["l1_scale"].input[:] = reversed(nodes["l1_scale"].input)
  regions = [toy.region(0), toy.region(1)]
  assert len({BodyMaker(model).body(r).key for r in regions}) == 2
  refuse(model, regions, "INTERNAL", "two different bodies")


def test_a_missing_input(toy):
  region = replace(toy.region(0), inputs=("h0", "l0_w"))
  model = toy.build()
  model.graph.input.append(typed("l0_gamma", TensorProto.FLOAT16, [toy.hidden]))
  refuse(model, [region], "INTERNAL", "'l0_gamma' is neither an input")


@pytest.mark.parametrize(
  ("part", "match"),
  [
    ({"inputs": ("h0", "l0_gamma", "l0_w", "l0_div")}, "made inside"),
    ({"outputs": ("h1", "h0")}, "makes its output 'h0'"),
    ({"weights": (WeightUse("l0_w", (0, 2, 1)),)}, "does not fit shape"),
    ({"weights": (WeightUse("h0", (1, 0)),)}, "'h0' is not a constant"),
  ],
)
def test_wrong_inputs_and_outputs(toy, part, match):
  refuse(toy.build(), [replace(toy.region(0), **part)], "INTERNAL", match)


def test_a_weight_that_runs_can_change(toy):
  model = toy.build()
  model.graph.input.append(typed("l0_w", TensorProto.FLOAT16, [toy.hidden, toy.hidden]))
  refuse(model, [toy.region(0)], "INTERNAL", "'l0_w' is not a constant")


def test_a_subgraph_inside_a_region(toy, with_if):
  model = with_if(toy.build(), "h0")
  region = Replacement(("choice",), ("h0", "yes"), (), ("chosen",), False, 0)
  refuse(model, [region], "INTERNAL", "holds a subgraph")


def test_an_unknown_type(toy):
  model = toy.build()
  model.opset_import.append(helper.make_opsetid("vendor", 1))
  model.graph.node.append(new_node("Odd", "h0", "odd", name="odd", domain="vendor"))
  model.graph.node.append(new_node("Odd", "odd", "end", name="end", domain="vendor"))
  model.graph.output.append(typed("end", TensorProto.FLOAT, None))
  region = Replacement(("odd",), ("h0",), (), ("odd",), False, 0)
  refuse(model, [region], "INTERNAL", "element type of 'odd'")
  del model.opset_import[1:]
  refuse(model, [region], "INTERNAL", "no opset for domain 'vendor'")


def test_an_optimized_model(toy):
  once = rewrite_model(toy.build(2), [toy.region(0)], b"")
  refuse(once, [toy.region(1, plan=1)], "OPTION_INVALID", "already optimized")


def test_the_bundle_name_is_taken(toy):
  model = toy.build()
  model.graph.initializer.append(numpy_helper.from_array(np.zeros(1), "mirage.bundle"))
  refuse(model, [toy.region(0)], "INTERNAL", "already has a value")


@pytest.mark.parametrize(
  ("part", "match"),
  [
    ({"nodes": ()}, "no nodes"),
    ({"outputs": ()}, "no outputs"),
    ({"inputs": ("h0", "h0")}, "repeated"),
    ({"outputs": ("",)}, "empty"),
    ({"weights": (WeightUse("w", (1, 0)),)}, "not an input"),
  ],
)
def test_malformed_replacements(toy, part, match):
  with refused("INTERNAL", match):
    replace(toy.region(0), **part)


def test_a_malformed_permutation():
  with pytest.raises(MirageError, match="no permutation"):
    WeightUse("w", (0, 0))
  assert WeightUse("w", (2, 0, 1)).inverse == (1, 2, 0)
