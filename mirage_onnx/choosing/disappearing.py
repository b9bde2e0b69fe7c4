"""Which nodes nobody needs any more where regions are replaced."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from mirage_onnx.ir.program import Program


class Place(Protocol):
  """All that a choice knows of a candidate (``match.candidates.RegionCandidate``)."""

  @property
  def nodes(self) -> frozenset[str]: ...
  @property
  def outputs(self) -> frozenset[str]: ...
  @property
  def reads(self) -> tuple[str, ...]: ...


def disappearing(program: Program, chosen: Sequence[Place]) -> frozenset[str]:
  """The nodes that nobody needs where ``chosen`` are replaced.

  A covered node stays if its value is not yielded by a region and somebody still reads it.
  """
  yielded = {o for c in chosen for o in c.outputs}
  wanted = {x for c in chosen for x in c.reads} | set(program.outputs)
  readers = program.consumers()
  gone = {n for c in chosen for n in c.nodes}
  for node in reversed(program.nodes):  # readers first
    kept = (o for o in node.outputs if o not in yielded)
    if any(o in wanted or set(readers.get(o, ())) - gone for o in kept):
      gone.discard(node.name)
  return frozenset(gone)


def shares(program: Program, chosen: Sequence[Place], node_us: Mapping[str, float]) -> dict[str, float]:
  """Node that disappears -> its time, divided by the number of regions that compute it."""
  owners = Counter(n for c in chosen for n in c.nodes)
  return {n: node_us.get(n, 0.0) / owners[n] for n in disappearing(program, chosen)}
