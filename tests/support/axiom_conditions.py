"""Conditions of the axiom table: plain English clauses, read as predicates of an instance.

An instance of a row says which axes each variable varies over, and which names mean the same axis.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from axiom_formulas import PARTS, SCALED, Formula, FormulaError, part, rename, renamed
from axiom_parser import parse

Axes = frozenset[str]


def axes_of(f, given):
  """The axes that ``f`` varies over; FormulaError where one is taken away that is not there."""
  args = [axes_of(a, given) for a in f.args]
  if f.op == "var":
    return given[str(f.value)]
  found = frozenset[str]().union(*args)
  if not f.axes:
    return found
  gone = frozenset(f.axes)
  if not gone <= args[0] or len(gone) < len(f.axes):
    raise FormulaError(f"{f.op} over {f.axes} of a value over {sorted(args[0])}")
  parts = frozenset(map(part, f.axes)) if f.op in PARTS else frozenset[str]()
  if any(parts & given[v] for v in f.variables):
    raise FormulaError(f"{f.op} over {f.axes} of what is over {sorted(parts)} already")
  if f.op in SCALED and gone & args[1]:
    raise FormulaError(f"a maximum that varies over the loop's {f.axes}")
  return found - gone | parts


@dataclass(frozen=True)
class Instance:
  """Two sides over axes that are chosen."""

  lhs: Formula
  rhs: Formula
  #: Variable -> the axes it varies over; of a variable that the condition defines, too.
  axes: Mapping[str, Axes]
  #: Names of axes of the row -> the axes that they mean.
  means: Mapping[str, str]

  def over(self, name):
    """The axes of a variable; none of a factor that is left out."""
    return self.axes.get(name, frozenset())

  def sides(self):
    found = []
    for f in (self.lhs, self.rhs):
      try:
        found.append(axes_of(f, self.axes))
      except FormulaError:
        found.append(None)
    return found[0], found[1]

  def renamed(self, names):
    axes = {v: frozenset(renamed(a, names) for a in found) for v, found in self.axes.items()}
    means = {k: names[a] for k, a in self.means.items()}
    return Instance(rename(self.lhs, names), rename(self.rhs, names), axes, means)


Holds = Callable[[Instance], bool]


@dataclass(frozen=True)
class Clause:
  """One clause of a condition: what it asks, or the variable that it defines."""

  text: str
  holds: Holds
  defines: tuple[str, Formula] | None = None


def _membership(axis, negated, names):
  wanted = re.split(r" and | or ", names)
  if negated:
    return lambda i: all(renamed(axis, i.means) not in i.over(v) for v in wanted)
  return lambda i: all(renamed(axis, i.means) in i.over(v) for v in wanted)


def _operands(asks):
  """What is asked of the axes of the two operands that the rhs contracts."""

  def holds(i):
    for f in i.rhs.walk():
      if f.op == "sum" and f.args[0].op == "mul" and len(f.args[0].args) == 2:
        first, second = (axes_of(a, i.axes) for a in f.args[0].args)
        return asks(i, first, second)
    raise FormulaError(f"{i.rhs} has no contraction of two operands")

  return holds


#: Plain English -> what it asks of an instance.
CLAUSES = (
  (r"(\w+'*) (not )?in (\w+(?:(?: and | or )\w+)*)", _membership),
  (r"(\w+) != (\w+)", lambda j, k: lambda i: i.means[j] != i.means[k]),
  (r"(\w+) and (\w+) vary over different axes", lambda x, y: lambda i: i.over(x) != i.over(y)),
  (r"(\w+) varies over axes of (\w+) only", lambda x, y: lambda i: i.over(x) <= i.over(y)),
  (r"(\w+) and (\w+) vary over the same axes", lambda x, y: lambda i: i.over(x) == i.over(y)),
  (r"operands share (\w+) only", lambda k: _operands(lambda i, x, y: x & y == {i.means[k]})),
  (r"operands share (\w+)", lambda k: _operands(lambda i, x, y: i.means[k] in x & y)),
  (r"operands differ in an axis", lambda: _operands(lambda i, x, y: x != y)),
  (
    r"operands have at most two axes",
    lambda: _operands(lambda i, x, y: max(len(x), len(y)) <= 2),
  ),
)


def read_clause(text):
  """What a clause asks; FormulaError where no line of ``CLAUSES`` reads it."""
  if found := re.fullmatch(r"(\w+) = (.+)", text):
    return Clause(text, lambda _: True, (found.group(1), parse(found.group(2))))
  for pattern, meaning in CLAUSES:
    if found := re.fullmatch(pattern, text):
      return Clause(text, meaning(*found.groups()))
  raise FormulaError(f"no test knows what the condition {text!r} asks: add it to CLAUSES")
