"""Terms as people write them: ``x · rsqrt(s / 768 + 1e-05)`` for ``mul(x, pow[-1/2](add(...)))``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import prod

from mirage_onnx.ir import term as t
from mirage_onnx.ir.term import Term

#: How tightly a text binds: what is weaker is put in parentheses.
_SUM, _PRODUCT, _POWER, _ATOM = 1, 2, 3, 4
_SIGNS = {"less": " < ", "less_equal": " ≤ ", "equal": " = "}
_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")

#: What an input is called, by its name in the term.
Name = Callable[[str], str]


def infix(term: Term, name: Name = str, extents: Mapping[str, int] | None = None) -> str:
  """``extents``: the number that the extent of axes is shown as; without, ``|a0|``."""
  return _text(term, name, extents or {})[0]


def _text(term: Term, name: Name, extents: Mapping[str, int]) -> tuple[str, int]:
  def inner(x: Term, least: int) -> str:
    text, binds = _text(x, name, extents)
    return text if binds >= least else f"({text})"

  def called(function: str) -> tuple[str, int]:
    return f"{function}({', '.join(inner(a, 0) for a in term.args)})", _ATOM

  if term.op == t.INPUT:
    return name(str(term.attr)), _ATOM
  if term.op == t.CONST:
    return _number(term.attr)
  if term.op == t.EXTENT:
    assert isinstance(term.attr, tuple)
    known = all(a in extents for a in term.attr)
    return (str(prod(extents[a] for a in term.attr)) if known else f"|{','.join(term.attr)}|"), _ATOM
  if term.op in t.REDUCTIONS:
    assert isinstance(term.attr, tuple)
    return called(f"{'max' if term.op == t.MAXR else 'Σ'}[{','.join(term.attr)}]")
  if term.op == t.ADD:
    parts = [(negated, True) if (negated := _negated(a)) is not None else (a, False) for a in term.args]
    parts.sort(key=lambda p: p[1])  # what is subtracted comes last
    text = ""
    for part, is_minus in parts:
      sign = ("−" if is_minus else "") if not text else " − " if is_minus else " + "
      text += sign + inner(part, _PRODUCT if is_minus else _SUM)
    return text, _SUM
  if term.op == t.MUL:
    return _product(term, inner)
  if term.op == t.POW:
    return _power(term, inner)
  if term.op in _SIGNS:
    x, y = (inner(a, _SUM) for a in term.args)
    return f"{x}{_SIGNS[term.op]}{y}", 0
  return called(term.op)


def _number(value: t.Attr) -> tuple[str, int]:
  if not isinstance(value, Fraction):
    return ("π" if value == "pi" else str(value)), _ATOM
  if value.denominator == 1 and abs(value) < 10**6:
    text = str(value)
  elif value.denominator <= 16 and abs(value.numerator) < 100:
    return str(value).replace("-", "−"), _PRODUCT
  else:
    text = f"{float(value):.4g}"
  return text.replace("-", "−", 1) if value < 0 else text, _SUM if value < 0 else _ATOM


def _negated(x: Term) -> Term | None:
  """``-x`` where that has no sign any more."""
  first = t.rational(x.args[0] if x.op == t.MUL else x)
  return t.mul(t.const(-1), x) if first is not None and first < 0 else None


def _product(term: Term, inner: Callable[[Term, int], str]) -> tuple[str, int]:
  if (negated := _negated(term)) is not None:
    return f"−{inner(negated, _PRODUCT)}", _SUM
  over: list[str] = []
  under: list[str] = []
  for a in term.args:
    if a.op == t.POW and isinstance(a.attr, Fraction) and a.attr < 0 and a.attr != Fraction(-1, 2):
      under.append(inner(t.power(a.args[0], -a.attr), _POWER))
    else:
      over.append(inner(a, _POWER if over else _PRODUCT))  # a number is the first factor
  text = " · ".join(over) or "1"
  if under:
    text += " / " + (under[0] if len(under) == 1 else f"({' · '.join(under)})")
  return text, _PRODUCT


def _power(term: Term, inner: Callable[[Term, int], str]) -> tuple[str, int]:
  (x,), exponent = term.args, term.attr
  assert isinstance(exponent, Fraction)
  if exponent in (Fraction(1, 2), Fraction(-1, 2)):
    return f"{'sqrt' if exponent > 0 else 'rsqrt'}({inner(x, 0)})", _ATOM
  if exponent == -1:
    return f"1 / {inner(x, _POWER)}", _PRODUCT
  if exponent.denominator == 1:
    return f"{inner(x, _ATOM)}{str(exponent).translate(_RAISED)}", _POWER
  return f"{inner(x, _ATOM)}^({exponent})", _POWER
