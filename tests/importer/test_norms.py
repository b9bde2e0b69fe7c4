"""Normalisations against ONNX Runtime, ONNX's own and those of com.microsoft."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_onnx.ir.dtype import DType

few = settings(max_examples=25, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)
MS = "com.microsoft"


def normal(seed, *shapes, dtype=np.float32):
  rng = np.random.default_rng(seed)
  return [np.asarray(rng.standard_normal(s), dtype) for s in shapes]


@st.composite
def norms(draw):
  shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
  axis = draw(st.none() | st.integers(0, len(shape) - 1))
  scale = shape[-1 if axis is None else axis :]
  if axis is not None and draw(st.booleans()):
    axis -= len(shape)
  return shape, axis, scale


def attributes(axis, epsilon):
  found = {} if axis is None else {"axis": axis}
  return found | ({} if epsilon is None else {"epsilon": epsilon})


EPSILON = st.sampled_from([None, 1e-5, 1e-3, 0.5])


@few
@given(case=norms(), epsilon=EPSILON, bias=st.booleans(), seed=SEEDS,
       opset=st.sampled_from([17, 20, 26]))  # fmt: skip
def test_layer_normalization(bench, case, epsilon, bias, seed, opset):
  shape, axis, scale = case
  arrays = normal(seed, shape, scale, *([scale] if bias else []))
  model, feeds = bench.one(
    "LayerNormalization", arrays, weights=(1,), opset=opset, **attributes(axis, epsilon)
  )
  bench.agrees(model, feeds, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("op", ["RMSNormalization", "SimplifiedLayerNormalization"])
@few
@given(case=norms(), epsilon=EPSILON, seed=SEEDS)
def test_rms_normalization(bench, op, case, epsilon, seed):
  shape, axis, scale = case
  opset = 23 if op == "RMSNormalization" else 20
  bench.agrees(
    *bench.one(op, normal(seed, shape, scale), weights=(1,), opset=opset,
               **attributes(axis, 1e-5 if epsilon is None else epsilon)),
    rtol=1e-4, atol=1e-4,
  )  # fmt: skip


def test_default_epsilon_of_rms_normalization(bench):
  model, feeds = bench.one("RMSNormalization", normal(0, (2, 4), (4,)), opset=23)
  bench.agrees(model, feeds)


@pytest.mark.parametrize("centered", [True, False])
@few
@given(
  sides=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(2, 6)),
  bias=st.booleans(),
  beta=st.booleans(),
  saved=st.booleans(),
  seed=SEEDS,
)
def test_skip_normalization(bench, centered, sides, bias, beta, saved, seed):
  """With and without beta, bias, and the output of the sum."""
  row = sides[-1:]
  x, skip, gamma, b, extra = normal(seed, sides, sides, row, row, row)
  arrays = [x, skip, gamma, *([b if beta else None] if centered else []), extra if bias else None]
  while arrays[-1] is None:
    arrays.pop()
  op = "SkipLayerNormalization" if centered else "SkipSimplifiedLayerNormalization"
  outputs = ["y", "", "", "s"] if saved else ["y"]
  model, feeds = bench.one(op, arrays, outputs=outputs, domain=MS, epsilon=1e-3)
  bench.agrees(model, feeds, rtol=1e-3, atol=1e-3)


def test_skip_normalization_of_half_in_a_chain(bench):
  """Values after an operator onnx does not know have shapes; the sum feeds the next residual."""
  arrays = normal(0, (2, 3, 8), (2, 3, 8), (8,), dtype=np.float16)
  op = onnx.helper.make_node(
    "SkipSimplifiedLayerNormalization", ["a", "b", "g"], ["y", "", "", "s"], domain=MS,
    epsilon=1e-5,
  )  # fmt: skip
  add = onnx.helper.make_node("Add", ["y", "s"], ["z"])
  model = bench.model(
    [op, add], {n: (np.float16, a.shape) for n, a in zip("abg", arrays, strict=True)},
    ["z", "s"], domains=[MS],
  )  # fmt: skip
  program = bench.agrees(model, dict(zip("abg", arrays, strict=True)), rtol=3e-3, atol=3e-3)
  assert program.tensors["s"].dtype is DType.F16
  assert program.tensors["s"].shape == (2, 3, 8)


def test_half_rounds_before_the_scale(bench):
  """As the ONNX text says: stage one in fp32, the scale and shift in fp16."""
  arrays = normal(0, (4, 32), (32,), (32,), dtype=np.float16)
  model, feeds = bench.one("LayerNormalization", arrays)
  program = bench.agrees(model, feeds, rtol=3e-3, atol=3e-3)
  steps = [(s.op, s.output.dtype.value) for s in program.nodes[0].steps]
  assert steps[0] == ("cast", "f32")
  assert steps[-3:] == [("cast", "f16"), ("mul", "f16"), ("add", "f16")]


@pytest.mark.parametrize("outputs", [["y", "m"], ["y", "", "v"], ["y", "m", "v"]])
@few
@given(case=norms(), epsilon=EPSILON, half=st.booleans(), seed=SEEDS)
def test_saved_statistics(bench, outputs, case, epsilon, half, seed):
  """The mean and one over the deviation, in fp32, with the dimensions that they are of."""
  shape, axis, scale = case
  arrays = normal(seed, shape, scale, dtype=np.float16 if half else np.float32)
  model, feeds = bench.one("LayerNormalization", arrays, outputs=outputs, **attributes(axis, epsilon))
  program = bench.agrees(model, feeds, rtol=5e-3, atol=5e-3)
  assert {program.tensors[o].dtype for o in outputs[1:] if o} == {DType.F32}


def test_unused_statistics_are_left_out(bench):
  """An output that is declared but never read does no harm."""
  arrays = normal(0, (4, 8), (8,))
  model, _ = bench.one("LayerNormalization", arrays, outputs=["y", "m", "v"])
  del model.graph.output[1:]
  assert bench.program(model).nodes[0].barrier is None


def test_refusals(bench):
  arrays = normal(0, (4, 8), (8,))
  used, _ = bench.one("SimplifiedLayerNormalization", arrays, outputs=["y", "s"])
  assert bench.barrier(used) == "OP_FORM: SimplifiedLayerNormalization: the saved statistics are used"
  half, _ = bench.one("LayerNormalization", [a.astype(np.float16) for a in arrays], stash_type=10)
  assert bench.barrier(half) == "OP_FORM: LayerNormalization: stash_type 10 is not supported"
  double, _ = bench.one("LayerNormalization", [a.astype(np.float64) for a in arrays])
  assert bench.barrier(double) == (
    "DTYPE: LayerNormalization: 'x0' is f64, whose statistics ONNX rounds to fp32"
  )
  mixed, _ = bench.one("SimplifiedLayerNormalization", [arrays[0], arrays[1].astype(np.float16)])
  assert bench.barrier(mixed) == ("DTYPE: SimplifiedLayerNormalization: 'x1' has another type than the input")
  axis, _ = bench.one("SimplifiedLayerNormalization", arrays, axis=5)
  assert bench.barrier(axis) == ("OP_FORM: SimplifiedLayerNormalization: axis 5 of a tensor of rank 2")
