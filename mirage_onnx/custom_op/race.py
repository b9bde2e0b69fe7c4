"""Whole onnxruntime sessions of several models, timed side by side in a child process.

A run is what a user's is: a session with default options, inputs and outputs on the device, and the end
of the run is waited for. Where onnxruntime can capture all arms as CUDA graphs, replays of these are
timed as well: what a run's launches hide on the host shows there. A sample is ``SAMPLE_S`` of runs of one
arm; every round has one of each, forth and back in turn, and a comparison is of the two in one round.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from mirage_onnx.custom_op.bodies import with_bodies
from mirage_onnx.custom_op.child import At, Ended, in_child, serve
from mirage_onnx.custom_op.compare_inputs import draw_one
from mirage_onnx.custom_op.input_facts import input_facts
from mirage_onnx.custom_op.model_run import check_signatures, ort_value
from mirage_onnx.custom_op.runtime import EXTERNAL_FOLDER_KEY, import_onnxruntime
from mirage_onnx.custom_op.session import CPU_PROVIDER, CUDA_PROVIDER, InferenceSession, launches
from mirage_onnx.errors import MirageError
from mirage_onnx.tune.paired import LOOKS, Speedup, decide

if TYPE_CHECKING:
  import onnxruntime as ort

#: Seconds of one sample, about.
SAMPLE_S = 0.01
#: Runs before anything counts: allocations, the choice of algorithms, the capture of a graph.
WARM_RUNS = 4
#: Beyond the time that a child is given, for what it cannot end by itself: making a session.
_MORE_S = 120.0
#: onnxruntime's number for a run that neither captures nor replays a graph.
_NO_GRAPH = "-1"


@dataclass(frozen=True, slots=True)
class Arm:
  """A model file; the custom nodes with an output of ``bodies`` run their function bodies."""

  path: str
  bodies: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Race:
  """``arms``, of which each pair (a, b) of ``pairs`` asks whether b is faster than a.

  ``points``: sizes of dynamic dimensions by name, at each of which all are run; those that the first arm
  cannot run are passed over. ``alpha``: the chance of a wrong answer to one pair at one point.
  ``seconds``: when to come to an end.
  """

  arms: tuple[Arm, ...]
  pairs: tuple[tuple[int, int], ...]
  seconds: float
  alpha: float
  points: tuple[Mapping[str, int], ...] = ({},)
  provider: str = "cuda"
  seed: int = 0


@dataclass(frozen=True, slots=True)
class Raced:
  """One size, one way to run (``run`` or ``graph``): medians of the arms in us, and of each pair."""

  sizes: str
  how: str
  us: tuple[float, ...]
  speedups: tuple[Speedup, ...]


@dataclass(frozen=True, slots=True)
class Failed:
  """Arm ``arm`` could not be run (None: it is not known which), and why."""

  arm: int | None
  reason: str


@dataclass(frozen=True, slots=True)
class Times:
  """``rows``: by size and way; ``launches``: of each arm, kernels of ours in all of its runs.

  ``skipped``: the points that the first arm could not run.
  """

  rows: tuple[Raced, ...]
  launches: tuple[int, ...]
  skipped: tuple[str, ...] = ()


def race(question: Race) -> Times | Failed:
  """Time the arms until all pairs are decided, or the time is over."""
  found = in_child(__name__, question, question.seconds + _MORE_S)
  if isinstance(found, Ended):
    arm = found.at.partition(" ")[0]
    return Failed(int(arm) if arm.isdigit() else None, str(found))
  kind, *rest = found
  if kind == "failed":
    return Failed(*rest)
  rows, counts, skipped = rest
  made = (Raced(sizes, how, us, tuple(Speedup(*s) for s in speedups)) for sizes, how, us, speedups in rows)
  return Times(tuple(made), tuple(counts), tuple(skipped))


def paired_rounds(
  runs: Sequence[Callable[[], object]],
  pairs: Sequence[tuple[int, int]],
  *,
  alpha: float,
  end: float,
  looks: tuple[int, ...] = LOOKS,
) -> tuple[np.ndarray, tuple[Speedup, ...]]:
  """((arms, rounds) of microseconds, the speedup of each pair) of things that can be run.

  No round begins after ``end`` (of ``time.monotonic``), but the first look is always taken.
  """
  for run in runs:
    for _ in range(WARM_RUNS):
      run()
  once = [_sample(run, 1) for run in runs]
  calls = [max(1, int(SAMPLE_S / max(o, 1e-6))) for o in once]
  rounds: list[list[float]] = []

  def until(count: int) -> np.ndarray:
    while len(rounds) < count and (len(rounds) < looks[0] or time.monotonic() < end):
      forth = range(len(runs)) if len(rounds) % 2 == 0 else range(len(runs) - 1, -1, -1)
      took = {k: _sample(runs[k], calls[k]) for k in forth}
      rounds.append([took[k] for k in range(len(runs))])
    return np.array(rounds).T * 1e6

  found = dict[int, Speedup]()

  def ratios(a: int, b: int, count: int) -> np.ndarray:
    times = until(count)
    return np.asarray(times[a] / times[b])

  asked = {k: decide(partial(ratios, a, b), alpha, looks) for k, (a, b) in enumerate(pairs)}
  for _ in looks:
    for k, answers in list(asked.items()):
      if (answer := next(answers, None)) is None:
        del asked[k]
      else:
        found[k] = answer
    if not asked or time.monotonic() > end:
      break
  return until(0), tuple(found[k] for k in range(len(pairs)))


def _sample(run: Callable[[], object], calls: int) -> float:
  """Seconds of one of ``calls`` runs."""
  start = time.perf_counter()
  for _ in range(calls):
    run()
  return (time.perf_counter() - start) / calls


class _Session:
  """A session of an arm, and what runs it with given inputs."""

  def __init__(self, arm: Arm, provider: str, *, graph: bool) -> None:
    runtime = import_onnxruntime()
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    model: str | bytes = arm.path
    if arm.bodies:
      model = with_bodies(onnx.load(arm.path, load_external_data=False), arm.bodies).SerializeToString()
      options.add_session_config_entry(EXTERNAL_FOLDER_KEY, os.path.dirname(os.path.abspath(arm.path)))
    wanted = CUDA_PROVIDER if provider == "cuda" else CPU_PROVIDER
    more = {"enable_cuda_graph": "1"} if graph else {}
    providers: list[Any] = [(wanted, more)]
    if provider == "cuda" and not graph:
      providers.append(CPU_PROVIDER)
    self.graph, self.device = graph, "cuda" if provider == "cuda" else "cpu"
    self.session: ort.InferenceSession = InferenceSession(model, options, providers)
    if self.session.get_providers()[0] != wanted:
      raise MirageError("SESSION_FAILED", f"onnxruntime could not use {wanted}")

  def bound(self, feeds: Mapping[str, np.ndarray], graph_id: str) -> Callable[[], object]:
    """A run on memory of the device that stays the same, as the graph of this number if it captures any."""
    binding, options = self.session.io_binding(), import_onnxruntime().RunOptions()
    if self.graph:  # the first run allocates, and says how large the results are
      options.add_run_config_entry("gpu_graph_id", _NO_GRAPH)
    kept = {name: ort_value(x, self.device) for name, x in feeds.items()}
    for name, value in kept.items():
      binding.bind_ortvalue_input(name, value)
    names = [o.name for o in self.session.get_outputs()]
    for name in names:
      binding.bind_output(name, self.device)
    self.session.run_with_iobinding(binding, options)
    results = binding.get_outputs()
    binding.clear_binding_outputs()
    for name, value in zip(names, results, strict=True):
      binding.bind_ortvalue_output(name, value)
    if self.graph:
      options = import_onnxruntime().RunOptions()
      options.add_run_config_entry("gpu_graph_id", graph_id)
    return lambda: (self.session.run_with_iobinding(binding, options), kept, results)


def _sessions(question: Race, at: At, *, graph: bool) -> list[_Session]:
  made = []
  for k, arm in enumerate(question.arms):
    at(f"{k} opening {os.path.basename(arm.path)}")
    made.append(_Session(arm, question.provider, graph=graph))
  return made


def _graph_sessions(question: Race, at: At) -> list[_Session] | None:
  """Sessions that capture CUDA graphs, where onnxruntime can do that with every arm."""
  if question.provider != "cuda":
    return None
  try:
    return _sessions(question, at, graph=True)
  except Exception:  # a node on the CPU, or anything else: then runs are what is timed
    return None


def _race(question: Race, at: At) -> tuple[object, ...]:
  """Runs first, then graphs, at every point; what is left of the time is shared evenly by what is left."""
  end = time.monotonic() + question.seconds
  at(f"0 reading {os.path.basename(question.arms[0].path)}")
  facts = input_facts(onnx.load(question.arms[0].path, load_external_data=False))
  rows, counts, skipped = list[tuple[object, ...]](), list[int](), list[str]()
  for graph in (False, True):
    sessions = _graph_sessions(question, at) if graph else _sessions(question, at, graph=False)
    if sessions is None:
      break
    for other in sessions[1:]:
      check_signatures(sessions[0].session, other.session)
    for n, sizes in enumerate(question.points):
      text = " ".join(f"{name}={v}" for name, v in sizes.items())
      if text in skipped:
        continue
      rng = np.random.default_rng([question.seed, n])
      feeds = draw_one(sessions[0].session.get_inputs(), rng, "normal 0", sizes, {}, facts)
      runs = list[Callable[[], object]]()
      try:
        for k, session in enumerate(sessions):
          at(f"{k} running {text}".rstrip())
          runs.append(_warmed(session.bound(feeds, str(n + 1))))
      except Exception:
        if graph:  # it cannot be captured after all
          return "timed", rows, counts, skipped
        if runs or len(question.points) == 1:
          raise
        skipped.append(text)
        continue
      at(f"timing {text}".rstrip())
      left = len(question.points) - n + (0 if graph else len(question.points))
      now = time.monotonic()
      own = now + max(0.0, end - now) / left
      times, speedups = paired_rounds(runs, question.pairs, alpha=question.alpha, end=own)
      us = tuple(float(t) for t in np.median(times, axis=1))
      plain = [(s.median, s.low, s.high, s.pairs, s.alpha) for s in speedups]
      rows.append((text, "graph" if graph else "run", us, plain))
    if not graph:
      counts = [sum(launches(s.session).values()) for s in sessions]
      if not rows:
        raise MirageError("SESSION_FAILED", "the original runs at none of the declared sizes")
    del sessions
  return "timed", rows, counts, skipped


def _warmed(run: Callable[[], object]) -> Callable[[], object]:
  for _ in range(WARM_RUNS):
    run()
  return run


def _work(question: Race, at: At) -> tuple[object, ...]:
  last = ""

  def told(what: str) -> None:
    nonlocal last
    last = what
    at(what)

  try:
    return _race(question, told)
  except Exception as error:  # onnxruntime has a class per status code and no common base
    arm = last.partition(" ")[0]
    line = next(iter(str(error).splitlines()), "")
    return "failed", int(arm) if arm.isdigit() else None, f"{last}: {type(error).__name__}: {line[:400]}"


if __name__ == "__main__":
  serve(_work)
