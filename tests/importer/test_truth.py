"""Comparisons, logic and choice against ONNX Runtime, on random shapes, equal values and NaN."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from ml_dtypes import bfloat16
from onnx import TensorProto, helper
from protos import new_node

from mirage_onnx.ir.dtype import DType

SEEDS = st.integers(0, 2**32 - 1)
few = settings(max_examples=15, deadline=None)
#: So few values that many are equal.
VALUES = np.array([-np.inf, -1, -0.0, 0, 1, np.inf, np.nan], np.float32)


def shapes(count):
  return hnp.mutually_broadcastable_shapes(num_shapes=count, max_dims=4, max_side=4)


def draw(seed, shape, dtype):
  rng = np.random.default_rng(seed)
  if dtype is np.bool_:
    return np.asarray(rng.integers(0, 2, shape), np.bool_)
  if np.issubdtype(dtype, np.integer):
    return np.asarray(rng.integers(-1, 2, shape) * 2**24 + rng.integers(0, 2), dtype)
  return np.asarray(rng.choice(VALUES, shape), dtype)


@pytest.mark.parametrize("op", ["Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"])
@few
@given(shapes=shapes(2), weight=st.sampled_from([(), (0,), (1,), (0, 1)]), seed=SEEDS,
       dtype=st.sampled_from([np.float32, np.float64]))  # fmt: skip
def test_comparisons(bench, op, shapes, weight, seed, dtype):
  arrays = [draw(seed + i, s, dtype) for i, s in enumerate(shapes.input_shapes)]
  program = bench.agrees(*bench.one(op, arrays, weights=weight, opset=18), rtol=0, atol=0)
  assert program.tensors["y0"].dtype is DType.BOOL


@pytest.mark.parametrize("op", ["Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"])
@pytest.mark.parametrize("bound", [np.nextafter(np.float32(0.1), np.float32(0)), np.float16(0.1)])
def test_compared_constants_are_as_stored(bench, op, bound):
  """Beside a dimension of 10 each would be 1/10 elsewhere, which no element is."""
  x = np.full((2, 10), bound)
  program = bench.agrees(*bench.one(op, [x, np.array(bound)], weights=(1,), opset=18), rtol=0, atol=0)
  (step,) = program.nodes[0].steps
  (constant,) = (i for i in step.inputs if not isinstance(i, str))
  assert constant.base == Fraction(float(bound)) and program.constants["x1"].base == Fraction(1, 10)


@few
@given(shape=hnp.array_shapes(min_dims=0, max_dims=3, max_side=4), seed=SEEDS,
       dtype=st.sampled_from([np.float32, np.float16]))  # fmt: skip
def test_is_nan(bench, shape, seed, dtype):
  bench.agrees(*bench.one("IsNaN", [draw(seed, shape, dtype)]), rtol=0, atol=0)


@few
@given(shape=hnp.array_shapes(min_dims=0, max_dims=3, max_side=4), seed=SEEDS,
       signs=st.sampled_from([(1, 1), (1, 0), (0, 1)]))  # fmt: skip
def test_is_inf(bench, shape, seed, signs):
  """Of what is 16 bits wide: see also tests/test_choices.py."""
  above, below = signs
  x = draw(seed, shape, np.float16)
  bench.agrees(*bench.one("IsInf", [x], detect_positive=above, detect_negative=below), rtol=0, atol=0)


@pytest.mark.parametrize(("types", "narrow"), [
  (("FLOAT16",), np.float16), (("FLOAT16", "FLOAT"), np.float16), (("FLOAT16", "BFLOAT16"), np.float16),
  (("BFLOAT16", "DOUBLE"), bfloat16), (("FLOAT", "BFLOAT16", "FLOAT"), bfloat16),
])  # fmt: skip
def test_infinity_after_casts(bench, types, narrow):
  """The limit is the least number of fp32 that overflows the narrowest of the types."""
  kinds = [getattr(TensorProto, t) for t in types]
  chain = [new_node("Cast", f"x{i}", f"x{i + 1}", to=to) for i, to in enumerate(kinds[1:])]
  nodes = [*chain, new_node("IsInf", f"x{len(chain)}", "b"), new_node("Where", "b z x0", "y")]
  first = helper.tensor_dtype_to_np_dtype(kinds[0])
  model = bench.model(nodes, {"x0": (first, [3]), "z": (first, [3])}, ["y"])
  program = bench.program(model)
  assert not any(n.barrier for n in program.nodes)
  compare = program.nodes[len(chain)].steps[-1]
  assert compare.op == "less_equal"
  limit = np.float32(compare.inputs[0].base)
  with np.errstate(over="ignore"):
    assert np.isinf(limit.astype(narrow)) and np.isfinite(np.nextafter(limit, np.float32(0)).astype(narrow))


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.bool_])
def test_the_largest_of_integers(bench, op, dtype):
  bench.agrees(*bench.one(op, [draw(0, (3, 4), dtype), np.array([1])], weights=(1,)), rtol=0, atol=0)


@pytest.mark.parametrize("op", ["And", "Or", "Not", "Equal"])
@few
@given(shapes=shapes(2), weight=st.sampled_from([(), (0,)]), seed=SEEDS)
def test_logic(bench, op, shapes, weight, seed):
  arrays = [draw(seed + i, s, np.bool_) for i, s in enumerate(shapes.input_shapes)]
  arrays = arrays[: 1 if op == "Not" else 2]
  bench.agrees(*bench.one(op, arrays, weights=weight, opset=18), rtol=0, atol=0)


@few
@given(shapes=shapes(3), weight=st.sampled_from([(), (0,), (1,), (1, 2)]), seed=SEEDS,
       dtype=st.sampled_from([np.float32, np.float16, np.float64]))  # fmt: skip
def test_where(bench, shapes, weight, seed, dtype):
  """What is not chosen does not matter, be it infinite or NaN."""
  kinds = (np.bool_, dtype, dtype)
  arrays = [draw(seed + i, s, k) for i, (s, k) in enumerate(zip(shapes.input_shapes, kinds, strict=True))]
  bench.agrees(*bench.one("Where", arrays, weights=weight), rtol=0, atol=0)


@pytest.mark.parametrize("op", ["Cast", "CastLike"])
@few
@given(shape=hnp.array_shapes(min_dims=0, max_dims=3, max_side=4), seed=SEEDS,
       types=st.sampled_from([(np.bool_, np.float32), (np.float32, np.bool_),
                              (np.bool_, np.bool_), (np.float64, np.bool_),
                              (np.int64, np.bool_), (np.int32, np.float32),
                              (np.bool_, np.int64)]))  # fmt: skip
def test_casts(bench, op, shape, seed, types):
  """A number is true unless it is 0; NaN is true."""
  have, want = types
  x = draw(seed, shape, have)
  if op == "Cast":
    model = bench.one(op, [x], to=helper.np_dtype_to_tensor_dtype(np.dtype(want)))
  else:
    model = bench.one(op, [x, np.zeros(3, want)])
  bench.agrees(*model, rtol=0, atol=0)


@pytest.mark.parametrize("op", ["Transpose", "Unsqueeze", "Expand", "Identity"])
@pytest.mark.parametrize("dtype", [np.bool_, np.int32, np.int64])
def test_layout(bench, op, dtype):
  more = {"Unsqueeze": [np.array([1])], "Expand": [np.array([2, 3, 2])]}.get(op, [])
  arrays = [draw(0, (3, 2), dtype), *more]
  bench.agrees(*bench.one(op, arrays, weights=tuple(range(1, len(arrays)))), rtol=0, atol=0)


def test_two_constants_to_choose_from(bench):
  """A mask as exporters write it: constants of the program, not tensors of it."""
  arrays = [draw(1, (2, 1, 3), np.bool_), np.float16(0), np.array([-65504], np.float16)]
  program = bench.agrees(*bench.one("Where", arrays, weights=(1, 2)), rtol=0, atol=0)
  assert set(program.constants) == {"x1", "x2"}


def test_refusals(bench):
  three = [np.ones(3, np.bool_), np.arange(3), np.arange(3)]
  assert bench.barrier(bench.one("Where", three)[0]) == "DTYPE: Where: 'x1' is i64"
  two = [np.arange(3), np.arange(3)]
  assert bench.barrier(bench.one("Equal", two)[0]) == "DTYPE: Equal: 'x0' is i64"
  three = [np.ones(3, np.float32)]
  assert bench.barrier(bench.one("Cast", three, to=TensorProto.INT64)[0]) == "DTYPE: Cast: 'y0' is i64"
  wide = "OP_FORM: IsInf: 'x0' is no 16-bit float, nor cast from one"
  assert bench.barrier(bench.one("IsInf", three)[0]) == wide
  half = [np.ones(3, np.float16)]
  neither = bench.one("IsInf", half, detect_positive=0, detect_negative=0)[0]
  assert bench.barrier(neither) == "OP_FORM: IsInf: neither infinity is detected"


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
  ("shape", "known"), [((3, 1, 4), (1, 5, 1)), ((3, 4), ()), ((1, 4), (1, 4)), ((), (2,))]
)
def test_and_with_what_is_true_everywhere(bench, place, shape, known):
  """Only the shape of the constant matters: a mask of keys has no axis of queries."""
  arrays = [draw(3, shape, np.bool_), np.ones(known, np.bool_)]
  program = bench.agrees(*bench.one("And", arrays[:: 1 - 2 * place], weights=(1 - place,)), rtol=0, atol=0)
  assert [s.op for n in program.nodes for s in n.steps if s.op == "mul"] == []
  arrays[1][...] = False
  program = bench.agrees(*bench.one("And", arrays[:: 1 - 2 * place], weights=(1 - place,)), rtol=0, atol=0)
  assert [s.op for n in program.nodes for s in n.steps if s.op == "mul"] == ["mul"]
