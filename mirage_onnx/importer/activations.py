"""Activation functions that are more than one elementwise function, computed in fp32."""

import math
from collections.abc import Callable
from fractions import Fraction

from mirage_onnx.importer.context import Context, const
from mirage_onnx.ir.program import Tensor

HALF = Fraction(1, 2)
#: No Fraction and no root of one: the double nearest to sqrt(2/pi).
SQRT_2_OVER_PI = Fraction(math.sqrt(2 / math.pi))
#: Coefficient of the cube in the tanh approximation of Gelu.
CUBE = Fraction(44715, 10**6)


def activation(f: Callable[[Context, Tensor], Tensor]) -> Callable[[Context], None]:
  """A function of one tensor."""

  def lower(c: Context) -> None:
    c.finish(f(c, c.widen(c.tensor(0))))

  return lower


def biased(f: Callable[[Context, Tensor], Tensor]) -> Callable[[Context], None]:
  """com.microsoft: the function of x + bias, where there is a bias."""

  def lower(c: Context) -> None:
    x = c.widen(c.tensor(0))
    c.finish(f(c, c.elementwise("add", x, c.widened(1)) if c.has(1) else x))

  return lower


def gelu(c: Context) -> None:
  approximate = c.attribute("approximate", "none")
  functions = {"none": gelu_erf, "tanh": gelu_tanh}
  if approximate not in functions:
    raise c.reject(f"approximate is {approximate!r}")
  c.finish(functions[approximate](c, c.widen(c.tensor(0))))


def gelu_erf(c: Context, x: Tensor) -> Tensor:
  """x/2 (1 + erf(x / sqrt(2)))."""
  inner = c.elementwise("erf", c.elementwise("mul", x, const(HALF, HALF)))
  return _half_times_one_plus(c, x, inner)


def gelu_tanh(c: Context, x: Tensor) -> Tensor:
  """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
  cubed = c.elementwise("mul", c.power(x, const(3)), const(CUBE))
  inner = c.elementwise("mul", c.elementwise("add", x, cubed), const(SQRT_2_OVER_PI))
  return _half_times_one_plus(c, x, c.elementwise("tanh", inner))


def _half_times_one_plus(c: Context, x: Tensor, inner: Tensor) -> Tensor:
  one_plus = c.elementwise("add", inner, const(1))
  return c.elementwise("mul", c.elementwise("mul", x, const(HALF)), one_plus)


def swish(default: float) -> Callable[[Context, Tensor], Tensor]:
  """``x sigmoid(alpha x)``."""

  def lower(c: Context, x: Tensor) -> Tensor:
    alpha = c.fraction("alpha", default)
    scaled = x if alpha == 1 else c.elementwise("mul", x, const(alpha))
    return c.elementwise("mul", x, c.elementwise("sigmoid", scaled))

  return lower


def hard_sigmoid(c: Context, x: Tensor) -> Tensor:
  """max(0, min(1, alpha x + beta))."""
  return _hard_sigmoid(c, x, c.fraction("alpha", 0.2), c.fraction("beta", 0.5))


def hard_swish(c: Context, x: Tensor) -> Tensor:
  """``x max(0, min(1, x/6 + 1/2))``."""
  return c.elementwise("mul", x, _hard_sigmoid(c, x, Fraction(1, 6), HALF))


def _hard_sigmoid(c: Context, x: Tensor, alpha: Fraction, beta: Fraction) -> Tensor:
  line = c.elementwise("add", c.elementwise("mul", x, const(alpha)), const(beta))
  return c.elementwise("max", c.elementwise("min", line, const(1)), const(0))


def softplus(c: Context, x: Tensor) -> Tensor:
  """log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)), which never overflows."""
  decay = c.elementwise("exp", c.elementwise("neg", c.elementwise("abs", x)))
  tail = c.elementwise("log", c.elementwise("add", decay, const(1)))
  return c.elementwise("add", c.elementwise("relu", x), tail)


def mish(c: Context, x: Tensor) -> Tensor:
  """``x tanh(log(1 + exp(x)))``."""
  return c.elementwise("mul", x, c.elementwise("tanh", softplus(c, x)))


def softsign(c: Context, x: Tensor) -> Tensor:
  """``x / (1 + |x|)``."""
  return c.elementwise("div", x, c.elementwise("add", c.elementwise("abs", x), const(1)))


def elu(c: Context, x: Tensor) -> Tensor:
  """max(x, 0) + alpha (exp(min(x, 0)) - 1)."""
  return _elu(c, x, c.fraction("alpha", 1.0))


def selu(c: Context, x: Tensor) -> Tensor:
  """``gamma (max(x, 0) + alpha (exp(min(x, 0)) - 1))``."""
  alpha = c.fraction("alpha", 1.67326319217681884765625)
  gamma = c.fraction("gamma", 1.05070102214813232421875)
  return c.elementwise("mul", _elu(c, x, alpha), const(gamma))


def _elu(c: Context, x: Tensor, alpha: Fraction) -> Tensor:
  below = c.elementwise("exp", c.elementwise("min", x, const(0)))
  scaled = c.elementwise("mul", c.elementwise("sub", below, const(1)), const(alpha))
  return c.elementwise("add", c.elementwise("relu", x), scaled)
