"""Elementwise operators against ONNX Runtime, on random shapes and constants."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=4)
SEEDS = st.integers(0, 2**32 - 1)
MOST = float(np.finfo(np.float32).max)
few = settings(max_examples=15, deadline=None)


def draw(seed, *shapes, positive=False):
  """Normal values, or for the functions with poles, values in [1/4, 4]."""
  rng = np.random.default_rng(seed)
  arrays = [np.asarray(rng.standard_normal(s), np.float32) for s in shapes]
  return [np.asarray(np.clip(np.abs(a), 0.25, 4)) if positive else np.asarray(a) for a in arrays]


UNARY = ["Neg", "Reciprocal", "Sqrt", "Abs", "Exp", "Log", "Erf", "Tanh", "Sigmoid", "Sin", "Cos",
         "Relu", "Identity"]  # fmt: skip


@pytest.mark.parametrize("op", UNARY)
@few
@given(shape=SHAPES, seed=SEEDS)
def test_unary(bench, op, shape, seed):
  bench.agrees(*bench.one(op, draw(seed, shape, positive=op in ("Reciprocal", "Sqrt", "Log"))))


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
@few
@given(
  shapes=hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4),
  weight=st.sampled_from([(), (0,), (1,), (0, 1)]),
  seed=SEEDS,
  opset=st.sampled_from([13, 14, 24, 26]),
)
def test_binary(bench, op, shapes, weight, seed, opset):
  """Operands are inputs or weights; a weight of one element is a constant of any rank."""
  arrays = draw(seed, *shapes.input_shapes, positive=op == "Div")
  bench.agrees(*bench.one(op, arrays, weights=weight, opset=opset))


@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "Mean"])
@few
@given(
  shapes=st.integers(1, 4).flatmap(
    lambda n: hnp.mutually_broadcastable_shapes(num_shapes=n, max_dims=3, max_side=4)
  ),
  weight=st.booleans(),
  seed=SEEDS,
)
def test_variadic(bench, op, shapes, weight, seed):
  arrays = draw(seed, *shapes.input_shapes)
  bench.agrees(*bench.one(op, arrays, weights=(0,) if weight else ()))


@few
@given(
  shape=SHAPES,
  exponent=st.sampled_from([2, 3, 1, 0, -1, 0.5, -0.5, 1.5, 0.7]),
  exponent_shape=st.sampled_from([(), (1,), (1, 1)]),
  exponent_type=st.sampled_from([np.float32, np.int64, np.int32, np.float64, np.float16]),
  seed=SEEDS,
)
def test_pow(bench, shape, exponent, exponent_shape, exponent_type, seed):
  (x,) = draw(seed, shape, positive=exponent not in (2, 3, 1))
  power = np.full(exponent_shape, exponent, exponent_type)
  bench.agrees(*bench.one("Pow", [x, power], weights=(1,)))


def test_pow_takes_the_exponent_as_it_is_stored(bench):
  """0.125 ** 0.5 of a graph with a dimension 8 is no atom where it is an exponent."""
  x = np.ones((8, 2), np.float32)
  exponent = np.array(8**-0.5, np.float32)
  program = bench.agrees(*bench.one("Pow", [x + 1, exponent], weights=(1,)))
  assert program.constants["x1"].exponent != 1
  assert program.nodes[0].steps[0].inputs[1].base == float(exponent)


@few
@given(shape=SHAPES, low=st.floats(-2, 2, width=32) | st.none(),
       high=st.floats(-2, 2, width=32) | st.none(), seed=SEEDS)  # fmt: skip
def test_clip(bench, shape, low, high, seed):
  """With bounds on either side, crossed bounds too (ONNX: the upper one wins)."""
  bounds = [None if b is None else np.array(b, np.float32) for b in (low, high)]
  weights = [i + 1 for i, b in enumerate(bounds) if b is not None]
  while bounds and bounds[-1] is None:
    bounds.pop()
  bench.agrees(*bench.one("Clip", [*draw(seed, shape), *bounds], weights=weights))


@few
@given(shape=SHAPES, seed=SEEDS,
       types=st.tuples(*[st.sampled_from([np.float16, np.float32, np.float64])] * 2))  # fmt: skip
def test_cast(bench, shape, seed, types):
  have, want = types
  x = draw(seed, shape)[0].astype(have)
  to = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(want))
  bench.agrees(*bench.one("Cast", [x], to=to), rtol=0, atol=0)
  like = np.zeros(3, want)
  bench.agrees(*bench.one("CastLike", [x, like], opset=26), rtol=0, atol=0)


@few
@given(shape=SHAPES, seed=SEEDS)
def test_cast_through_bfloat16(bench, shape, seed):
  model = bench.model(
    [
      onnx.helper.make_node("Cast", ["x"], ["b"], to=TensorProto.BFLOAT16),
      onnx.helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ],
    {"x": (np.float32, shape)},
    ["y"],
  )
  (x,) = draw(seed, shape)
  program = bench.agrees(model, {"x": x}, rtol=0, atol=0)
  assert program.tensors["b"].dtype.numpy == ml_dtypes.bfloat16


@pytest.mark.parametrize("op", ["Add", "Mul", "Sigmoid", "Tanh", "Sqrt", "Max"])
@few
@given(shape=SHAPES, seed=SEEDS)
def test_half(bench, op, shape, seed):
  """One rounding of an fp16 operator is at most a unit away from ONNX Runtime's."""
  n = 2 if op in ("Add", "Mul", "Max") else 1
  arrays = [a.astype(np.float16) for a in draw(seed, *[shape] * n, positive=op == "Sqrt")]
  bench.agrees(*bench.one(op, arrays), rtol=2e-3, atol=1e-6)


