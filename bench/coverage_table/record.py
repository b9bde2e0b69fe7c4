"""A model of the table with its line, its checks or what went wrong; and sums over all models."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from coverage_table.checks import Check
from coverage_table.kinds import KINDS
from coverage_table.row import Coverage, Kept


@dataclass(frozen=True, slots=True)
class Record:
  """``error``: why there is no ``coverage``: a refusal, or the last line of a traceback.

  ``weights``: bytes of the model. ``seconds``: of ``optimize`` alone, ``stages``: of each of its stages;
  ``memory_mb``: the most that it and its workers took, weights that lie in mapped files left out;
  ``cut_off``: regions whose search the budget ended. ``stock``: the result in onnxruntime without the
  library. ``flags``: what ``optimize`` was told. ``repeat_s``: seconds of the same ``optimize`` a second
  time, with what the first one kept. ``commit``: of the tree that made this line. ``at_60_s``: what the
  command had said last then of how far it was; ``silence_s``: the longest time in which it said nothing.
  ``times_of``: the commit of times and memory, where that is another one.
  """

  name: str
  kind: str
  dtype: str
  weights: int = 0
  seconds: float = 0.0
  memory_mb: int = 0
  cut_off: int = 0
  coverage: Coverage | None = None
  error: str = ""
  stock: Check | None = None
  emulated: Check | None = None
  flags: str = "default"
  repeat_s: float | None = None
  stages: Mapping[str, float] = field(default_factory=dict)
  commit: str = ""
  at_60_s: str = ""
  silence_s: float | None = None
  times_of: str = ""

  def with_times(self, other):
    """This line with what ``other`` says of time and memory, by its commit."""
    names = ("seconds", "memory_mb", "cut_off", "repeat_s", "stages", "at_60_s", "silence_s", "error")
    return replace(self, **{n: getattr(other, n) for n in names}, times_of=other.commit)

  @property
  def is_wrong(self):
    checks = (c for c in (self.stock, self.emulated) if c is not None)
    return self.coverage is None or bool(self.error) or any(c.is_wrong for c in checks)


@dataclass(frozen=True, slots=True)
class Spread:
  """Median, least and most of one share over the models of one kind."""

  kind: str
  models: int
  median: float
  low: float
  high: float


def spreads(records, share):
  """By kind; kinds of which no model has a line are left out."""
  by_kind = defaultdict(list)
  for r in records:
    if r.coverage is not None:
      by_kind[r.kind].append(share(r.coverage))
  return [
    Spread(kind, len(x), statistics.median(x), min(x), max(x)) for kind in KINDS if (x := by_kind[kind])
  ]


@dataclass(frozen=True, slots=True)
class Reasons:
  """One reason over all models: ``kept`` summed, and how many models have it."""

  kept: Kept
  models: int


def all_reasons(records):
  """Most bytes first."""
  found = {}
  for r in records:
    for kept in r.coverage.kept if r.coverage else ():
      known = found.get(kept.reason)
      found[kept.reason] = Reasons(_added(known.kept, kept), known.models + 1) if known else Reasons(kept, 1)
  return sorted(found.values(), key=lambda x: (-x.kept.bytes, -x.kept.nodes, x.kept.reason))


def _added(a, b):
  ops = Counter(a.ops) + Counter(b.ops)
  return replace(
    a,
    nodes=a.nodes + b.nodes,
    flops=a.flops + b.flops,
    bytes=a.bytes + b.bytes,
    ops=dict(ops.most_common()),
  )


def codes(reasons):
  """(code, nodes, bytes), most bytes first."""
  nodes = Counter()
  moved = Counter()
  for r in reasons:
    nodes[r.kept.reason.code] += r.kept.nodes
    moved[r.kept.reason.code] += r.kept.bytes
  return [(code, nodes[code], count) for code, count in moved.most_common()]
