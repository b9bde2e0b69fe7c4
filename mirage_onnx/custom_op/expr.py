"""Integer expressions over input dims: the only arithmetic a launch plan can do.

An expression is written in reverse Polish notation, tokens joined by commas::

    d0.0,16,ceildiv        ceil(dim 0 of input 0 / 16)

Tokens are decimal int64 numbers, ``d<input>.<dim>``, and the operators of ``OPERATORS``.
Arithmetic is checked: overflow of int64 and a divisor below 1 are errors.
``cpp/ort_custom_ops/expr.cc`` is the same definition in C++; the tests compare the two, messages
included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_INPUTS = 64
MAX_RANK = 8
MAX_TOKENS = 128
MAX_STACK = 16

_INTEGER = re.compile(r"(?:0|-?[1-9][0-9]*)\Z")
_DIM = re.compile(r"d([^.]*)\.(.*)\Z", re.DOTALL)


def _divide(a: int, b: int) -> int:
  if b < 1:
    raise ArithmeticError("divisor below 1")
  return -(-a // b)


def _modulo(a: int, b: int) -> int:
  if b < 1:
    raise ArithmeticError("divisor below 1")
  return a % b


OPERATORS: dict[str, Callable[[int, int], int]] = {
  "+": lambda a, b: a + b,
  "-": lambda a, b: a - b,
  "*": lambda a, b: a * b,
  "ceildiv": _divide,
  "mod": _modulo,
  "min": min,
  "max": max,
  "eq": lambda a, b: int(a == b),
  "le": lambda a, b: int(a <= b),
  "and": lambda a, b: int(a != 0 and b != 0),
}


class ExprError(ValueError):
  """The text is no expression, or its evaluation failed; the message is the reason."""


def parse_int(text: str) -> int:
  """The canonical decimal int64 in ``text``.

  Raises:
      ExprError: it is not one (leading zero, ``-0``, sign, out of range, other characters).
  """
  # The length check keeps int() away from megabytes of digits in a hostile plan.
  if len(text) <= 20 and _INTEGER.match(text) and INT64_MIN <= int(text) <= INT64_MAX:
    return int(text)
  raise ExprError("not a canonical int64")


@dataclass(frozen=True, slots=True)
class Expr:
  """One expression. Build it with ``const``, ``dim`` and the methods, or from its text."""

  text: str

  @property
  def tokens(self) -> tuple[str, ...]:
    """The tokens in order of evaluation."""
    return tuple(self.text.split(","))

  @property
  def constant(self) -> int | None:
    """The value when the expression is a single number."""
    try:
      return parse_int(self.text)
    except ExprError:
      return None

  def _join(self, other: Expr | int, operator: str) -> Expr:
    right = other if isinstance(other, Expr) else const(other)
    return Expr(f"{self.text},{right.text},{operator}")

  def __add__(self, other: Expr | int) -> Expr:
    return self._join(other, "+")

  def __sub__(self, other: Expr | int) -> Expr:
    return self._join(other, "-")

  def __mul__(self, other: Expr | int) -> Expr:
    return self._join(other, "*")

  def ceildiv(self, other: Expr | int) -> Expr:
    """ceil(self / other); other must be >= 1 when evaluated."""
    return self._join(other, "ceildiv")

  def mod(self, other: Expr | int) -> Expr:
    """Self modulo other, in 0..other-1; other must be >= 1 when evaluated."""
    return self._join(other, "mod")

  def min(self, other: Expr | int) -> Expr:
    """The smaller of the two."""
    return self._join(other, "min")

  def max(self, other: Expr | int) -> Expr:
    """The larger of the two."""
    return self._join(other, "max")

  def eq(self, other: Expr | int) -> Expr:
    """1 when equal, else 0."""
    return self._join(other, "eq")

  def le(self, other: Expr | int) -> Expr:
    """1 when self <= other, else 0."""
    return self._join(other, "le")

  def and_(self, other: Expr | int) -> Expr:
    """1 when both are nonzero, else 0."""
    return self._join(other, "and")

  def check(self, ranks: Sequence[int]) -> None:
    """Checks the text against inputs of these ranks.

    Raises:
        ExprError: with the first reason, as the C++ parser words it.
    """
    depth = 0
    for count, token in enumerate(self.tokens, 1):
      operator = token in OPERATORS
      if not operator:
        _check_operand(token, ranks)
      if count > MAX_TOKENS:
        raise ExprError("expression of more than 128 tokens")
      if operator and depth < 2:
        raise ExprError("operator without two operands")
      depth += -1 if operator else 1
      if depth > MAX_STACK:
        raise ExprError("expression deeper than 16")
    if depth != 1:
      raise ExprError(f"expression leaves {depth} values, not 1")

  def eval(self, shapes: Sequence[Sequence[int]]) -> int:
    """The value at these input shapes; the expression must have passed ``check``.

    Raises:
        ExprError: overflow of int64, or a divisor below 1.
    """
    stack: list[int] = []
    for token in self.tokens:
      if token in OPERATORS:
        right, left = stack.pop(), stack.pop()
        try:
          value = OPERATORS[token](left, right)
        except ArithmeticError as error:
          raise ExprError(str(error)) from None
        if not INT64_MIN <= value <= INT64_MAX:
          raise ExprError("overflow")
        stack.append(value)
      elif token.startswith("d"):
        source, axis = token[1:].split(".")
        stack.append(shapes[int(source)][int(axis)])
      else:
        stack.append(int(token))
    return stack[0]


def _check_operand(token: str, ranks: Sequence[int]) -> None:
  shown = f"'{token[:32]}'"
  try:
    if not token.startswith("d"):
      parse_int(token)
      return
    match = _DIM.match(token)
    if match is None:
      raise ExprError("no dot")
    source, axis = parse_int(match[1]), parse_int(match[2])
    if source < 0 or axis < 0:
      raise ExprError("negative")
  except ExprError:
    raise ExprError(f"bad token {shown}") from None
  if source >= len(ranks) or axis >= ranks[source]:
    raise ExprError(f"{shown} is not a dim of an input")


def const(value: int) -> Expr:
  """A number."""
  return Expr(str(value))


def dim(source: int, axis: int) -> Expr:
  """Dim ``axis`` of the plan's input ``source`` (the bundle is not counted)."""
  return Expr(f"d{source}.{axis}")