@few
@given(
  shape=SHAPES, alpha=st.floats(-2, 2, width=32).filter(bool), opset=st.sampled_from([13, 16]), seed=SEEDS
)
def test_leaky_relu(bench, shape, alpha, opset, seed):
  bench.agrees(*bench.one("LeakyRelu", draw(seed, shape), alpha=alpha, opset=opset))
  bench.agrees(*bench.one("LeakyRelu", draw(seed, shape), opset=opset))


@few
@given(shape=hnp.array_shapes(min_dims=1, max_dims=3, max_side=4), seed=SEEDS, weight=st.booleans())
def test_prelu(bench, shape, seed, weight):
  arrays = draw(seed, shape, shape[-1:])
  bench.agrees(*bench.one("PRelu", arrays, weights=(1,) if weight else ()))


@few
@given(shape=SHAPES, seed=SEEDS)
def test_dropout(bench, shape, seed):
  """The identity: alone, with a ratio, and with the training flag off."""
  (x,) = draw(seed, shape)
  ratio, off = np.array(0.3, np.float32), np.array(False)
  bench.agrees(*bench.one("Dropout", [x]))
  bench.agrees(*bench.one("Dropout", [x, ratio, off], weights=(1, 2), opset=22))


@pytest.mark.parametrize("given", [(1,), (2,), (1, 2)])
@pytest.mark.parametrize("bounds", [(-1, 1), (2, -1)])
def test_bounds_that_a_run_gives(bench, bounds, given):
  arrays = [np.linspace(-3, 3, 7, dtype=np.float32), *(np.array(b, np.float32) for b in bounds)]
  weights = [i for i in (1, 2) if i not in given]
  program = bench.agrees(*bench.one("Clip", arrays, weights=weights))
  assert [s.op for s in program.nodes[0].steps] == ["max", "min"]


@pytest.mark.parametrize("bounds", [{}, {"min": MOST}, {"max": -MOST}, {"min": -MOST, "max": MOST}])
def test_ends_of_the_type_as_bounds(bench, bounds):
  """Before opset 11 the default of each is one end; the other one is a bound."""
  bench.agrees(*bench.one("Clip", [np.linspace(-3, 3, 7, dtype=np.float32)], opset=7, **bounds))


