"""Exact minimum of a sum of costs of single choices and of pairs of choices.

A variable with at most two neighbours is eliminated: for every choice of theirs its best choice is
known, and what is left is a problem of the same kind without it. Where all have more, every choice
of the one with the most neighbours is tried. The layouts of a block graph are such a problem, and
its graph is nearly a tree. Of several minima the answer is always the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import add

_Pair = tuple[tuple[int, ...], ...]
_Rule = tuple[int, tuple[int, ...], dict[tuple[int, ...], int]]


@dataclass(frozen=True, slots=True)
class MinSum:
  """``single[v][i]``: cost of choice i of variable v; ``pairs[u, v][i][j]``: cost of i with j.

  A pair has u < v.
  """

  single: tuple[tuple[int, ...], ...]
  pairs: Mapping[tuple[int, int], _Pair]

  @classmethod
  def of(
    cls, single: tuple[tuple[int, ...], ...], tables: Iterable[tuple[int, int, Sequence[Sequence[int]]]]
  ) -> MinSum:
    """Of pairs (u, v, costs) in any order, of which those of the same variables add up."""
    pairs: dict[tuple[int, int], list[list[int]]] = {}
    for u, v, costs in tables:
      if u > v:
        u, v, costs = v, u, tuple(zip(*costs, strict=True))
      table = pairs.setdefault((u, v), [[0] * len(single[v]) for _ in single[u]])
      for row, more in zip(table, costs, strict=True):
        row[:] = map(add, row, more)
    return cls(single, {at: tuple(map(tuple, table)) for at, table in pairs.items()})

  def cost(self, choice: Sequence[int]) -> int:
    """The cost of one choice for every variable."""
    total = sum(costs[i] for costs, i in zip(self.single, choice, strict=True))
    return total + sum(table[choice[u]][choice[v]] for (u, v), table in self.pairs.items())


def minimise(problem: MinSum) -> tuple[int, ...]:
  """A choice for every variable whose cost no other choice undercuts."""
  around: list[dict[int, _Pair]] = [{} for _ in problem.single]
  for (u, v), table in problem.pairs.items():
    around[u][v] = table
    around[v][u] = tuple(zip(*table, strict=True))
  chosen = [0] * len(problem.single)
  _minimise([list(costs) for costs in problem.single], around, chosen)
  return tuple(chosen)


def _minimise(single: list[list[int]], around: list[dict[int, _Pair]], chosen: list[int]) -> None:
  """Write the best choices of the variables that are left (those with costs) to ``chosen``."""
  rules: list[_Rule] = []
  left = [v for v, costs in enumerate(single) if costs]
  while left:
    variable = min(left, key=lambda v: len(around[v]))
    if len(around[variable]) > 2:
      _branch(single, around, chosen, max(left, key=lambda v: len(around[v])))
      break
    left.remove(variable)
    rules.append(_eliminate(single, around, variable))
  for variable, near, best in reversed(rules):
    chosen[variable] = best[tuple(chosen[u] for u in near)]


def _eliminate(single: list[list[int]], around: list[dict[int, _Pair]], variable: int) -> _Rule:
  """Move the costs of a variable to its neighbours, at most two of them."""
  own = single[variable]
  near = tuple(sorted(around[variable]))
  best: dict[tuple[int, ...], int] = {}
  if not near:
    best[()] = own.index(min(own))
  elif len(near) == 1:
    (u,) = near
    for i, row in enumerate(around[u].pop(variable)):
      totals = [a + b for a, b in zip(own, row, strict=True)]
      least = min(totals)
      best[i,] = totals.index(least)
      single[u][i] += least
  else:
    u, v = near
    columns = around[v].pop(variable)
    old = around[u].get(v) or ((0,) * len(columns),) * len(single[u])
    table = []
    for i, row in enumerate(around[u].pop(variable)):
      line = []
      for j, column in enumerate(columns):
        totals = [a + b + c for a, b, c in zip(own, row, column, strict=True)]
        least = min(totals)
        best[i, j] = totals.index(least)
        line.append(old[i][j] + least)
      table.append(tuple(line))
    around[u][v] = tuple(table)
    around[v][u] = tuple(zip(*table, strict=True))
  single[variable], around[variable] = [], {}
  return variable, near, best


def _branch(
  single: list[list[int]], around: list[dict[int, _Pair]], chosen: list[int], variable: int
) -> None:
  """Try every choice of one variable."""
  least, answer = None, chosen
  for i, own in enumerate(single[variable]):
    costs = [list(c) for c in single]
    tables = [{v: t for v, t in near.items() if v != variable} for near in around]
    for u, table in around[variable].items():
      costs[u] = [a + b for a, b in zip(costs[u], table[i], strict=True)]
    costs[variable], tables[variable] = [], {}
    attempt = list(chosen)
    attempt[variable] = i
    total = own + _least(costs, tables, attempt)
    if least is None or total < least:
      least, answer = total, attempt
  chosen[:] = answer


def _least(single: list[list[int]], around: list[dict[int, _Pair]], chosen: list[int]) -> int:
  """``_minimise``, and what its answer costs."""
  _minimise([list(c) for c in single], [dict(near) for near in around], chosen)
  total = 0
  for u, costs in enumerate(single):
    if costs:
      total += costs[chosen[u]]
      total += sum(t[chosen[u]][chosen[v]] for v, t in around[u].items() if u < v)
  return total
