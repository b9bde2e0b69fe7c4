"""Terms and steps by hand-made cases."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from goldens import region

from mirage_onnx.ir import Constant, DType, Step, Tensor, term
from mirage_onnx.verify import named
from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.interpret_steps import by_axes, interpret_steps, positional
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.named import NamedArray

RNG = np.random.default_rng(3)
REAL = Float64()
ROWS = region("softmax_rows")


def over(axes, *shape):
  return NamedArray(RNG.standard_normal((1, *shape)), tuple(axes))


def test_axes_meet_by_name():
  x, y = over("ab", 2, 3), over("ba", 3, 2)
  assert np.allclose(named.elementwise(REAL, "add", x, y).data[0], x.data[0] + y.data[0].T)
  with pytest.raises(ValueError, match="axis a has 2 elements here and 3 there"):
    named.elementwise(REAL, "add", x, over("a", 3))


def test_matmul_contracts_one_axis_and_batches_the_shared_ones():
  x, y = over("hmk", 2, 3, 4), over("khn", 4, 2, 5)
  got = named.matmul(REAL, x, y, "k")
  assert np.allclose(got.aligned("hmn")[0], np.einsum("hmk,khn->hmn", x.data[0], y.data[0]))
  with pytest.raises(ValueError, match="matmul over m"):
    named.matmul(REAL, x, y, "m")


def test_values_are_chosen_taken_and_spread_by_axis_names():
  x, y = over("ab", 2, 3), over("b", 3)
  mask = NamedArray(np.array([[True, False]]), ("a",))
  chosen = named.where(REAL, mask, x, y)
  assert chosen.axes == ("a", "b")
  assert np.array_equal(chosen.data[0], np.stack([x.data[0, 0], y.data[0]]))
  tiles = named.take(x, "b", np.array([[0, 1], [2, 2]]), ("@x",))
  assert tiles.axes == ("a", "@x", "b") and np.array_equal(tiles.data[0, :, 1, 0], x.data[0, :, 2])
  spread = named.expand(REAL, y, {"b": 3, "c": 4})
  assert spread.axes == ("c", "b") and spread.data.shape == (1, 4, 3)
  assert named.expand(REAL, y, {"b": 3}) is y


@pytest.mark.parametrize("weights", ["ab", "kb", "b", "bkc"])
def test_a_sum_of_products_is_contracted(weights):
  size = dict(zip("abkc", (2, 3, 4, 5), strict=True))
  x = over("ak", 2, 4)
  y = over(weights, *(size[a] for a in weights))
  z = over("k", 4)
  inputs = {"x": x, "y": y, "z": z}
  product = term.mul(*(term.input_(n, v.axes) for n, v in inputs.items()))
  root = term.reduce_("sum", ["k"], product)
  (got,) = interpret_terms(REAL, [root], inputs, size)
  want = np.einsum(f"ak,{weights},k->{''.join(got.axes)}", x.data[0], y.data[0], z.data[0])
  assert np.allclose(got.data[0], want)


def test_a_term_refuses_an_input_over_other_axes():
  with pytest.raises(ValueError, match="the term reads"):
    interpret_terms(REAL, [term.input_("x", "ab")], {"x": over("ac", 2, 2)}, {})


def test_steps_run_at_other_extents_and_know_ones_by_position():
  root = Constant(Fraction(1, 2), Fraction(1, 2))
  steps = (
    Step("reshape", ("x",), Tensor("a", DType.F32, (64, 1, 32)), (64, 1, 32)),
    Step("transpose", ("a",), Tensor("b", DType.F32, (32, 64, 1)), (2, 0, 1)),
    Step("mul", ("b", root), Tensor("c", DType.F32, (32, 64, 1))),
    Step("rmax", ("c",), Tensor("d", DType.F32, (1, 64, 1)), (0,)),
  )  # fmt: skip
  x = replace(ROWS.inputs[0], tensor=Tensor("x", DType.F32, (1, 64, 32)))
  region = replace(ROWS, inputs=(x,), steps=steps)
  data = RNG.standard_normal((1, 5, 3))
  env = interpret_steps(region, {"x": data}, rounded=False)
  assert env["a"].shape == (5, 1, 3) and env["c"].shape == (3, 5, 1)
  assert np.allclose(env["d"][0, :, 0], data[0].max(axis=1) / np.sqrt(2))


def test_dimensions_that_go_together_are_one_axis():
  """Recorded as 4 x 16 x 32 and run as 1 x 5 x 3."""
  i0 = replace(ROWS.inputs[0], tensor=Tensor("x", DType.F32, (4, 16, 32)), dims=(("a0",), ("a0",), ("a1",)))
  steps = (
    Step("reshape", ("x",), Tensor("a", DType.F32, (4, 1, 16, 32)), (4, 1, 16, 32)),
    Step("mean", ("a",), Tensor("b", DType.F32, (1, 1, 1, 32)), (0, 1, 2)),
  )
  region = replace(ROWS, inputs=(i0,), steps=steps)
  data = RNG.standard_normal((5, 3))
  env = interpret_steps(region, {"x": positional(i0, data)}, rounded=False)
  assert env["a"].shape == (1, 1, 5, 3)
  assert np.allclose(env["b"][0, 0, 0], data.mean(axis=0))
  assert by_axes(i0, data[None], {"a0": 5, "a1": 3}).shape == (5, 3)


def test_rounded_steps_overflow_where_onnx_would():
  square = Step("square", ("x",), Tensor("y", DType.F16, (1,)))
  region = replace(ROWS, steps=(square,))
  assert interpret_steps(region, {"x": np.array([300.0])}, rounded=True)["y"] == np.inf
  assert interpret_steps(region, {"x": np.array([300.0])}, rounded=False)["y"] == 90000.0
