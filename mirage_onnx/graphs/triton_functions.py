"""The elementwise functions of ``ir.functions`` in Triton, on fp32 values, and numbers as its literals."""

from fractions import Fraction
from math import isfinite

import numpy as np

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.functions import IRRATIONAL

_NAN = "propagate_nan=tl.PropagateNan.ALL"
#: Function -> its text; {0}, {1}, {2} are the arguments. Maxima keep NaN, as ONNX Runtime's do.
FUNCTIONS = {
  "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "neg": "-{0}",
  "recip": "1.0 / {0}", "square": "{0} * {0}", "sqrt": "tl.sqrt({0})", "rsqrt": "tl.rsqrt({0})",
  "sigmoid": "1.0 / (1.0 + tl.exp(-{0}))", "relu": f"tl.maximum({{0}}, 0.0, {_NAN})",
  "exp": "tl.exp({0})", "log": "tl.log({0})", "erf": "tl.erf({0})", "tanh": "tanh({0})",
  "abs": "tl.abs({0})", "sin": "tl.sin({0})", "cos": "tl.cos({0})",
  "max": f"tl.maximum({{0}}, {{1}}, {_NAN})", "min": f"tl.minimum({{0}}, {{1}}, {_NAN})",
  "less": "tl.where({0} < {1}, 1.0, 0.0)", "less_equal": "tl.where({0} <= {1}, 1.0, 0.0)",
  "equal": "tl.where({0} == {1}, 1.0, 0.0)", "select": "tl.where({0} != 0.0, {1}, {2})",
}  # fmt: skip

#: Triton has none. Near 0 the quotient would cancel: there its series, off by less than 1e-9 of the value.
TANH = """\
@triton.jit
def tanh(x):
  e = tl.exp(-2.0 * tl.abs(x))
  far = (1.0 - e) / (1.0 + e)
  near = tl.abs(x) * (1.0 - x * x * (1.0 / 3.0 - x * x * (2.0 / 15.0)))
  size = tl.where(tl.abs(x) < 0.04, near, far)
  return tl.where(x < 0.0, -size, size)
"""


def power(x: str, exponent: Fraction) -> str:
  """``x`` to a half or whole power up to 8.

  Raises:
      RejectionError: TRITON_UNSUPPORTED for others.
  """
  if exponent.denominator > 2 or abs(exponent) > 8:
    raise RejectionError("TRITON_UNSUPPORTED", f"a power of {exponent}")
  whole, half = divmod(abs(exponent), 1)
  factors = [x] * int(whole) + [f"tl.sqrt({x})"] * bool(half)
  product = " * ".join(factors) or "1.0"
  return f"1.0 / ({product})" if exponent < 0 else product


def literal(value: Fraction | str) -> str:
  """A number as an fp32 literal, rounded once.

  Raises:
      RejectionError: TRITON_UNSUPPORTED for what fp32 does not hold.
  """
  if isinstance(value, str) and value not in IRRATIONAL:
    raise RejectionError("TRITON_UNSUPPORTED", f"no number for the constant {value!r}")
  with np.errstate(over="ignore"):
    number = float(np.float32(IRRATIONAL[value] if isinstance(value, str) else float(value)))
  if not isfinite(number):
    raise RejectionError("TRITON_UNSUPPORTED", f"the constant {value} is beyond fp32")
  return repr(number)
