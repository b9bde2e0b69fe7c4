"""ONNX operators that are one elementwise function, or a chain of one."""

import math
from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np

from mirage_onnx.importer.context import Context, Value, const
from mirage_onnx.ir.functions import ELEMENTWISE
from mirage_onnx.ir.program import Constant, Tensor

#: ONNX operator -> function of ``ir.functions``.
FUNCTIONS = {f.onnx: op for op, f in ELEMENTWISE.items() if f.onnx}
#: Functions of factors.
FACTORS = frozenset({"mul", "div"})
#: Variadic ONNX operator -> function that chains its operands.
CHAINS = {"Max": "max", "Min": "min", "Sum": "add"}
_LARGEST = float(np.finfo(np.float32).max)
_BOUNDS = ((1, "max", "the lower bound", -1), (2, "min", "the upper bound", 1))


def operands(c: Context, read: Callable[[int], Value] | None = None) -> list[Value]:
  """All operands, as ``read`` has them; where every one is a constant the first stays a tensor."""
  values = [(read or c.operand)(i) for i in range(len(c.node.input))]
  return values if any(isinstance(v, Tensor) for v in values) else [c.tensor(0), *values[1:]]


def function(op: str) -> Callable[[Context], None]:
  """A number that may stand for another one is a factor: what is added or compared is what the file has."""

  def lower(c: Context) -> None:
    c.finish(c.elementwise(op, *operands(c, None if op in FACTORS else c.as_stored)))

  return lower


def chain(op: str) -> Callable[[Context], None]:
  """op(a, b, c) = op(op(a, b), c)."""

  def lower(c: Context) -> None:
    # A function of two constants has no step: begin with a tensor.
    values = sorted(operands(c, c.as_stored), key=lambda v: isinstance(v, Constant))
    total = values[0]
    assert isinstance(total, Tensor)
    for v in values[1:]:
      total = c.elementwise(op, total, v)
    c.finish(total)

  return lower


def power(c: Context) -> None:
  """The result has the type of the base; the exponent is taken as stored, never as an atom."""
  name = c.node.input[1]
  exponent = Constant(c.number(1, "the exponent"), source=name)
  c.finish(c.power(c.tensor(0), exponent))


def clip(c: Context) -> None:
  """min(max(x, low), high): the upper bound wins where the bounds cross.

  A bound that a run gives is a tensor of one element; before opset 11 bounds are attributes. One that is not
  there is the end of the type, which infinity becomes.
  """
  x = c.tensor(0)
  if c.opset < 11:
    # The defaults are the ends of fp32; beyond them is no bound.
    for name, op, none in (("min", "max", -_LARGEST), ("max", "min", _LARGEST)):
      bound = c.attribute(name, none)
      if not math.isinf(bound) or (bound > 0) == (none < 0):
        x = c.elementwise(op, x, const(c.fraction(name, none)))
    c.finish(x)
    return
  for position, op, what, sign in _BOUNDS:
    if not c.has(position):
      if x.dtype is not None and x.dtype.is_float:
        x = c.elementwise(op, x, const(sign * Fraction(float(ml_dtypes.finfo(x.dtype.numpy).max))))
    else:
      if c.known(position) is not None:
        c.number(position, what)
      elif c.tensor(position).shape != ():
        raise c.reject(f"{what} {c.tensor(position).name!r} is no scalar")
      x = c.elementwise(op, x, c.as_stored(position))
  c.finish(x)


def identity(c: Context) -> None:
  c.finish(c.tensor(0))


def dropout(c: Context) -> None:
  """The identity outside training."""
  if c.has(2) and c.flag(2) is not False:
    raise c.reject("training_mode is not the constant false")
  if c.uses(1):
    raise c.reject("the mask output is used")
  c.finish(c.tensor(0))


def leaky_relu(c: Context) -> None:
  """max(x, a x) for 0 < a <= 1, else max(x, 0) + a min(x, 0)."""
  x, alpha = c.widen(c.tensor(0)), Constant(c.fraction("alpha", 0.01))
  if alpha.base == 0:
    raise c.reject("alpha is 0, which makes NaN of -inf")
  if 0 < alpha.base <= 1:  # type: ignore[operator]
    c.finish(c.elementwise("max", x, c.elementwise("mul", x, alpha)))
  else:
    c.finish(_two_sided(c, x, alpha))


def prelu(c: Context) -> None:
  """max(x, 0) + slope min(x, 0)."""
  c.finish(_two_sided(c, c.widen(c.tensor(0)), c.widened(1)))


def _two_sided(c: Context, x: Tensor, slope: Value) -> Tensor:
  below = c.elementwise("min", x, const(0))
  return c.elementwise("add", c.elementwise("relu", x), c.elementwise("mul", below, slope))
