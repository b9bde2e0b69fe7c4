"""What the search is asked to discover in a program, read off the µGraphs that it returns."""

from dataclasses import dataclass

from program_net import Build

from mirage_onnx.ir.ugraph import Phase, is_part_axis


@dataclass(frozen=True)
class Expected:
  """``kernels``: at most, of the candidate that is predicted fastest. The rest is asked of some
  candidate: ``ops`` block operations that it uses, all of them; ``accumulators`` and
  ``contractions`` at least, in the loop of one of its kernels; ``parts``: partial results over
  the tiles of a grid, which a later kernel combines.
  """

  kernels: int
  ops: frozenset[str] = frozenset()
  accumulators: int = 0
  contractions: int = 0
  parts: bool = False

  def missing(self, found):
    """What is not met by ``found``, cheapest first; empty if all is."""
    if not found:
      return ("a candidate",)
    lacks = []
    if (count := len(found[0].kernels)) > self.kernels:
      lacks.append(f"at most {self.kernels} kernels: the best has {count}")
    if self.ops and not any(self.ops <= used_ops(g) for g in found):
      lacks.append(f"a candidate with {', '.join(sorted(self.ops))}")
    if (most := _most(found, accumulators)) < self.accumulators:
      lacks.append(f"{self.accumulators} accumulators of one loop: the most are {most}")
    if (most := _most(found, contractions)) < self.contractions:
      lacks.append(f"{self.contractions} contractions in one loop: the most are {most}")
    if self.parts and not any(has_parts(g) for g in found):
      lacks.append("partial results of a split reduction")
    return tuple(lacks)


@dataclass(frozen=True)
class Entry:
  build: Build
  expected: Expected


def used_ops(graph):
  return frozenset(o.op for k in graph.kernels for o in k.ops)


def accumulators(kernel):
  return sum(o.op.startswith("acc_") for o in kernel.ops)


def contractions(kernel):
  """Of the loop; what is contracted after it is not counted."""
  return sum(o.op == "matmul" and o.phase is Phase.LOOP for o in kernel.ops)


def has_parts(graph):
  return any(is_part_axis(a) for t in graph.tensors for a in t.axes)


def _most(found, count):
  return max(count(k) for g in found for k in g.kernels)


def entry(entries, expected):
  """Put the decorated program under its name into ``entries``."""

  def add(build):
    entries[build.__name__] = Entry(build, expected)
    return build

  return add
