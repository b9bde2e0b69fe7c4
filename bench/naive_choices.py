"""The tile compiler with one of its choices made without its objective, for ``ablation.py``.

Each entry of ``NAIVE`` replaces one choice for as long as its context lasts. The kernels stay
right; they are only slower, larger, or refused.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import accumulate
from math import prod
from typing import Any
from unittest import mock

from mirage_onnx.lower import arrange, assign, demand, share, smem_plan
from mirage_onnx.lower import lowering as lower
from mirage_onnx.lower import steps as do
from mirage_onnx.lower import tiled_graph as kernel
from mirage_onnx.lower.assign import Assignment
from mirage_onnx.lower.forms import Form, Warps
from mirage_onnx.lower.lowered import Lowered
from mirage_onnx.lower.min_sum import MinSum, minimise
from mirage_onnx.lower.shared import SharedTile
from mirage_onnx.lower.thread_graph import ThreadGraph


def first_feasible(problem: MinSum) -> tuple[int, ...]:
  """The first form of every value, as far as the others allow it; nothing else counts."""
  never = assign._NEVER
  single = tuple(tuple(range(len(own))) for own in problem.single)
  pairs = {
    at: tuple(tuple(never if cost >= never else 0 for cost in row) for row in table)
    for at, table in problem.pairs.items()
  }
  return minimise(MinSum(single, pairs))


def first_frame(*args: Any) -> Iterator[Form]:
  """Of a kernel without contractions."""
  yield next(iter(_FRAMES(*args)))


def first_split(assignment: Assignment, forms: Mapping[int, Form]) -> Callable[[Warps], int]:
  """Any split in which no warps do the same costs nothing; the first is taken."""
  return lambda split: split.spare - 1


def barriers_everywhere(lowering: Lowered, graph: do.ThreadSteps, room: int) -> do.ThreadSteps:
  """One before every step that touches shared memory."""

  def run(steps: tuple[do.ThreadStep, ...]) -> tuple[do.ThreadStep, ...]:
    found = []
    for step in arrange.merged(steps):
      if not isinstance(step, do.Advance) and (step.reads or step.writes):
        ranks = isinstance(step, do.GatherRanks)
        found.append(do.ThreadBarrier(step.index, cluster=ranks, copies=True))
      found.append(step)
    return tuple(found)

  return do.ThreadSteps(run(graph.before), run(graph.body), run(graph.after))


def as_written(lowering: Lowered, graph: do.ThreadSteps, room: int) -> do.ThreadSteps:
  """Steps in the order in which they came to be."""
  return arrange.as_written(graph)


def one_behind_another(graph: do.ThreadSteps, sizes: Mapping[str, int], *_: Any) -> smem_plan.MemoryPlan:
  """Every tile has bytes of its own."""
  ends = list(accumulate(sizes.values(), initial=0))
  return smem_plan.MemoryPlan(graph, dict(zip(sizes, ends, strict=False)), ends[-1])


@contextmanager
def _where_used() -> Iterator[None]:
  """Nothing begins early but the ring."""

  def plan(graph: do.ThreadSteps, sizes: Mapping[str, int], ring: frozenset[str],
           resident: Callable[[int], int]) -> smem_plan.MemoryPlan:  # fmt: skip
    return smem_plan.best_places(graph, sizes, ring, frozenset(), resident)

  with mock.patch.object(kernel, "plan_memory", plan), mock.patch.object(kernel, "_MOST_ISSUING", 0):
    yield


class ProgramOrder(lower.Lowering):
  """Copies where the program has its loads, not before everything else."""

  def _value(self, index: int) -> None:
    super()._value(index)
    for steps in (self.before, self.body, self.after):
      for step in [s for s in steps if isinstance(s, do.Copy) and s.index == index]:
        steps.remove(step)
        steps.append(step)


def _unpadded(tile: SharedTile) -> int:
  """Rows behind one another, as they are in memory."""
  if not tile.order:
    return 1
  chunk = 16 // tile.dtype.size_bytes
  length = tile.order[-1].length
  return length if len(tile.order) == 1 else -(-length // chunk) * chunk


_FRAMES = share.vector_frames


def _set(target: Any, name: str, value: Any) -> Callable[[], AbstractContextManager[Any]]:
  return lambda: mock.patch.object(target, name, value)


@contextmanager
def _layouts() -> Iterator[None]:
  with (
    mock.patch.object(assign, "minimise", first_feasible),
    mock.patch.object(share, "vector_frames", first_frame),
  ):
    yield


#: What is switched off -> the context in which it is.
NAIVE = {
  "layouts: the first that fit": _layouts,
  "warps: the first split": _set(share, "split_costs", first_split),
  "ways: only the best is tried": _set(kernel, "_MOST_WAYS", 1),
  "shared rows: not padded": _set(SharedTile, "pitch", property(_unpadded)),
  "wide loads: kept in registers": _set(lower, "MOST_COPIED", 0),
  "order: of the program": _set(kernel, "Lowering", ProgramOrder),
  "ahead: only the ring": _where_used,
  "op order: as written": _set(kernel, "arranged", as_written),
  "smem reuse: none": _set(kernel, "plan_memory", one_behind_another),
  "barriers: at every shared step": _set(kernel, "arranged", barriers_everywhere),
  "operands: packed in the loop": _set(demand, "MOST_RESIDENT", 0),
  "values in place: all of many": _set(kernel, "HELD", (8,)),
}


def barriers(threads: ThreadGraph) -> int:
  """Barriers that a block passes, those of its loop as often as it runs."""

  def count(steps: tuple[do.ThreadStep, ...]) -> int:
    return sum(isinstance(s, (do.ThreadBarrier, do.Advance)) for s in steps)

  graph, turned = threads.steps, any(isinstance(s, do.Advance) for s in threads.steps.body)
  # With one stage an iteration also waits until all have read the one before.
  again = threads.iterations - 1 if turned and threads.stages == 1 else 0
  return count(graph.before) + threads.iterations * count(graph.body) + again + count(graph.after)


def moves(threads: ThreadGraph) -> int:
  """Values that go through shared memory to lie otherwise; in the loop as often as it runs."""
  graph = threads.steps
  inside = sum(isinstance(s, do.Spill) for s in graph.body)
  return threads.iterations * inside + sum(isinstance(s, do.Spill) for s in graph.before + graph.after)


def held(threads: ThreadGraph) -> int:
  """Register elements of a lane, summed over the values that have a form."""
  plan = threads.plan
  assert isinstance(plan, kernel.TiledPlan)
  return sum(
    prod(plan.warps.shape(f)) for i, f in plan.lowering.forms.items() if not plan.lowering.in_place(i, f)
  )
