"""Barriers between the steps of a thread graph, as few as a walk through it finds.

Two steps that touch one shared tile, one of them writing, need a barrier between them. A barrier
orders everything before it against everything after it, so it is put as late as possible. The walk
carries what is unordered; it goes through the loop until an iteration leaves nothing to the next
that was not thought of. What ranks publish to each other needs a barrier of the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mirage_onnx.lower.steps import Advance, Copy, GatherRanks, ThreadBarrier, ThreadStep, ThreadSteps


@dataclass(slots=True)
class Unordered:
  """Tiles that threads may still be reading or writing; ``copies``: some are on their way.

  ``published``: tiles that were written since the last barrier of the cluster.
  """

  reads: set[str] = field(default_factory=set)
  writes: set[str] = field(default_factory=set)
  published: set[str] = field(default_factory=set)
  copies: bool = False

  def clashes(self, step: ThreadStep) -> bool:
    return bool(self.writes & {*step.reads, *step.writes} or self.reads & set(step.writes))

  def add(self, step: ThreadStep) -> None:
    self.reads.update(step.reads)
    self.writes.update(step.writes)
    self.published.update(step.writes)
    self.copies |= isinstance(step, Copy)

  def clear(self) -> None:
    self.reads.clear()
    self.writes.clear()
    self.copies = False

  def joined(self, other: Unordered) -> Unordered:
    """What is unordered where either may have gone before."""
    return Unordered(
      self.reads | other.reads,
      self.writes | other.writes,
      self.published | other.published,
      self.copies or other.copies,
    )


def _ordered(steps: Sequence[ThreadStep], state: Unordered) -> list[ThreadStep]:
  result: list[ThreadStep] = []
  for step in steps:
    if isinstance(step, Advance):
      state.clear()
    elif isinstance(step, ThreadBarrier):
      step = replace(step, copies=state.copies)
      state.clear()
      if step.cluster:
        state.published.clear()
    elif isinstance(step, GatherRanks) and state.published & set(step.reads):
      result.append(ThreadBarrier(step.index, cluster=True, copies=state.copies))
      state.clear()
      state.published.clear()
    elif state.clashes(step):
      result.append(ThreadBarrier(step.index, copies=state.copies))
      state.clear()
    state.add(step)
    result.append(step)
  return result


def _walk(graph: ThreadSteps) -> tuple[list[ThreadStep], list[ThreadStep], Unordered]:
  """The steps before the loop and in it, and what is unordered behind them."""
  state = Unordered()
  before = _ordered(graph.before, state)
  # What is unordered where an iteration begins: what stood before the loop, or what an
  # iteration has left.
  entry = state.joined(Unordered())
  while True:
    body = _ordered(graph.body, state := entry.joined(Unordered()))
    joined = entry.joined(state)
    if joined == entry:
      return before, body, entry
    entry = joined


def unordered_behind(before: tuple[ThreadStep, ...] = (), body: tuple[ThreadStep, ...] = ()) -> Unordered:
  """What steps before a loop, and in it, leave to those behind it."""
  return _walk(ThreadSteps(before, body, ()))[2]


def with_barriers(graph: ThreadSteps) -> ThreadSteps:
  """The graph with the barriers that it needs besides those that it has."""
  before, body, entry = _walk(graph)
  return ThreadSteps(tuple(before), tuple(body), tuple(_ordered(graph.after, entry)))