@pytest.mark.parametrize("opset", [10, 18])
@pytest.mark.parametrize(("low", "high"), [(None, None), (-1.0, None), (None, 1.0)])
def test_infinity_becomes_a_bound_that_is_not_there(bench, opset, low, high):
  """As in ONNX Runtime: x less such a result is no NaN."""
  x = np.array([-np.inf, -MOST, -2, 0, 2, MOST, np.inf], np.float32)
  given = {n: v for n, v in (("min", low), ("max", high)) if v is not None}
  if opset < 11:
    model, feeds = bench.one("Clip", [x], opset=opset, **given)
  else:
    bounds = [None if v is None else np.float32(v) for v in (low, high)]
    while bounds and bounds[-1] is None:
      bounds.pop()
    weights = [k + 1 for k, b in enumerate(bounds) if b is not None]
    model, feeds = bench.one("Clip", [x, *bounds], opset=opset, weights=weights)
  bench.agrees(model, feeds, rtol=0, atol=0)


def test_crossed_bounds(bench):
  arrays = [np.linspace(-3, 3, 7, dtype=np.float32), np.float32(2), np.float32(-1)]
  bench.agrees(*bench.one("Clip", arrays, weights=(1, 2)))


def test_constants_on_both_sides(bench):
  """A step needs a tensor: the first operand stays one."""
  arrays = [np.array([[2.0]], np.float32), np.array(3.0, np.float32)]
  model, _ = bench.one("Add", arrays, weights=(0, 1))
  program = bench.agrees(model, {})
  assert program.nodes[0].steps[0].inputs[0] == "x0"


def test_infinite_constant_stays_a_tensor(bench):
  arrays = [np.ones(3, np.float32), np.array(-np.inf, np.float32)]
  program = bench.agrees(*bench.one("Max", arrays, weights=(1,)))
  assert program.nodes[0].steps[0].inputs == ("x0", "x1")
  assert "x1" not in program.constants and "x1" in program.weights


def _refused(bench, op, arrays, reason, **kwargs):
  assert bench.barrier(bench.one(op, arrays, **kwargs)[0]) == reason


X = np.ones((2, 3), np.float32)


def test_refusals(bench):
  _refused(bench, "Pow", [X, X], "OP_FORM: Pow: the exponent 'x1' is not a finite constant scalar")
  _refused(bench, "Clip", [X, np.array(-np.inf, np.float32)], weights=(1,),
           reason="OP_FORM: Clip: the lower bound 'x1' is not a finite constant scalar")  # fmt: skip
  _refused(bench, "Clip", [X, None, X[0]], "OP_FORM: Clip: the upper bound 'x2' is no scalar")
  _refused(bench, "LeakyRelu", [X], "OP_FORM: LeakyRelu: alpha is 0, which makes NaN of -inf", alpha=0.0)
  _refused(bench, "Dropout", [X], "OP_FORM: Dropout: the mask output is used", outputs=2)
  _refused(bench, "Dropout", [X, np.float32(0.5), np.array(True)], weights=(1, 2),
           reason="OP_FORM: Dropout: training_mode is not the constant false")  # fmt: skip
  _refused(bench, "Dropout", [X, np.float32(0.5), np.array(True)], weights=(1,),
           reason="OP_FORM: Dropout: training_mode is not the constant false")  # fmt: skip
  _refused(bench, "Cast", [X], "DTYPE: Cast: 'y0' is i64", to=TensorProto.INT64)
  _refused(bench, "Cast", [X], to=TensorProto.FLOAT8E4M3FN,
           reason="DTYPE: Cast: 'y0' is e4m3")  # fmt: skip
  _refused(bench, "Cast", [X.astype(np.uint8)], "DTYPE: Cast: 'x0' is u8", to=TensorProto.FLOAT)
  _refused(bench, "Cast", [X.astype(np.int64)], "DTYPE: Cast: 'y0' is f64",
           to=TensorProto.DOUBLE)  # fmt: skip
  _refused(bench, "Mul", [X.astype(np.int64)] * 2, "DTYPE: Mul: 'x0' is i64")
  _refused(bench, "LeakyRelu", [X], "OP_FORM: LeakyRelu: the attribute alpha is inf",
           alpha=float("inf"))  # fmt: skip
