"""Where tiles lie in shared memory: bytes that one no longer needs, another takes.

Barriers cut the steps into phases. A tile lives from the phase of its first step to that of its
last; tiles that live in no common phase may share bytes. What the ring, or one iteration for the
next, holds lives through the loop, and so does what the loop takes from before it; what ranks read,
to the next barrier of the cluster.

Objective: most blocks that a multiprocessor holds (none: it does not fit); fewest further barriers,
none in the loop; least bytes, in this order. Exact for up to ``EXACT`` tiles. Copies that are waited
for behind the loop begin before it where that costs no block.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from mirage_onnx.lower.barriers import with_barriers
from mirage_onnx.lower.steps import Advance, Copy, GatherRanks, ThreadBarrier, ThreadSteps

#: Up to so many tiles, or places of barriers, every choice is tried.
EXACT = 8
#: A step: 0 before the loop, 1 in it, 2 behind; its number there.
_At = tuple[int, int]


def packed(sizes: Sequence[int], phases: Sequence[frozenset[int]]) -> tuple[int, ...]:
  """First bytes of tiles: the end of the last is least, tiles of one phase do not overlap.

  A tile goes as low as those before it in a sequence leave room. The sequence of the first bytes
  of a best answer gives no higher ones, so some sequence in which they never fall is best: up to
  ``EXACT`` tiles all of those are tried that can still be better, beyond that only three.
  """
  every = range(len(sizes))
  each = {p: sum(s for s, own in zip(sizes, phases, strict=True) if p in own)
          for p in frozenset[int]().union(*phases)}  # fmt: skip
  bound = max(each.values(), default=0)

  def lowest(i: int, at: Mapping[int, int]) -> int:
    place = 0
    for first, k in sorted((first, k) for k, first in at.items() if phases[k] & phases[i]):
      if first >= place + sizes[i]:
        break
      place = max(place, first + sizes[k])
    return place

  def end(at: Mapping[int, int]) -> int:
    return max((first + sizes[i] for i, first in at.items()), default=0)

  found = []
  by_phase = sorted(every, key=lambda i: (min(phases[i], default=0), -sizes[i]))
  for order in (every, sorted(every, key=lambda i: -sizes[i]), by_phase):
    at: dict[int, int] = {}
    for i in order:
      at[i] = lowest(i, at)
    found.append(at)
  best = min(found, key=end)
  todo: list[dict[int, int]] = [{}] if len(sizes) <= EXACT else []
  while todo and end(best) > bound:
    at = todo.pop()
    if end(at) < end(best) and len(at) == len(sizes):
      best = at
    last = max(((first, i) for i, first in at.items()), default=(0, -1))
    for i in reversed(every):
      if i not in at and (to := lowest(i, at), i) > last and to + sizes[i] < end(best):
        todo.append({**at, i: to})
  return tuple(best[i] for i in every)


@dataclass(frozen=True, slots=True)
class Life:
  """From which step to which, and in which phases, a tile is in use."""

  first: _At
  last: _At
  phases: frozenset[int]


def lifetimes(
  graph: ThreadSteps, ring: frozenset[str], early: frozenset[str] = frozenset()
) -> dict[str, Life]:
  """When tiles are in use in a graph with barriers.

  ``ring``: tiles that ``Advance`` fills, ahead of their iteration: from before the loop on.
  ``early``: tiles of copies that stand behind the loop and begin before it.
  """
  phase, begins = 0, []
  touched: dict[str, list[tuple[_At, int]]] = {}
  meetings, carried = [], set(ring)
  for run, steps in enumerate((graph.before, graph.body, graph.after)):
    begins.append(phase)
    if run == 1:
      start = (0, len(graph.before)), phase
      touched.update({tile: [start] for tile in sorted(ring | early)})
    for number, step in enumerate(steps):
      phase += isinstance(step, (ThreadBarrier, Advance))
      meetings += [phase] if isinstance(step, ThreadBarrier) and step.cluster else []
      if run == 1:
        carried |= {t for t in step.reads if t not in touched or touched[t][0][0] < (1, 0)}
      for tile in (*step.reads, *step.writes):
        touched.setdefault(tile, []).append(((run, number), phase))
  _, enter, out = begins
  remote = {t for s in graph.after if isinstance(s, GatherRanks) for t in s.reads}
  turns = not (graph.body and isinstance(graph.body[0], Advance))
  found = {}
  for tile, places in touched.items():
    (first, since), (last, until) = places[0], places[-1]
    if tile in carried:
      since = min(since, enter) if tile not in ring else since
      until, last = max(until, out), max(last, (1, len(graph.body)))
    if tile in remote:
      until = next((m - 1 for m in meetings if m > until), phase)
    own = set(range(since, until + 1))
    # Behind an iteration comes the next, or what is behind the loop; or the loop has no turn.
    own |= {enter, out} if turns and own & {enter, out} else set()
    own |= {-1} if (first[0] == 0 and enter in own) or (last[0] == 2 and out in own) else set()
    found[tile] = Life(first, last, frozenset(own))
  return found


@dataclass(frozen=True, slots=True)
class MemoryPlan:
  """The graph with further barriers, the first byte of every tile, the bytes of all.

  ``early``: tiles of copies that stand behind the loop and begin before it.
  """

  graph: ThreadSteps
  places: Mapping[str, int]
  size: int
  early: frozenset[str] = frozenset()


def plan_memory(
  graph: ThreadSteps, sizes: Mapping[str, int], ring: frozenset[str], resident: Callable[[int], int]
) -> MemoryPlan:
  """The best plan for tiles of these sizes, multiples of 16 bytes.

  ``resident``: the blocks that a multiprocessor holds if each takes so many bytes.
  """
  behind = frozenset(s.tile for s in graph.after if isinstance(s, Copy)) if graph.body else frozenset()
  best = best_places(graph, sizes, ring, behind, resident)
  if not behind or resident(best.size) == resident(0):
    return best
  late = best_places(graph, sizes, ring, frozenset(), resident)
  return late if resident(late.size) > resident(best.size) else best


def best_places(
  graph: ThreadSteps, sizes: Mapping[str, int], ring: frozenset[str], early: frozenset[str],
  resident: Callable[[int], int],
) -> MemoryPlan:  # fmt: skip
  """The best plan with these copies begun before the loop."""

  def plan(at: Sequence[_At]) -> tuple[tuple[int, ...], MemoryPlan]:
    more = with_barriers(_with(graph, at)) if at else graph
    life = lifetimes(more, ring, early)
    places = packed(list(sizes.values()), [life[n].phases if n in life else frozenset() for n in sizes])
    size = max(map(int.__add__, places, sizes.values()), default=0)
    cost = -resident(size), len(at), size
    return cost, MemoryPlan(more, dict(zip(sizes, places, strict=True)), size, early)

  # A barrier before the first step of a tile, or before the loop that the step is in, lets the
  # tile take the bytes of what ended before.
  lives, useful = lifetimes(graph, ring, early).values(), set[_At]()
  for new in lives:
    for old in lives:
      inside = old.last[0] == new.first[0] == 1
      if old.last < new.first and old.phases & new.phases and not inside:
        useful.add((0, len(graph.before)) if new.first[0] == 1 else new.first)
  points = sorted(useful)
  best, whole = plan(()), plan(points)
  if whole[0][0] < best[0][0]:
    best = whole
    # As few as bring the same.
    for k in range(len(points) if len(points) <= EXACT else 0):
      tries = [plan(at) for at in combinations(points, k)]
      best = min([best, *tries], key=lambda found: found[0])
      if best[0][1] == k:
        break
  return best[1]


def _with(graph: ThreadSteps, at: Sequence[_At]) -> ThreadSteps:
  runs = [list(graph.before), list(graph.body), list(graph.after)]
  for run, step in sorted(at, reverse=True):
    following = runs[run][step : step + 1]
    runs[run].insert(step, ThreadBarrier(following[0].index if following else -1))
  return ThreadSteps(*map(tuple, runs))
