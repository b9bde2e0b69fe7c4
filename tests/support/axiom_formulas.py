"""The formulas of the axiom table (``axiom_parser``), without a word of the superoptimizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

#: Reductions of one argument, reductions of each part, and sums rescaled to a running maximum.
WHOLE, PARTS, SCALED = ("sum", "rmax"), ("psum", "pmax", "pscaled"), ("scaled", "pscaled")
BINDERS = frozenset({*WHOLE, *PARTS, *SCALED})


class FormulaError(ValueError):
  """The text is no formula of the table, or says something that has no value."""


@dataclass(frozen=True)
class Formula:
  """``op`` is ``var``, ``const``, ``add``, ``mul``, ``pow``, ``run``, a binder or a function.

  ``axes`` are those that a binder takes away; ``value`` is the name of a variable, a constant, or
  the exponent of a power, which may be a name to be chosen.
  """

  op: str
  args: tuple[Formula, ...] = ()
  axes: tuple[str, ...] = ()
  value: str | Fraction | None = None

  def __repr__(self):
    inner = ("; " if self.op in SCALED else ", ").join(map(repr, self.args))
    if self.op in ("var", "const"):
      return str(self.value)
    if self.op in ("add", "mul"):
      return f"({(' + ' if self.op == 'add' else ' * ').join(map(repr, self.args))})"
    index = ",".join(self.axes) if self.axes else str(self.value) if self.op == "pow" else ""
    return f"{self.op}{index and f'[{index}]'}({inner})"

  def _repr_pretty_(self, printer, cycle):
    printer.text(repr(self))

  def walk(self):
    yield self
    for a in self.args:
      yield from a.walk()

  def map(self, change):
    return change(replace(self, args=tuple(a.map(change) for a in self.args)))

  @property
  def variables(self):
    return tuple(sorted({str(f.value) for f in self.walk() if f.op == "var"}))

  @property
  def names(self):
    return tuple(sorted({a.rstrip("'") for f in self.walk() for a in f.axes}))

  @property
  def exponents(self):
    found = {f.value for f in self.walk() if f.op == "pow" and isinstance(f.value, str)}
    return tuple(sorted(map(str, found)))


MINUS = Formula("const", value=Fraction(-1))


def part(axis):
  return f"{axis}'"


def substitute(f, values):
  return f.map(lambda n: values.get(str(n.value), n) if n.op == "var" else n)


def renamed(axis, names):
  bare = axis.rstrip("'")
  return names.get(bare, bare) + axis[len(bare) :]


def rename(f, names):
  return f.map(lambda n: replace(n, axes=tuple(renamed(a, names) for a in n.axes)))


def with_exponents(f, values):
  return f.map(lambda n: replace(n, value=values[n.value]) if n.op == "pow" and n.value in values else n)


def is_factor(f, name):
  """Whether the variable is nothing but a factor of products in ``f``, and never negated."""
  variable = Formula("var", value=name)
  above = [n for n in f.walk() if variable in n.args]
  return bool(above) and all(n.op == "mul" and MINUS not in n.args for n in above)


def without_factor(f, name):
  """``f`` where the variable, a factor wherever it stands, is left out."""

  def change(n):
    rest = tuple(a for a in n.args if not (a.op == "var" and a.value == name))
    if n.op != "mul" or len(rest) == len(n.args):
      return n
    return rest[0] if len(rest) == 1 else replace(n, args=rest)

  return f.map(change)
