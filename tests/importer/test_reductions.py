"""Reductions and softmax against ONNX Runtime, over opsets, axes and keepdims."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refused import refused

from mirage_onnx.ir.dtype import DType

few = settings(max_examples=25, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def reductions(draw):
  shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
  axes = draw(st.none() | st.sets(st.integers(0, len(shape) - 1), min_size=1))
  if axes is not None:
    axes = [a - len(shape) if draw(st.booleans()) else a for a in axes]
  return shape, axes


@pytest.mark.parametrize(
  "op",
  [
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceSumSquare",
    "ReduceL1",
    "ReduceL2",
  ],
)
@few
@given(
  case=reductions(),
  keepdims=st.sampled_from([None, 0, 1]),
  opset=st.sampled_from([13, 17, 18, 20, 23]),
  seed=SEEDS,
)
def test_reduction(bench, op, case, keepdims, opset, seed):
  """Axes are an attribute up to opset 17, an input from 18 on; of ReduceSum from 13 on."""
  shape, axes = case
  x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
  attributes = {} if keepdims is None else {"keepdims": keepdims}
  arrays = [x]
  if axes is not None:
    if opset >= 18 or op == "ReduceSum":
      arrays.append(np.array(axes, np.int64))
    else:
      attributes["axes"] = axes
  bench.agrees(*bench.one(op, arrays, weights=range(1, len(arrays)), opset=opset, **attributes))


@pytest.mark.parametrize("axes", [None, []])
@pytest.mark.parametrize("noop", [0, 1])
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax"])
def test_empty_axes(bench, op, noop, axes):
  """No axes are all axes, unless ``noop_with_empty_axes`` says they are none."""
  x = np.arange(6, dtype=np.float32).reshape(2, 3)
  arrays = [x] if axes is None else [x, np.array(axes, np.int64)]
  bench.agrees(*bench.one(op, arrays, weights=range(1, len(arrays)), opset=20, noop_with_empty_axes=noop))


def test_noop_with_axes_reduces(bench):
  x = np.arange(6, dtype=np.float32).reshape(2, 3)
  bench.agrees(*bench.one("ReduceSum", [x, np.array([1])], weights=(1,), noop_with_empty_axes=1))


def test_mean_of_half_is_one_rounding(bench):
  x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float16)
  program = bench.agrees(*bench.one("ReduceMean", [x, np.array([1])], weights=(1,)), rtol=2e-3, atol=1e-4)
  assert [(s.op, s.output.dtype) for s in program.nodes[0].steps] == [("mean", DType.F16)]


def test_axes_of_a_run_are_refused(bench):
  model, _ = bench.one("ReduceSum", [np.ones((2, 3), np.float32), np.array([1])], outputs=["y"])
  model.graph.output[0].type.tensor_type.elem_type = 1
  model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 2
  model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 1
  assert bench.barrier(model) == "OP_FORM: ReduceSum: the axes 'x1' are not constant"


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@few
@given(
  shape=st.lists(st.integers(1, 5), min_size=1, max_size=4),
  where=st.floats(0, 1, exclude_max=True),
  negative=st.booleans(),
  default=st.booleans(),
  offset=st.sampled_from([0, 1e3, -1e3]),
  seed=SEEDS,
)
def test_softmax(bench, op, shape, where, negative, default, offset, seed):
  x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32) + np.float32(offset)
  axis = int(where * len(shape)) - (len(shape) if negative else 0)
  attributes = {} if default else {"axis": axis}
  bench.agrees(*bench.one(op, [x], **attributes), rtol=5e-5, atol=5e-5)


def test_softmax_of_half_is_computed_in_fp32(bench):
  x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float16)
  program = bench.agrees(*bench.one("Softmax", [x]), rtol=1e-3, atol=1e-6)
  ops = [(s.op, s.output.dtype.value) for s in program.nodes[0].steps]
  assert ops == [
    ("cast", "f32"), ("rmax", "f32"), ("sub", "f32"), ("exp", "f32"),
    ("sum", "f32"), ("div", "f32"), ("cast", "f16"),
  ]  # fmt: skip


def test_softmax_of_a_scalar_is_refused(bench):
  model, _ = bench.one("Softmax", [np.array(1.0, np.float32)], outputs=["y"])
  with refused("MODEL_INVALID", "rank must be >= 1"):
    bench.program(model)
