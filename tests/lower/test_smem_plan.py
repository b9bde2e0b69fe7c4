"""Places in shared memory against every choice there is, and against all paths through a graph."""

import random
from itertools import chain, combinations, combinations_with_replacement, product

import pytest
from tiled_kernels import HELD, paths

from mirage_onnx.lower import smem_plan
from mirage_onnx.lower.barriers import with_barriers
from mirage_onnx.lower.smem_plan import best_places, lifetimes, packed, plan_memory
from mirage_onnx.lower.steps import (
  Advance,
  Copy,
  GatherRanks,
  Publish,
  Read,
  Spill,
  ThreadBarrier,
  ThreadSteps,
)


def _end(sizes, places):
  return max((p + s for p, s in zip(places, sizes, strict=True)), default=0)


def _free(sizes, phases, places, at):
  """Whether the next tile may lie there."""
  n = len(places)
  return all(
    not own & phases[n] or first + size <= at or at + sizes[n] <= first
    for first, size, own in zip(places, sizes, phases, strict=False)
  )


def _apart(sizes, phases, places):
  return all(_free(sizes, phases, places[:n], at) for n, at in enumerate(places))


def _room(sizes, phases, most, places=()):
  """Whether the tiles have places below ``most``: every place of every tile is tried."""
  n = len(places)
  return n == len(sizes) or any(
    _free(sizes, phases, places, at) and _room(sizes, phases, most, (*places, at))
    for at in range(most - sizes[n] + 1)
  )


def _check(sizes, phases):
  places = packed(sizes, phases)
  assert _apart(sizes, phases, places)
  assert not _room(sizes, phases, _end(sizes, places) - 1), (sizes, phases)


def test_least_bytes_of_all_small_cases():
  """Four tiles of one or two units in every way to live through some of three phases."""
  lives = [frozenset(range(a, b)) for a, b in combinations(range(4), 2)]
  for tiles in combinations_with_replacement(list(product((1, 2), lives)), 4):
    _check(*zip(*tiles, strict=True))


@pytest.mark.parametrize("count", range(1, 9))
def test_least_bytes(count):
  rng = random.Random(count)
  for _ in range(60 if count < 7 else 6):
    sizes = [rng.randint(1, 4 if count < 7 else 2) for _ in range(count)]
    _check(sizes, [frozenset(range(a := rng.randrange(5), a + rng.randint(1, 3))) for _ in sizes])


def test_no_simple_sequence_is_best():
  """Neither as given, nor the largest or the first to live first."""
  lives = [(0, 1, 2), (2, 3, 4), (1,), (3, 4)]
  _check([1, 1, 4, 4], [frozenset(x) for x in lives])


def test_many_tiles(monkeypatch):
  """Beyond what is tried exhaustively, places are right and seldom worse."""
  rng, more = random.Random(3), 0
  for _ in range(100):
    sizes = [rng.randint(1, 9) for _ in range(8)]
    phases = [frozenset(range(a := rng.randrange(6), a + rng.randint(1, 3))) for _ in sizes]
    exact = _end(sizes, packed(sizes, phases))
    with monkeypatch.context() as patch:
      patch.setattr(smem_plan, "EXACT", 7)
      places = packed(sizes, phases)
    assert _apart(sizes, phases, places)
    more += _end(sizes, places) - exact > 0.2 * exact
  assert more <= 10


def _graph(rng, tiles=6):
  """Every tile is written by one step and read by later ones."""
  runs = [[], [], []]
  loop = rng.random() < 0.7
  ring = "x" if loop and rng.random() < 0.5 else ""
  for n, tile in enumerate("abcdef"[:tiles]):
    own = rng.choice((0, 1, 2) if loop else (2,))
    at = rng.randrange(len(runs[own]) + 1)
    copied = own != 1 and rng.random() < 0.4
    runs[own].insert(at, Copy(n, tile) if copied else Spill(n, tile, HELD))
    for _ in range(rng.randint(1, 2)):
      user = rng.choice([r for r in (0, 1, 2) if r >= own and (loop or r == 2)])
      to = rng.randint(at + 1 if user == own else 0, len(runs[user]))
      runs[user].insert(to, Read(n, tile, HELD))
  if ring:
    runs[1] = [Advance(-1), *runs[1], Read(9, ring, HELD)]
  if rng.random() < 0.4:
    at = rng.randint(0, len(runs[2]))
    runs[2][at:at] = [Publish(7, "r"), GatherRanks(7, "r")]
  tiles = {t: 16 * rng.randint(1, 3) for s in chain(*runs) for t in (*s.reads, *s.writes)}
  return with_barriers(ThreadSteps(*map(tuple, runs))), tiles, frozenset(ring)


