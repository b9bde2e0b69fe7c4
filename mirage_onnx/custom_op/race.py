"""Whole onnxruntime sessions of several models, timed side by side in a child process.

A run is what a user's is: a session with default options, inputs and outputs on the device, and the end
of the run is waited for. Where onnxruntime can capture all arms as CUDA graphs, replays of these are
timed as well: what a run's launches hide on the host shows there. In an opening every arm gets a session
anew (``tune/paired.py`` says why); a sample is ``SAMPLE_S`` of runs of one arm, and every round has one of
each, forth and back in turn. Where memory has no room for all of them, each has it alone, one after the
other (``Race.apart``): a clock that drifts is then in the spread between openings.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import onnx

from mirage_onnx.custom_op.arm_session import NO_GRAPH, Arm, ArmSession, warmed
from mirage_onnx.custom_op.child import At, Child, Ended, in_child, serve
from mirage_onnx.custom_op.compare_inputs import FIRST, draw_one
from mirage_onnx.custom_op.input_facts import input_facts
from mirage_onnx.custom_op.model_run import Signature, check_signatures
from mirage_onnx.custom_op.runtime import import_onnxruntime
from mirage_onnx.custom_op.session import CUDA_PROVIDER, InferenceSession, launches
from mirage_onnx.errors import MirageError
from mirage_onnx.tune.machine import gpu_alone
from mirage_onnx.tune.paired import LOOKS, Speedup, decide

#: Seconds of one sample, about, and rounds of samples in an opening.
SAMPLE_S, ROUNDS = 0.01, 9
#: With many points samples are shorter, so that those of an opening take no more than this, or so at least;
#: of runs that take long there are fewer rounds, so that those of a point take no more than the last.
OPENING_S, LEAST_SAMPLE_S, POINT_S = 4.0, 1e-3, 2.0
LEAST_ROUNDS = 3
#: Beyond the time that a child is given, for what it cannot end by itself: making a session.
_MORE_S = 120.0


@dataclass(frozen=True, slots=True)
class Race:
  """``arms``, of which each pair (a, b) of ``pairs`` asks whether b is faster than a.

  ``points``: sizes of dynamic dimensions by name, at each of which all are run; those that the first arm
  cannot run are passed over. ``alpha``: the chance of a wrong answer to one pair at one point.
  ``seconds``: when to come to an end; ``more_s``: beyond that, until the first look, before which nothing
  can be said (the first opening loads libraries). ``apart``: one session is open at a time.
  ``captured``: where onnxruntime can capture the first arm as a graph, it must be able to capture the others.
  ``brief``: what is seen in its time is all that is asked, be it nothing.
  """

  arms: tuple[Arm, ...]
  pairs: tuple[tuple[int, int], ...]
  seconds: float
  alpha: float
  points: tuple[Mapping[str, int], ...] = ({},)
  provider: str = "cuda"
  seed: int = 0
  more_s: float = 0.0
  apart: bool = False
  captured: bool = False
  brief: bool = False


@dataclass(frozen=True, slots=True)
class Raced:
  """One size, one way to run (``run`` or ``graph``): medians of the arms in us, and of each pair."""

  sizes: str
  how: str
  us: tuple[float, ...]
  speedups: tuple[Speedup, ...]


@dataclass(frozen=True, slots=True)
class Failed:
  """Arm ``arm`` could not be run (None: it is not known which), and why; ``code`` of an error."""

  arm: int | None
  reason: str
  code: str = "SESSION_FAILED"


@dataclass(frozen=True, slots=True)
class Times:
  """``rows``: by size and way; ``launches``: of each arm, kernels of ours in all of its runs.

  ``skipped``: the points that the first arm could not run. ``by_node``: of each arm, ``launches`` by the
  names of custom nodes.
  """

  rows: tuple[Raced, ...]
  launches: tuple[int, ...]
  skipped: tuple[str, ...] = ()
  by_node: tuple[Mapping[str, int], ...] = ()


class Racer:
  """Races in one process, one after the other; it may be begun before the first."""

  def __init__(self) -> None:
    self._child = Child(__name__)

  def begin(self, original: str = "") -> None:
    """Let the process load its libraries; ``original``: the first arm of the races to come."""
    self._child.begin()

  def close(self) -> None:
    """End the process."""
    self._child.close()

  def __call__(self, question: Race) -> Times | Failed:
    """As ``race``."""
    return race(question, self._child.ask)

  def knows(self, question: Race) -> bool:
    """Whether the answer is there already."""
    return False

  def preferred(self, original: Arm, new: Arm, other: str) -> bool | None:
    """Whether ``other``, another model made of ``original``, was preferred to ``new``; None: not known."""
    return None

  def prefer(self, original: Arm, new: Arm, other: str, is_preferred: bool) -> None:
    """That is known now."""

  def leave(self, question: Race, budget_s: float) -> None:
    """Nobody had time for this one, with a budget of so many seconds."""

  def has_left(self, question: Race, budget_s: float) -> bool:
    """Whether an earlier run that this one repeats had no time for it."""
    return False


def race(question: Race, ask: Callable[[Race, float], Any] | None = None) -> Times | Failed:
  """Time the arms until all pairs are decided, or the time is over; ``ask``: a process that runs already.

  While it runs them, no other process that asks so uses the GPU; sessions may be made beside others' runs.
  """
  seconds = question.seconds + _MORE_S
  found = ask(question, seconds) if ask else in_child(__name__, question, seconds)
  if isinstance(found, Ended):
    arm = found.at.partition(" ")[0]
    return Failed(int(arm) if arm.isdigit() else None, str(found))
  kind, *rest = found
  if kind == "failed":
    return Failed(*rest)
  rows, counts, skipped = rest
  made = (Raced(sizes, how, us, tuple(Speedup(*s) for s in speedups)) for sizes, how, us, speedups in rows)
  return Times(tuple(made), tuple(sum(c.values()) for c in counts), tuple(skipped), tuple(counts))


def rounds_us(runs: Sequence[Callable[[], object]], sample_s: float = SAMPLE_S) -> np.ndarray:
  """(arms, rounds) of microseconds of things that were run before, in turns; fewer rounds of slow ones."""
  once = [_sample(run, 1) for run in runs]
  calls = [max(1, int(sample_s / max(s, 1e-6))) for s in once]
  round_s = max(sum(s * n for s, n in zip(once, calls, strict=True)), 1e-6)
  rounds = max(LEAST_ROUNDS, min(ROUNDS, int(POINT_S / round_s)))
  found = np.empty((len(runs), rounds))
  for r in range(rounds):
    for k in range(len(runs)) if r % 2 == 0 else range(len(runs) - 1, -1, -1):
      found[k, r] = _sample(runs[k], calls[k])
  return found * 1e6


def sample_seconds(question: Race) -> float:
  """Of one sample, by how many there are in an opening."""
  samples = ROUNDS * len(question.arms) * len(question.points) * (2 if question.provider == "cuda" else 1)
  return max(LEAST_SAMPLE_S, min(SAMPLE_S, OPENING_S / samples))


def _sample(run: Callable[[], object], calls: int) -> float:
  """Seconds of one of ``calls`` runs."""
  start = time.perf_counter()
  for _ in range(calls):
    run()
  return (time.perf_counter() - start) / calls


def sizes_text(sizes: Mapping[str, int]) -> str:
  """As ``Raced.sizes`` has them."""
  return " ".join(f"{name}={v}" for name, v in sizes.items())


class _Race:
  """The openings of a race so far: of every way to run and point the arms' medians."""

  def __init__(self, question: Race, at: At) -> None:
    self._question, self._at = question, at
    self._end = time.monotonic() + question.seconds
    self._first_end = self._end + question.more_s
    at(f"0 reading {os.path.basename(question.arms[0].path)}")
    self._facts = input_facts(onnx.load(question.arms[0].path, load_external_data=False))
    self._us: dict[tuple[str, str], list[np.ndarray]] = {}
    self._ratios: dict[tuple[str, str], list[np.ndarray]] = {}
    self._graphs, self._openings = question.provider == "cuda", 0
    self._sample_s = sample_seconds(question)
    self._first: Signature | None = None
    self.counts: list[dict[str, int]] = [{} for _ in question.arms]
    self.skipped = list[str]()

  def rows(self) -> list[tuple[object, ...]]:
    """Openings until all pairs are decided everywhere, or the time is over."""
    pairs = range(len(self._question.pairs))

    def openings(count: int) -> list[list[float]]:
      end = self._first_end if count == LOOKS[0] else self._end
      while self._openings < count and (self._openings < 1 or time.monotonic() < end):
        self._open()
      return [[float(r[p]) for r in some] for some in self._ratios.values() for p in pairs]

    found = iter(decide(openings, self._question.alpha))
    return [
      (
        sizes, how, tuple(float(u) for u in np.median(us, axis=0)),
        [(s.mean, s.low, s.high, s.openings, s.alpha) for s in islice(found, len(pairs))],
      )
      for (sizes, how), us in self._us.items()
    ]  # fmt: skip

  def _open(self) -> None:
    """One opening: runs, then graphs, at every point, of one session where all can be captured.

    Sessions are most of the time of models of gigabytes: 4.6 of 5.2 s of an opening of four layers of LLaMA.
    Of several points some may not run, which runs have to say first.
    """
    self._openings += 1
    if self._graphs and (self._openings > 1 or len(self._question.points) == 1):
      self._graphs = self._way("run", "graph")
      if self._graphs:
        return
    self._way("run")
    if not self._us:
      raise MirageError("SESSION_FAILED", "the original runs at none of the declared sizes")
    if self._graphs:
      self._graphs = self._way("graph")

  def _way(self, *ways: str) -> bool:
    """All arms, run in these ways; False where onnxruntime cannot capture them. No session is left open."""
    arms = [*range(len(self._question.arms))][:: 1 if self._openings % 2 else -1]
    us: dict[tuple[str, str], dict[int, np.ndarray]] = {}
    refused: tuple[int, str] | None = None
    for some in [[k] for k in arms] if self._question.apart else [arms]:
      try:
        self._time_some(some, us, ways)
      except _NotCapturedError as error:
        refused = error.arm, str(error)
        break
    if refused is not None:  # here: an exception that is handled holds the sessions
      if self._question.captured and refused[0] and self._captures_first():
        self._at(f"{refused[0]} capturing a graph")
        why = f"it cannot be captured as a CUDA graph, which the original can: {refused[1]}"
        raise MirageError("SESSION_FAILED", why)
      return False
    for key, by_arm in us.items():
      if len(by_arm) == len(arms):
        least = min(map(len, by_arm.values()))
        rounds = np.stack([by_arm[k][:least] for k in sorted(by_arm)])
        self._us.setdefault(key, []).append(np.median(rounds, axis=1))
        ratios = [np.median(rounds[a] / rounds[b]) for a, b in self._question.pairs]
        self._ratios.setdefault(key, []).append(np.array(ratios))
    return True

  @property
  def _is_cuda(self) -> bool:
    return self._question.provider == "cuda"

  def _time_some(
    self, some: Sequence[int], us: dict[tuple[str, str], dict[int, np.ndarray]], ways: Sequence[str]
  ) -> None:
    """Sessions of these arms side by side, made in this order, and their times at every point, into ``us``.

    Raises:
        _NotCapturedError: one cannot be captured.
    """
    graph = "graph" in ways
    sessions = dict(sorted({k: self._session(k, graph=graph) for k in some}.items()))
    for n, sizes in enumerate(self._question.points):
      if (text := sizes_text(sizes)) in self.skipped:
        continue
      with gpu_alone() if self._is_cuda else nullcontext():
        for how in ways:
          runs = self._runs(sessions, n, sizes, graph=graph, replayed=how == "graph")
          if runs is None:
            self.skipped.append(text)
            break
          which = f"{some[0]} timing {text}" if len(some) == 1 else f"timing {text}"
          self._at(which.rstrip())
          took = rounds_us(runs, self._sample_s)
          us.setdefault((text, how), {}).update(zip(sessions, took, strict=True))
          del runs
    if "run" in ways:
      for k, session in sessions.items():
        self.counts[k] = dict(launches(session.session))

  def _session(self, k: int, *, graph: bool) -> ArmSession:
    arm = self._question.arms[k]
    self._at(f"{k} opening {os.path.basename(arm.path)}")
    try:
      made = ArmSession(arm, self._question.provider, graph=graph)
    except Exception as error:  # of graphs: a node on the CPU, or anything else
      raise (_NotCapturedError(k, error) if graph else error) from None
    if self._first is None:
      self._first = Signature.of(made.session)
    check_signatures(self._first, made.session)
    return made

  def _runs(
    self, sessions: Mapping[int, ArmSession], n: int, sizes: Mapping[str, int], *, graph: bool, replayed: bool
  ) -> list[Callable[[], object]] | None:
    """Warm runs of all at a point; None where the original does not run at this size.

    ``replayed``: of ``graph``'s sessions, as a graph.
    """
    assert self._first is not None
    rng, text = np.random.default_rng([self._question.seed, n]), sizes_text(sizes)
    feeds = draw_one(self._first.get_inputs(), rng, FIRST, sizes, {}, self._facts)
    shared = self._facts.shared_at(sizes)
    runs = list[Callable[[], object]]()
    for k, session in sessions.items():
      self._at(f"{k} running {text}".rstrip())
      try:
        runs.append(warmed(session.bound(feeds, str(n + 1) if replayed else NO_GRAPH, shared)))
      except Exception as error:
        if graph:
          raise _NotCapturedError(k, error) from None
        # With a session of its own it may have the memory.
        crowded = len(sessions) > 1 and _is_memory(error)
        if k or len(self._question.points) == 1 or crowded:
          raise
        return None
    return runs

  def _captures_first(self) -> bool:
    """Whether onnxruntime can capture the first arm, which is alone now."""
    try:
      self._time_some([0], {}, ("graph",))
    except _NotCapturedError:
      return False
    return True


