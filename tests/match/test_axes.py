"""Axes of steps that split, join and repeat dimensions."""

import time

import numpy as np
import pytest
from small_models import Net, matches, region_of

from mirage_onnx.errors import RejectionError
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir import DType, Step, Tensor
from mirage_onnx.match.axes import name_axes
from mirage_onnx.match.canonical import make_region
from mirage_onnx.verify.equivalence import check_terms


def step(op, source, name, *shape):
  return Step(op, (source,), Tensor(name, DType.F32, shape), shape)


def sizes(named, name):
  return [[named.extents[a] for a in d] for d in named.axes[name]]


def test_a_split_dimension_has_two_axes_everywhere():
  steps = (
    Step("matmul", ("x", "w"), Tensor("y", DType.F32, (8, 64))),
    Step("add", ("y", "b"), Tensor("z", DType.F32, (8, 64))),
    step("reshape", "z", "heads", 8, 4, 16),
  )
  named = name_axes(steps, {"x": (8, 32), "w": (32, 64), "b": (64,)}, {})
  assert sizes(named, "heads") == [[8], [4], [16]]
  assert sizes(named, "w") == [[32], [4, 16]]
  assert sizes(named, "b") == [[4, 16]]
  assert named.axes["b"][0] == named.axes["w"][1] == named.axes["y"][1]


def test_cuts_of_several_reshapes_refine_each_other():
  steps = (step("reshape", "x", "a", 4, 16), step("reshape", "x", "b", 16, 4))
  named = name_axes(steps, {"x": (64,)}, {})
  assert sizes(named, "x") == [[4, 4, 4]]
  assert sizes(named, "a") == [[4], [4, 4]]
  assert sizes(named, "b") == [[4, 4], [4]]


def test_cuts_travel_through_reshapes_and_sums():
  """The third reshape cuts what the first one joined, through an addition."""
  steps = (
    step("reshape", "x", "a", 48),
    Step("add", ("a", "y"), Tensor("b", DType.F32, (48,))),
    step("reshape", "b", "c", 4, 2, 6),
  )
  named = name_axes(steps, {"x": (8, 6), "y": (48,)}, {})
  assert sizes(named, "x") == [[4, 2], [6]]
  assert sizes(named, "y") == [[4, 2, 6]]
  assert named.memory("c") == named.memory("x") == named.memory("y")


def test_a_reduction_over_a_joined_dimension_is_over_all_its_axes():
  steps = (
    Step("exp", ("x",), Tensor("e", DType.F32, (2, 3, 4))),
    step("reshape", "e", "r", 2, 12),
    Step("sum", ("r",), Tensor("s", DType.F32, (2, 1)), (1,)),
  )
  named = name_axes(steps, {"x": (2, 3, 4)}, {})
  assert len(named.terms["s"].attr or ()) == 2
  assert named.terms["s"].axes == named.axes["x"][0]


@pytest.mark.parametrize(
  ("steps", "reason"),
  [
    ((step("reshape", "x", "a", 2, 12), step("reshape", "x", "b", 3, 8)), "do not nest"),
    ((step("reshape", "x", "a", 5, 5),), "a reshape from"),
    (
      (
        step("reshape", "x", "a", 4, 6),
        step("reshape", "x", "b", 6, 4),
        step("transpose", "b", "c", 4, 6),
        Step("add", ("a", "c"), Tensor("d", DType.F32, (4, 6))),
      ),
      "",
    ),
  ],
)
def test_refusals(steps, reason):
  steps = tuple(Step(s.op, s.inputs, s.output, (1, 0)) if s.op == "transpose" else s for s in steps)
  with pytest.raises(RejectionError) as caught:
    name_axes(steps, {"x": (24,)}, {})
  assert caught.value.rejection.code == "AXES_CONFLICT"
  assert reason in caught.value.rejection.reason


def test_what_is_repeated_does_not_vary(net):
  k, q = net.input(2, 8), net.input(2, 3, 8)
  repeated = net.Expand(net.Unsqueeze(k, [1]), [2, 3, 8])
  region = region_of(net.model(net.Exp(net.Mul(repeated, q))))
  plain = Net()
  k, q = plain.input(2, 1, 8), plain.input(2, 3, 8)
  assert region.key == region_of(plain.model(plain.Exp(plain.Mul(k, q)))).key


@pytest.mark.parametrize("hidden", [False, True])
def test_repeated_elements_are_no_output_and_nothing_else(net, hidden):
  y = net.Expand(net.Tanh(net.Exp(net.input(2, 1, 8))), [2, 3, 8])
  y = net.Tanh(net.ReduceSum(y, [1]) if hidden else y)
  found = matches(net.model(y))
  inside = {n for c in found.candidates for n in c.nodes}
  assert not any(n.startswith("Expand") for n in inside)
  assert {r.code for r in found.rejections if "Expand" in r.nodes[0]} <= {"OP_FORM", "TOO_SMALL"}


def test_a_border_that_regroups_changes_nothing():
  def spelled(before, after):
    net = Net()
    x = net.input(2, 4, 64) if before else net.input(8, 64)
    y = net.MatMul(net.rms(net.Reshape(x, [8, 64]), net.weight(64)), net.weight(64, 32))
    return region_of(net.model(net.Reshape(net.Tanh(y), [8, 4, 8]) if after else net.Tanh(y))).key

  assert len({spelled(b, a) for b in (False, True) for a in (False, True)}) == 1


def test_a_weight_whose_dimension_is_split_says_so(net):
  y = net.Reshape(net.MatMul(net.input(8, 64), net.weight(64, 64)), [8, 4, 16])
  region = region_of(net.model(net.rms(y, net.weight(16))))
  assert sorted(i.splits_dims for i in region.inputs) == [False, False, True]
  assert region.structure.count(" weight split\n") == 1
  assert check_terms(region, np.random.default_rng(0)) is None


def test_the_output_of_an_expand_is_refused_with_a_reason(net):
  model = net.model(net.Expand(net.Exp(net.input(2, 1, 8)), [2, 3, 8]))
  program = import_model(load_model(model))
  nodes = tuple(n.name for n in program.nodes)
  with pytest.raises(RejectionError) as caught:
    make_region(program, nodes, program.inputs, program.outputs)
  assert caught.value.rejection.code == "OP_FORM"
  assert "repeats its elements 3 times" in caught.value.rejection.reason


def test_a_product_with_itself_again_and_again(net):
  """Thirty lines are 2**30 roots, which no power gathers."""
  x = net.rms(net.input(4, 64))
  for _ in range(30):
    x = net.Mul(x, x)
  start = time.process_time()
  found = matches(net.model(x))
  assert time.process_time() - start < 60
  assert all(len(c.nodes) < 30 for c in found.candidates)
