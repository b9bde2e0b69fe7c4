"""The order of the steps of a run with fewest barriers: exact, at any length.

Barriers cut a run into phases. A step stands in the phase of what it needs from registers, or in a
later one; steps that meet in a shared tile, one of them writing, stand in different phases, where
ranks exchange with a barrier of the cluster between. In a loop an iteration meets the next. For
given barriers the earliest phases are a least fixed point, so fewer barriers are tried first: of
the cluster, then of the block. With that number, each next step is the first as written that the
others allow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

#: What has to stand between two steps.
NOTHING, BLOCK, CLUSTER = range(3)


@dataclass(frozen=True, slots=True)
class OrderedStep:
  """What a step does: values in registers that it makes or changes, and uses; tiles, by name.

  ``ranks``: it reads what other ranks wrote. ``late``: it clashes with what stands before the
  run, so a barrier has to stand between.
  """

  makes: frozenset[int] = frozenset()
  uses: frozenset[int] = frozenset()
  reads: frozenset[str] = frozenset()
  writes: frozenset[str] = frozenset()
  ranks: bool = False
  late: bool = False


@dataclass(frozen=True, slots=True)
class Order:
  """Step numbers in phases; ``clusters[i]``: the barrier behind phase i is one of the cluster."""

  phases: tuple[tuple[int, ...], ...]
  clusters: tuple[bool, ...]


#: First step, second step, what has to stand between, whether the second is an iteration later.
_Edge = tuple[int, int, int, bool]


def edges(nodes: Sequence[OrderedStep], *, loop: bool = False) -> list[_Edge]:
  """What orders steps, pairs in the order as written."""
  found = []
  for j, b in enumerate(nodes):
    for i, a in enumerate(nodes[: j + 1]):
      meet = a.writes & (b.reads | b.writes) or a.reads & b.writes
      if meet and i < j:
        across = b.ranks and bool(a.writes & b.reads)
        found.append((i, j, CLUSTER if across else BLOCK, False))
      elif i < j and (a.makes & (b.uses | b.makes) or a.uses & b.makes):
        found.append((i, j, NOTHING, False))
      if meet and loop:
        found.append((j, i, BLOCK, True))
  return found


def _next(phase: int, kind: int, clusters: Sequence[bool]) -> int:
  """The first phase that such a barrier parts from ``phase``; beyond the last if none does."""
  if kind == CLUSTER:
    later = (q + 1 for q in range(phase, len(clusters)) if clusters[q])
    return next(later, len(clusters) + 1)
  return phase + kind


def _earliest(
  least: list[int], constraints: Sequence[_Edge], clusters: Sequence[bool], most: Sequence[int]
) -> list[int] | None:
  """The least phases, ``least`` or later, that meet the constraints, if at most ``most``."""
  phase, changed = list(least), True
  while changed:
    changed = False
    for i, j, kind, again in constraints:
      p = phase[i] + 1 - len(clusters) if again else _next(phase[i], kind, clusters)
      if p > phase[j]:
        phase[j], changed = p, True
        if p > most[j]:
          return None
  return phase if all(p <= m for p, m in zip(phase, most, strict=True)) else None


def fewest_barriers(
  nodes: Sequence[OrderedStep], written: tuple[int, int], *, loop: bool = False
) -> Order | None:
  """An order with fewest barriers, if that is fewer than ``written`` (cluster, block)."""
  if written == (0, 0):
    return None
  constraints = edges(nodes, loop=loop)
  late = [int(n.late) for n in nodes]
  # Chains bound the number of barriers of the cluster, and of all, from below.
  dear, every = [0] * len(nodes), list(late)
  for i, j, kind, again in constraints:
    if not again:
      dear[j] = max(dear[j], dear[i] + (kind == CLUSTER))
      every[j] = max(every[j], every[i] + (kind != NOTHING))
  least = max(every, default=0)
  for c in range(max(dear, default=0), written[0] + 1):
    # With barriers of the cluster anywhere, so many of the block are enough for the chains.
    enough = (c + 1) * (least + 1) + 1
    for b in range(max(0, least - c), written[1] if c == written[0] else enough):
      for at in combinations(range(c + b), c):
        kinds = tuple(n in at for n in range(c + b))
        if _earliest(late, constraints, kinds, [c + b] * len(nodes)) is not None:
          return _as_written(late, constraints, kinds)
  return None


def _as_written(least: list[int], constraints: Sequence[_Edge], clusters: tuple[bool, ...]) -> Order:
  """Each next step is the first as written with which the others still have a place."""
  most = [len(clusters)] * len(least)
  phases: list[list[int]] = [[] for _ in range(len(clusters) + 1)]
  now, left = 0, list(range(len(least)))
  while left:
    for n in left:
      # What is left comes no earlier; what this step needs has then been the first before.
      for at in range(max(now, least[n]), len(clusters) + 1):
        low = [max(p, at) if k in left else p for k, p in enumerate(least)]
        high = [at if k == n else p for k, p in enumerate(most)]
        found = _earliest(low, constraints, clusters, high)
        if found is not None:
          break
      else:
        continue
      least, most, now = found, high, at
      phases[at].append(n)
      left.remove(n)
      break
  return Order(tuple(map(tuple, phases)), clusters)