class _NotCapturedError(Exception):
  """onnxruntime does not capture ``arm`` as a graph."""

  def __init__(self, arm: int, error: Exception) -> None:
    super().__init__(next(iter(str(error).splitlines()), "")[:300])
    self.arm = arm


def _is_memory(error: Exception) -> bool:
  """Whether it was memory that was missing, by the words of onnxruntime, CUDA and its libraries."""
  said = str(error).lower()
  return "alloc" in said or "out of memory" in said


def _work(question: Race, at: At) -> tuple[object, ...]:
  last = ""

  def told(what: str) -> None:
    nonlocal last
    last = what
    at(what)

  try:
    race = _Race(question, told)
    return "timed", race.rows(), race.counts, race.skipped
  except Exception as error:  # onnxruntime has a class per status code and no common base
    arm = last.partition(" ")[0]
    which = int(arm) if arm.isdigit() else None
    if isinstance(error, MirageError):
      return "failed", which, error.detail, error.code
    line = next(iter(str(error).splitlines()), "")
    return "failed", which, f"{last}: {type(error).__name__}: {line[:400]}", "SESSION_FAILED"


def _ready() -> None:
  """What takes seconds before the first session: onnxruntime's libraries, and those of CUDA."""
  if CUDA_PROVIDER in import_onnxruntime().get_available_providers():
    info = onnx.helper.make_tensor_value_info
    x, y = (info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["y"])], "", [x], [y])
    opsets = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    with gpu_alone():  # kernels may be timed still
      InferenceSession(model.SerializeToString(), None, [CUDA_PROVIDER]).run(
        None, {"x": np.ones(1, np.float32)}
      )
  decide(lambda count: [[1.0] * count])  # what that imports


if __name__ == "__main__":
  serve(_work, _ready)
