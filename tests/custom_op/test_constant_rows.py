"""A norm of rows of equal numbers leaves the rounding of its mean: right kernels pass, wrong means do not."""

import numpy as np
import pytest
from small_models import Net

from mirage_onnx.custom_op.compare import compare_models

ROWS, WIDTH, EPSILON = 17, 192, 1e-5


def named(net):
  net.nodes[-1].output[0] = "y"
  return net.model("y").SerializeToString()


def norm(share=None):
  """A sum and its norm; ``share``: with a mean that is the sum times this, else in one node."""
  net = Net(np.float32, seed=3)
  x, y = net.input(ROWS, WIDTH), net.input(ROWS, WIDTH)
  gamma, beta = (net.constant(net.rng.standard_normal(WIDTH) * s + o) for s, o in ((0.1, 1.0), (0.02, 0.0)))
  t = net.Add(x, y)
  if share is None:
    net.LayerNormalization(t, gamma, beta, axis=-1, epsilon=EPSILON)
    return named(net)
  mean = net.Mul(net.ReduceSum(t, [-1], keepdims=1), float(np.float32(share)))
  off = net.Sub(t, mean)
  var = net.ReduceMean(net.Mul(off, off), [-1], keepdims=1)
  z = net.Div(off, net.Sqrt(net.Add(var, EPSILON)))
  net.Add(net.Mul(z, gamma), beta)
  return named(net)


@pytest.mark.parametrize("units", [-1, 0, 1])
def test_a_mean_that_is_rounded_otherwise(units):
  """The original is exact here by luck: its sum of so many equal numbers is."""
  found = compare_models(norm(), norm((1 + units * 2.0**-23) / WIDTH))
  assert "constant_rows" in found.inputs and found.passed


@pytest.mark.parametrize("off", [1e-5, -1e-5, 1e-3])
def test_a_wrong_mean(off):
  """Normal inputs do not show it: their mean is small."""
  found = compare_models(norm(), norm((1 + off) / WIDTH))
  assert not found.passed and (found.outputs[0].worst == "constant_rows" or off == 1e-3)
