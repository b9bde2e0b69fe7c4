"""Elementwise functions as CUDA expressions on fp32 values."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from mirage_onnx.codegen.loads import rounded
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.functions import ELEMENTWISE, IRRATIONAL, TIMES_NORMAL
from mirage_onnx.ir.ugraph import BlockOp
from mirage_onnx.lower.constant import RunCount, constant

#: Operation -> its expression of operands.
_EXPRESSIONS = {op: f.cuda for op, f in ELEMENTWISE.items()} | {
  "cast": "{0}", TIMES_NORMAL: f"{TIMES_NORMAL}({{0}})",
}  # fmt: skip

#: The largest integer exponent that becomes multiplications.
_LARGEST_POWER = 32


def literal(value: Fraction | str | int | RunCount) -> str:
  """A constant as an fp32 literal, rounded once.

  Raises:
      RejectionError: EMIT_UNSUPPORTED, beyond fp32 or unknown.
  """
  if isinstance(value, RunCount):
    # In fp32: the factors are, and their product could be too large for an int.
    return "({})".format(" * ".join(f"static_cast<float>({c})" for c in value.counts))
  if isinstance(value, str):
    if value not in IRRATIONAL:
      raise RejectionError("EMIT_UNSUPPORTED", f"no number for the constant {value!r}")
    rounded = np.float32(IRRATIONAL[value])
  else:
    with np.errstate(over="ignore"):
      rounded = np.float32(_as_float(value))
  if not np.isfinite(rounded):
    raise RejectionError("EMIT_UNSUPPORTED", f"the constant {value} is beyond fp32")
  text = np.format_float_scientific(rounded, unique=True, trim="0")
  if 1e-4 <= abs(rounded) < 1e7 or rounded == 0:
    text = np.format_float_positional(rounded, unique=True, trim="0")
  return f"({text}f)" if text.startswith("-") else f"{text}f"


def _as_float(value: Fraction | int) -> float:
  try:
    return float(value)
  except OverflowError:
    return float("inf")


def expression(op: str, args: list[str], value: Fraction | str | None = None) -> str:
  """``op`` applied to operands that are names, array elements or literals.

  Raises:
      RejectionError: EMIT_UNSUPPORTED, no rule for ``op``.
  """
  if op == "powr":
    return _power(args[0], value)
  if op not in _EXPRESSIONS:
    raise RejectionError("EMIT_UNSUPPORTED", f"no expression for the operation {op!r}")
  return _EXPRESSIONS[op].format(*args)


def _power(x: str, exponent: Fraction | str | None) -> str:
  if not isinstance(exponent, Fraction):
    raise RejectionError("EMIT_UNSUPPORTED", f"{exponent!r} is not a rational exponent")
  if exponent == Fraction(1, 2):
    return f"sqrtf({x})"
  if exponent == Fraction(-1, 2):
    return f"ptx::rsqrt({x})"
  if exponent == 0:
    return "1.0f"
  if exponent.denominator == 1 and abs(exponent) <= _LARGEST_POWER:
    product = _product(x, abs(int(exponent)))
    return product if exponent > 0 else f"ptx::rcp({product})"
  return f"powf({x}, {literal(exponent)})"


def _product(x: str, exponent: int) -> str:
  """x^5 -> square(square(x)) * x."""
  if exponent == 1:
    return x
  half = f"square({_product(x, exponent // 2)})"
  return half if exponent % 2 == 0 else f"{half} * {x}"


def evaluate(
  ops: Sequence[BlockOp],
  op: BlockOp,
  operands: list[str],
  extents: Mapping[str, int],
  *,
  narrow: bool = True,
) -> str:
  """The value of an elementwise op, const or extent, rounded to its type (unless not ``narrow``).

  A division by a constant is a multiplication by its reciprocal, rounded once: within 1 ulp.
  """
  number = constant(op, extents)
  if number is not None:
    text = literal(number)
  elif op.op == "div" and isinstance(divisor := constant(ops[op.args[1]], extents), Fraction) and divisor:
    text = f"{operands[0]} * {literal(1 / divisor)}"
  else:
    text = expression(op.op, operands, op.value)
  return rounded(text, op.dtype) if narrow else text
