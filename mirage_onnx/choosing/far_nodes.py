"""Nodes that layers far from each other share: a mask of all layers, the angles of rotary embeddings.

With them a window of candidates would begin at the first node of the model, have to do with all that was
chosen before, and be a problem of its own, however equal the layers are.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mirage_onnx.choosing.disappearing import Place
from mirage_onnx.ir.program import Node

#: Candidates with a node in common that end so far from each other, as a part of the program, share it only.
FAR = 0.4


@dataclass(frozen=True, slots=True)
class FarNodes:
  """``names``; ``yielding``: candidates that yield what one makes; ``end``: up to there all are needed."""

  names: frozenset[str]
  yielding: frozenset[int]
  end: int

  def do_not_matter(self, free: Sequence[int], last: Sequence[int]) -> bool:
    """Whether a choice among ``free`` is the same without them, but for a circle of dependence.

    Each has a reader behind, so that it stays, and nobody yields what it does. ``last``: the last places of
    candidates.
    """
    return max(last[i] for i in free) < self.end and self.yielding.isdisjoint(free)


def far_nodes(
  candidates: Sequence[Place], last: Sequence[int], nodes: Mapping[str, Node],
  readers: Mapping[str, Collection[str]],
) -> FarNodes:  # fmt: skip
  """Those of a program's ``nodes``, by name in its order; ``last``: the places of candidates' last nodes."""
  ends: dict[str, tuple[int, int]] = {}
  for c, end in zip(candidates, last, strict=True):
    for n in c.nodes:
      low, high = ends.get(n, (end, end))
      ends[n] = min(low, end), max(high, end)
  names = frozenset(n for n, (low, high) in ends.items() if high - low > FAR * len(nodes))
  place = {n: i for i, n in enumerate(nodes)}
  reaches: dict[str, int] = {}  # of the last node that reads one, or what other far ones make of it
  for n in sorted(names, key=place.__getitem__, reverse=True):
    reading = [r for o in nodes[n].outputs for r in readers.get(o, ())]
    reaches[n] = max((reaches.get(r, place[r]) for r in reading), default=-1)
  made = {o for n in names for o in nodes[n].outputs}
  yielding = frozenset(i for i, c in enumerate(candidates) if not made.isdisjoint(c.outputs))
  return FarNodes(names, yielding, min(reaches.values(), default=-1))
