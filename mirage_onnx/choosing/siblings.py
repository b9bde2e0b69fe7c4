"""Chosen regions that read the same activations and do not need each other, as one region.

Projections of one value (queries, keys and values behind a norm) are regions of their own, since no kernel
computes outputs over different axes. As kernels of one node they run beside each other, where a node of
its own would wait for the one before (``lower/read_ahead.py``).
"""

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter

from mirage_onnx.errors import Rejection
from mirage_onnx.ir import Program
from mirage_onnx.match.candidates import RegionCandidate, candidate
from mirage_onnx.match.repeated import RegionMaker

#: Most regions of a group.
MOST = 4


def siblings(program: Program, chosen: Sequence[RegionCandidate]) -> tuple[tuple[int, ...], ...]:
  """Groups of two and more of ``chosen``, by their places.

  Nobody in a group needs what another one yields, directly or by way of nodes or other groups.
  """
  needed = _needed(program, chosen)
  if not needed:
    return ()
  read = [{x.source.name for x in c.region.given if not x.is_weight} for c in chosen]
  groups: list[list[int]] = []
  place = {n.name: i for i, n in enumerate(program.nodes)}
  for i in sorted(range(len(chosen)), key=lambda i: min(place[n] for n in chosen[i].nodes)):
    for group in reversed(groups):
      alike = len(group) < MOST and all(read[i] & read[j] for j in group)
      if alike and _may_join(needed, groups, {*group, i}):
        group.append(i)
        break
    else:
      groups.append([i])
  return tuple(tuple(g) for g in groups if len(g) > 1)


def join(maker: RegionMaker, parts: Sequence[RegionCandidate]) -> RegionCandidate | Rejection:
  """The region that yields all that ``parts`` yield."""
  covered = frozenset[str]().union(*(p.nodes for p in parts))
  yielded = frozenset[str]().union(*(p.outputs for p in parts))
  return candidate(maker, covered, yielded)


def _needed(program: Program, chosen: Sequence[RegionCandidate]) -> list[set[int]]:
  """Which of ``chosen`` each of them needs, directly or by way of others or nodes.

  A node counts whether or not it disappears. Empty if some need each other in a circle.
  """
  reads: dict[str | int, Iterable[str]] = {n.name: n.inputs for n in program.nodes}
  makers: dict[str, list[str | int]] = {o: [n.name] for n in program.nodes for o in n.outputs}
  for i, c in enumerate(chosen):
    reads[i] = c.reads
    for o in c.outputs:
      makers[o].append(i)
  before = {own: {m for x in read for m in makers.get(x, ())} for own, read in reads.items()}
  needed: dict[str | int, set[int]] = {}
  try:
    for own in TopologicalSorter(before).static_order():
      direct = {m for m in before[own] if isinstance(m, int)}
      needed[own] = direct.union(*(needed[m] for m in before[own]))
  except CycleError:
    return []
  return [needed[i] for i in range(len(chosen))]


def _may_join(needed: Sequence[set[int]], groups: Sequence[Sequence[int]], one: set[int]) -> bool:
  """Whether all can be run in some order with those of ``one`` together, as those of each group are."""
  todo, asked = one, set[int]()
  while todo:
    found = set[int]().union(*(needed[i] for i in todo))
    if found & one:
      return False
    asked |= todo
    todo = {j for g in groups if not found.isdisjoint(g) for j in g} - asked
  return True