def _wrong(plan, sizes, ring):
  """What paths through the steps do to bytes that two tiles share."""
  graph, at, found = plan.graph, plan.places, []

  def meet(step, x, tiles=None):
    touched = (*step.reads, *step.writes) if tiles is None else tiles
    return any(x != y and at[x] < at[y] + sizes[y] and at[y] < at[x] + sizes[x] for y in touched)

  for path in paths(graph):
    for later, b in enumerate(path):
      for a in reversed(path[:later]):
        if isinstance(a, (ThreadBarrier, Advance)):
          break
        found += [f"{x} at once" for x in (*b.reads, *b.writes) if meet(a, x)]
      for x in b.reads:
        # From where it was written on, no step touches what lies there.
        own = [n for n in range(later) if x in path[n].writes]
        first = len(graph.before) if x in ring | plan.early else max(own, default=later)
        found += [f"{x} is lost" for s in path[first:later] if meet(s, x)]
  for step in graph.body:
    found += [f"{x} in the ring" for x in ring if meet(step, x)]
  found += [f"{x} in the ring" for x in plan.early for y in ring if at[x] < at[y] + sizes[y] and
            at[y] < at[x] + sizes[x]]  # fmt: skip
  # Copies go on before the loop, after the last barrier there.
  last = max([-1, *(n for n, s in enumerate(graph.before) if isinstance(s, ThreadBarrier))])
  for step in graph.before[last + 1 :] if graph.body else ():
    found += [f"{x} before the loop" for x in ring | plan.early if meet(step, x)]
  ranks = [n for n, s in enumerate(graph.after) if isinstance(s, GatherRanks)]
  for step in graph.after[ranks[0] :] if ranks else ():
    if isinstance(step, ThreadBarrier) and step.cluster:
      break
    found += ["ranks read"] * meet(step, "r", step.writes)
  return found


def _blocks(size):
  return 200 // size if size else 9


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_overwritten_that_is_needed(seed):
  rng, shared = random.Random(seed), 0
  for _ in range(100):
    graph, sizes, ring = _graph(rng)
    plan = plan_memory(graph, sizes, ring, _blocks)
    assert _wrong(plan, sizes, ring) == [], plan.graph
    shared += plan.size < sum(sizes.values())
  assert shared > 50


def test_copies_begin_early_where_that_costs_no_block():
  rng, seen = random.Random(5), set()
  for _ in range(200):
    graph, sizes, ring = _graph(rng)
    behind = frozenset(s.tile for s in graph.after if isinstance(s, Copy)) if graph.body else frozenset()
    plan = plan_memory(graph, sizes, ring, _blocks)
    early, late = (_blocks(best_places(graph, sizes, ring, e, _blocks).size) for e in (behind, frozenset()))
    assert _blocks(plan.size) == max(early, late), graph
    assert plan.early == (behind if early >= late else frozenset()), graph
    seen |= {early >= late} if behind else set()
  assert seen == {True, False}


def test_best_plan():
  """Against up to three further barriers at any place that is not in the loop."""
  rng, bought = random.Random(8), 0
  for _ in range(60):
    graph, sizes, ring = _graph(rng, 4)
    if len(graph.before + graph.after) > 12:
      continue
    spots = [(0, i) for i in range(len(graph.before) + 1)]
    spots += [(2, i) for i in range(len(graph.after))]
    behind = sorted({s.tile for s in graph.after if isinstance(s, Copy)} if graph.body else ())
    early, costs = frozenset(t for t in behind if rng.random() < 0.5), []
    for at in chain.from_iterable(combinations(spots, k) for k in range(4)):
      life = lifetimes(smem_plan._with(graph, at), ring, early)
      own = [sizes[n] for n in life]
      size = _end(own, packed(own, [x.phases for x in life.values()]))
      costs.append((-_blocks(size), len(at), size))
    plan = best_places(graph, sizes, ring, early, _blocks)
    now, old = (len(g.before + g.body + g.after) for g in (plan.graph, graph))
    assert (-_blocks(plan.size), now - old, plan.size) == min(costs), graph
    assert len(plan.graph.body) == len(graph.body)
    bought += now > old
  assert bought > 5
