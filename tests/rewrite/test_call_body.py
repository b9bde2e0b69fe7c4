"""A body that calls the region's operator for another target: tensors in its order, or it cannot."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

from mirage_onnx.errors import MirageError
from mirage_onnx.ir.dtype import DType
from mirage_onnx.rewrite.call_body import call_body, can_call
from mirage_onnx.rewrite.model import rewrite_model
from mirage_onnx.rewrite.replacement import WeightUse


def nested(toy, outer, inner, **options):
  outer = replace(toy.region(0, plan=1, **outer), suffix="sm90a")
  inner = replace(toy.region(0, plan=0, **inner), suffix="sm80")
  assert can_call(outer, inner)
  model = toy.build(1, **options)
  more = {"target_suffix": "sm90a", "other_suffixes": ["sm80"]}
  return model, rewrite_model(model, [replace(outer, inner=inner)], toy.bundle, **more)


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("theirs", [False, True])
@pytest.mark.parametrize("workspaces", [(False, False), (True, False), (True, True)])
def test_the_bits_are_those_of_the_original(toy, x, ours, theirs, workspaces):
  a, b = workspaces
  model, result = nested(toy, {"kmajor": ours, "workspace": a}, {"kmajor": theirs, "workspace": b})
  onnx.checker.check_model(result, full_check=True)
  assert [(f.domain, f.name) for f in result.functions] == [
    ("ai.mirage.v1.sm80", "MuGraph_0"), ("ai.mirage.v1.sm90a", "MuGraph_1"),
  ]  # fmt: skip
  assert [o.domain for o in result.opset_import] == ["", "ai.mirage.v1.sm90a", "ai.mirage.v1.sm80"]
  turned = [n for n in result.functions[1].node if n.op_type == "Transpose"]
  assert len(turned) == (ours != theirs)
  assert toy.same(model, result, h0=x(5, np.float16))


def test_large_constants_are_handed_on(toy, x):
  model, result = nested(toy, {}, {}, hidden=1024)
  (node,) = result.graph.node
  outer = next(f for f in result.functions if f.name == "MuGraph_1")
  assert len(node.input) == len(outer.input) == 1 + 3
  assert toy.same(model, result, h0=np.ones((2, 1024), np.float16))


def test_what_cannot_be_called(toy):
  outer, inner = toy.region(0, plan=1), toy.region(0, plan=0)
  assert can_call(outer, inner)
  assert not can_call(replace(outer, workspace=False), inner), "its scratch tensor would have no type"
  assert not can_call(replace(outer, inputs=outer.inputs[::-1]), inner)
  four = WeightUse("l0_w", (1, 0), DType.I4, (16, 16))
  assert not can_call(replace(outer, weights=(four,)), inner), "bytes of 4-bit numbers"
  assert can_call(replace(outer, weights=(four,)), replace(inner, weights=(four,)))


def test_permutations_are_put_together(toy):
  """What the node gets is turned from one order into the other."""
  outer = replace(toy.region(0), weights=(WeightUse("l0_w", (1, 2, 0)),))
  inner = replace(toy.region(0), weights=(WeightUse("l0_w", (2, 1, 0)),))
  function = call_body(outer, inner, (), "ai.mirage.v1.sm80", {"": 20}).function
  perm = next(tuple(a.ints) for n in function.node if n.op_type == "Transpose" for a in n.attribute)
  w = np.arange(24).reshape(2, 3, 4)
  np.testing.assert_array_equal(w.transpose(1, 2, 0).transpose(perm), w.transpose(2, 1, 0))


def test_two_bodies_of_one_number_are_refused(toy):
  regions = [replace(toy.region(i, plan=1), suffix="sm90a") for i in range(2)]
  inner = [replace(toy.region(i, plan=0, kmajor=bool(i)), suffix="sm80") for i in range(2)]
  both = [replace(r, inner=i) for r, i in zip(regions, inner, strict=True)]
  with pytest.raises(MirageError, match="two different bodies"):
    rewrite_model(toy.build(2), both, toy.bundle)
