"""The best choice of few candidates, by trying: the solver takes half a second to import.

The integer program is that of ``partition.py``. Once it is decided which candidates are used, the most
nodes disappear that its rows allow, and there is one greatest such set: no node keeps another one from
disappearing. So subsets of the candidates are tried, each with that set, and a branch ends where what its
candidates cost is more than the nodes that it can still cover bring.
"""

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

#: Most candidates that are free, and most subsets of them that are tried.
FREE, MOST = 40, 300

#: A row of an integer program: sum of coefficient * variable <= limit.
Row = tuple[Mapping[int, float], float]


def least_cost(cost: np.ndarray, rows: Sequence[Row], fixed: int, count: int) -> frozenset[int] | None:
  """The variables that are 1 in the cheapest solution, or None where that takes too many trials.

  Variables below ``count`` say which candidates are used, the first ``fixed`` of them are. Of the others,
  those that cost nothing or less are nodes that disappear, those that cost something nodes that are alone
  then: it pays to let the other node disappear all the same, or this is not solved here.
  """
  if count - fixed > FREE:
    return None
  trials = _Trials(cost.tolist(), rows, fixed, count)
  return trials.best() if trials.pays else None


class _Trials:
  """The tree of subsets, the best one so far, and how many were tried."""

  def __init__(self, cost: list[float], rows: Sequence[Row], fixed: int, count: int) -> None:
    self.cost, self.fixed, self.count = cost, fixed, count
    #: Row that ends the disappearing of one node, of readers first; and those of candidates alone.
    self.ending: list[tuple[int, Mapping[int, float], float]] = []
    self.limits: list[Row] = []
    #: Variable of a node that is alone -> the node of whose kernel it was, and itself if it can disappear.
    self.alone: dict[int, tuple[int, int | None]] = {}
    #: Candidate -> the nodes that it covers. Those of no candidate do not disappear.
    self.covered: list[set[int]] = [set() for _ in range(count)]
    for row, limit in reversed(rows):
      node = next((j for j, x in row.items() if j >= count and x > 0), None)
      lone = next((j for j in row if j >= count and cost[j] > 0), None)
      if node is None:
        self.limits.append((row, limit))
        continue
      if lone is not None:
        self.alone[lone] = node, next((j for j in row if j not in (node, lone)), None)
        continue
      self.ending.append((node, row, limit))
      for j, x in row.items():
        if j < count and x < 0:
          self.covered[j].add(node)
    owed: dict[int, float] = {}
    for lone, (node, _) in self.alone.items():
      owed[node] = owed.get(node, 0.0) + cost[lone]
    self.pays = all(us <= -cost[node] for node, us in owed.items())
    self.tried, self.found, self.found_cost = 0, frozenset[int](), inf

  def best(self) -> frozenset[int] | None:
    used = frozenset(range(self.fixed))
    price = sum(self.cost[k] for k in used)
    free = sorted(range(self.fixed, self.count), key=lambda k: self.cost[k] + self._brings(self.covered[k]))
    nodes = set().union(*(self.covered[k] for k in used)) if used else set()
    self._try(used, price)
    self._branch(used, price, nodes, tuple(free))
    return None if self.tried > MOST or self.found_cost == inf else self.found

  def _branch(self, used: frozenset[int], price: float, nodes: set[int], free: tuple[int, ...]) -> None:
    """Try every superset of ``used`` by candidates of ``free`` that can be better than the best."""
    for place, k in enumerate(free):
      rest = free[place:]
      if self.tried > MOST or self._least(price, nodes, rest) >= self.found_cost:
        return
      more, costs, covered = used | {k}, price + self.cost[k], nodes | self.covered[k]
      if self._least(costs, covered, rest[1:]) < self.found_cost:
        self._try(more, costs)
        self._branch(more, costs, covered, rest[1:])

  def _least(self, price: float, nodes: set[int], free: tuple[int, ...]) -> float:
    """No superset costs less: all that ``free`` can cover for nothing, or each of it for its own price."""
    together = price + self._brings(nodes.union(*(self.covered[j] for j in free)))
    each = (self.cost[j] + self._brings(self.covered[j] - nodes) for j in free)
    return max(together, price + self._brings(nodes) + sum(min(0.0, x) for x in each))

  def _brings(self, nodes: set[int]) -> float:
    """What these nodes cost where all disappear: nothing, or less."""
    return sum(self.cost[n] for n in sorted(nodes))

  def _try(self, used: frozenset[int], price: float) -> None:
    self.tried += 1
    ones = set(used) | {node for node, _, _ in self.ending}
    changed = True
    while changed:
      changed = False
      for node, row, limit in self.ending:
        if node in ones and sum(x for j, x in row.items() if j in ones) > limit:
          ones.discard(node)
          changed = True
    ones |= {k for k, (node, itself) in self.alone.items() if node in ones and itself not in ones}
    total = price + self._brings(ones - used)
    if total < self.found_cost and all(
      sum(x for j, x in row.items() if j in ones) <= limit for row, limit in self.limits
    ):
      self.found, self.found_cost = frozenset(ones), total
