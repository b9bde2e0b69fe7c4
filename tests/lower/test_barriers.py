"""Barriers: enough for every path through a thread graph, and none for nothing."""

import random

import pytest
from tiled_kernels import ATTENTION, HELD, NORM_LINEAR, case, paths

from mirage_onnx.lower.barriers import with_barriers
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


def _hazards(graph):
  """Pairs of steps on some path that meet in a tile with nothing that orders them between."""
  found = []
  for path in paths(graph):
    for later, b in enumerate(path):
      for first, a in enumerate(path[:later]):
        met = {*a.writes} & {*b.reads, *b.writes} | {*a.reads} & {*b.writes}
        between = path[first + 1 : later]
        ordered = [s for s in between if isinstance(s, (ThreadBarrier, Advance))]
        if isinstance(a, Copy):
          ordered = [s for s in ordered if isinstance(s, Advance) or s.copies]
        if isinstance(b, GatherRanks):
          ordered = [s for s in ordered if isinstance(s, ThreadBarrier) and s.cluster]
        if met and not ordered:
          found.append(f"{a} / {b}: {sorted(met)}")
  return found


def _without(graph):
  for name in ("before", "body", "after"):
    steps = getattr(graph, name)
    for i, step in enumerate(steps):
      if isinstance(step, ThreadBarrier):
        runs = {n: getattr(graph, n) for n in ("before", "body", "after")}
        yield ThreadSteps(**{**runs, name: steps[:i] + steps[i + 1 :]})


def _random(rng, *, loop):
  def step(number):
    tile = rng.choice("abcd")
    return rng.choice(
      [Read(number, tile, HELD), Read(number, tile, HELD), Spill(number, tile, HELD),
       Copy(number, tile)]
    )  # fmt: skip

  runs = [tuple(step(10 * r + n) for n in range(rng.randrange(8))) for r in range(3)]
  body = runs[1] if loop else ()
  if body and rng.random() < 0.3:
    body = (Advance(-1), *body)
  return ThreadSteps(runs[0], body, runs[2])


def test_every_hazard_has_a_barrier():
  rng = random.Random(5)
  graphs = [_random(rng, loop=True) for _ in range(400)]
  assert sum(bool(_hazards(g)) for g in graphs) > 300
  assert [g for g in graphs if _hazards(with_barriers(g))] == []


def test_no_barrier_is_for_nothing():
  rng = random.Random(6)
  count = 0
  for _ in range(300):
    for less in _without(with_barriers(_random(rng, loop=False))):
      count += 1
      assert _hazards(less), less.text
  assert count > 300


@pytest.mark.parametrize("warps", [1, 4])
def test_barriers_of_kernels(warps):
  kernels = [
    case(ATTENTION, 8, 1, cluster=2, loop_tile=16, warps=warps, stages=s,
         a0=2, a1=64, a2=16, a3=8, a4=16)
    for s in (1, 2)
  ] + [case(NORM_LINEAR, 16, 8, warps=warps, a0=8, a1=64, a2=32)]  # fmt: skip
  for kernel in kernels:
    steps = kernel.threads().steps
    assert _hazards(steps) == []
    assert all(_hazards(less) for less in _without(steps))


def test_a_barrier_of_the_loop_that_moves():
  """What an iteration leaves moves barriers of the loop, which then leaves something else."""
  w, r = (lambda t: Spill(0, t, HELD)), (lambda t: Read(0, t, HELD))
  body = (r("b"), w("c"), w("z"), w("d"), r("c"), w("a"), r("d"), w("b"), r("a"), r("z"))
  assert _hazards(with_barriers(ThreadSteps((), body, ()))) == []


def test_ranks_meet_at_a_barrier_of_the_cluster():
  """A barrier of the block between does not do."""
  steps = (Publish(0, "r0"), Spill(1, "s1", HELD), Read(1, "s1", HELD), GatherRanks(0, "r0"))
  result = with_barriers(ThreadSteps((), (), steps))
  assert [s.cluster for s in result.after if isinstance(s, ThreadBarrier)] == [False, True]
  assert _hazards(result) == []


def test_what_ranks_have_met_for_is_there():
  steps = (Publish(0, "r0"), GatherRanks(0, "r0"), GatherRanks(0, "r0"))
  result = with_barriers(ThreadSteps((), (), steps))
  assert [type(s) for s in result.after] == [Publish, ThreadBarrier, GatherRanks, GatherRanks]
