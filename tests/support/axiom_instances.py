"""Rows of the axiom table with axes for their variables: all over a few axes.

``holding`` are those that the condition lets through, ``violating`` those that only one of its
clauses keeps out.
"""

import re
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product

from axiom_conditions import Clause, Instance, axes_of, read_clause
from axiom_formulas import Formula, FormulaError, is_factor, rename, substitute, without_factor
from axiom_parser import forms

#: Axes that no formula of the table names, for variables to vary over.
FREE = ("a", "b")
#: So many assignments of axes to variables are listed at most for one row and merging of axes.
MOST_ASSIGNMENTS = 1 << 14


@dataclass(frozen=True)
class Row:
  name: str
  lhs: Formula
  rhs: Formula
  clauses: tuple[Clause, ...]

  @cached_property
  def definitions(self):
    return dict(c.defines for c in self.clauses if c.defines)

  @cached_property
  def instances(self):
    """All of which the lhs has a value, with every defined variable written out."""
    lhs, rhs = (substitute(f, self.definitions) for f in (self.lhs, self.rhs))
    return tuple(_instances(lhs, rhs, self.definitions))

  @cached_property
  def holding(self):
    return tuple(i for i in self.instances if None not in i.sides() and all(c.holds(i) for c in self.clauses))

  def violating(self, clause):
    """Instances that every other clause lets through, and this one does not.

    What a clause defines is an unknown in them, over the axes that it would have.
    """
    if clause.defines:
      free = {n: f for n, f in self.definitions.items() if n != clause.defines[0]}
      sides = [substitute(f, free) for f in (self.lhs, self.rhs)]
      return tuple(Instance(*(rename(f, i.means) for f in sides), i.axes, i.means) for i in self.holding)
    others = [c for c in self.clauses if c is not clause]
    return tuple(i for i in self.instances if not _holds(clause, i) and all(_holds(c, i) for c in others))


def _holds(clause, i):
  """Whether a clause lets an instance through; it does not where it asks what has no value."""
  try:
    return clause.holds(i)
  except FormulaError:
    return False


def _instances(lhs, rhs, definitions):
  texts = (lhs, rhs, *definitions.values())
  variables = tuple(sorted({v for f in texts for v in f.variables}))
  for means in _merged(tuple(sorted({a for f in texts for a in f.names}))):
    sides = (rename(lhs, means), rename(rhs, means))
    defined = {name: rename(f, means) for name, f in definitions.items()}
    # As many free axes as there may be assignments, but one in any case.
    pool = sorted({*means.values(), *(a for f in sides for n in f.walk() for a in n.axes)})
    for a in FREE:
      if a == FREE[0] or (2 << len(pool)) ** len(variables) <= MOST_ASSIGNMENTS:
        pool.append(a)
    subsets = [
      frozenset(a for n, a in enumerate(pool) if chosen >> n & 1) for chosen in range(1 << len(pool))
    ]
    for chosen in product(subsets, repeat=len(variables)):
      axes = dict(zip(variables, chosen, strict=True))
      try:
        axes |= {name: axes_of(f, axes) for name, f in defined.items()}
        axes_of(sides[0], axes)
      except FormulaError:
        continue
      yield Instance(*sides, axes, means)


def _merged(names):
  """Every way to let names mean the same axis; first, every name means one of its own."""
  if not names:
    yield {}
    return
  *rest, last = names
  for means in _merged(tuple(rest)):
    for axis in (last, *sorted(set(means.values()))):
      yield {**means, last: axis}


@cache
def rows(axiom):
  """The forms of an axiom, and those in which a factor of exponentials is left out.

  A sum of exponentials alone is no product, so a rule has to look for it by itself.
  """
  clauses = tuple(map(read_clause, filter(None, _split(axiom.condition))))
  sides = forms(axiom.lhs), forms(axiom.rhs)
  if len(sides[0]) != len(sides[1]):
    raise FormulaError(f"{axiom.name} has {len(sides[0])} forms there and {len(sides[1])} here")
  found = [Row(axiom.name, a, b, clauses) for a, b in zip(*sides, strict=True)]
  for row in found:
    both = (row.lhs, row.rhs)
    for name in row.lhs.variables if any(f.op == "exp" for f in row.lhs.walk()) else ():
      if all(is_factor(f, name) for f in both):
        found.append(Row(row.name, *(without_factor(f, name) for f in both), clauses))
  return tuple(dict.fromkeys(found))


def _split(condition):
  """The clauses; a comma inside brackets separates none."""
  return [c.strip() for c in re.split(r",(?![^\[(]*[\])])", condition)]
