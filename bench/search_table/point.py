"""One search of the table: a program, a bound, one pruning off or none; run in this process."""

import json
import resource
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace

from program_net import weight_values
from search_programs import ENTRIES, PROGRAMS

from mirage_onnx.superopt.axioms import AXIOMS
from mirage_onnx.superopt.hooks import Hooks, NoStore
from mirage_onnx.superopt.result import Stop, default_bound
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.space import ALL
from mirage_onnx.superopt.units import Units
from mirage_onnx.target import H200
from mirage_onnx.verify.prover import prover
from search_table.prunings import ALL_OF_THEM, PRUNINGS

#: What a search without its prunings may hold; more ends it as ``MEMORY``.
MEMORY_BYTES = 6 << 30
#: The reason that is counted where the bound leaves something out.
BOUND_REASON = "more contractions, reductions and accumulators than the bound"


@dataclass(frozen=True, slots=True)
class Point:
  """``off``: the pruning that is turned off, "" for none. ``cut_s``: wall-clock limit.

  ``workers``: processes of the search.
  """

  program: str
  operators: int
  off: str
  cut_s: float
  workers: int = 1

  @classmethod
  def from_text(cls, text):
    return cls(**json.loads(text))

  def to_text(self):
    return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Outcome:
  """What a search did.

  ``cpu_s`` is of the process alone. ``stop``: that of the report, or CUT where the time ran out,
  ENDED where that of the whole run did, MEMORY, or why the process ended. ``best_us`` is
  predicted; ``best_s``: when that program was proven. ``egraph``: its classes, its nodes, and why
  saturation ended.
  """

  cpu_s: float
  seconds: float
  states: int
  units: int
  built: int
  verified: int
  stop: str
  best_us: float | None = None
  kernels: int | None = None
  pruned: Mapping[str, int] | None = None
  egraph: tuple[int, int, str] | None = None
  best_s: float | None = None

  @classmethod
  def ended(cls, stop, seconds):
    """Of a process that left nothing else."""
    return cls(seconds, seconds, 0, 0, 0, 0, stop)

  @property
  def is_whole(self):
    """Whether nothing within the bound was left out."""
    return self.stop == Stop.EXHAUSTED

  @property
  def is_final(self):
    """Whether the bound left nothing out: a larger one is the same search."""
    return self.is_whole and BOUND_REASON not in (self.pruned or {})


class _Counting(NoStore):
  """Counts the units that a search has run."""

  def __init__(self):
    self.units = 0

  def put(self, key, value):
    self.units += 1


def bound_of(point):
  """The default bound without its limit of states: a run ends by itself or by its time."""
  bound = replace(default_bound(ALL), operators=point.operators, states=ALL_OF_THEM)
  return PRUNINGS[point.off].without(bound) if point.off else bound


def run(point):
  """Search; times are those of the search and its verifications, not of loading the program."""
  resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
  region, count = PROGRAMS[point.program](), _Counting()
  prove = prover(region, weight_values(ENTRIES[point.program].build), derived=True)
  bound = bound_of(point)
  without = PRUNINGS[point.off].off() if point.off else nullcontext()
  wall, cpu = time.monotonic(), time.process_time()
  proven_s = {}

  def timed(region, graph, params):
    verdict = prove(region, graph, params)
    proven_s[graph] = time.monotonic() - wall
    return verdict

  try:
    with without:
      result = search(
        region, H200, timed, bound=bound, space=ALL, budget_s=point.cut_s,
        hooks=Hooks(store=count), workers=point.workers,
      )  # fmt: skip
  except MemoryError:
    return Outcome.ended("MEMORY", round(time.monotonic() - wall, 2))
  cpu_s, seconds = time.process_time() - cpu, time.monotonic() - wall
  best = result.candidates[0].candidate if result.candidates else None
  report = result.report
  units = Units(region, H200, bound, AXIOMS, ALL)
  return Outcome(
    cpu_s=round(cpu_s, 2),
    seconds=round(seconds, 2),
    states=report.states,
    units=count.units,
    built=report.built,
    verified=report.verified,
    stop="CUT" if report.stop is Stop.BUDGET else str(report.stop),
    best_us=None if best is None else round(best.predicted_us, 3),
    kernels=None if best is None else len(best.ugraph.kernels),
    pruned={reason: n for reason, n in report.pruned if n},
    egraph=(len(units.graph), units.graph.size, str(units.saturation)),
    best_s=None if best is None else round(proven_s[best.ugraph], 2),
  )
