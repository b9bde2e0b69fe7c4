"""Whole onnxruntime sessions of several models, timed side by side in a child process.

A run is what a user's is: a session with default options, inputs and outputs on the device, and the end
of the run is waited for. Where onnxruntime can capture all arms as CUDA graphs, replays of these are
timed as well: what a run's launches hide on the host shows there. In an opening every arm gets a session
anew (``tune/paired.py`` says why); a sample is ``SAMPLE_S`` of runs of one arm, and every round has one of
each, forth and back in turn.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from mirage_onnx.custom_op.bodies import with_bodies
from mirage_onnx.custom_op.child import At, Child, Ended, in_child, serve
from mirage_onnx.custom_op.compare_inputs import draw_one
from mirage_onnx.custom_op.input_facts import input_facts
from mirage_onnx.custom_op.model_run import check_signatures, ort_value
from mirage_onnx.custom_op.runtime import EXTERNAL_FOLDER_KEY, import_onnxruntime
from mirage_onnx.custom_op.session import CPU_PROVIDER, CUDA_PROVIDER, InferenceSession, launches
from mirage_onnx.errors import MirageError
from mirage_onnx.tune.machine import gpu_alone
from mirage_onnx.tune.paired import LOOKS, Speedup, decide

if TYPE_CHECKING:
  import onnxruntime as ort

#: Seconds of one sample, about, and rounds of samples in an opening.
SAMPLE_S, ROUNDS = 0.01, 9
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
  ``seconds``: when to come to an end; ``more_s``: beyond that, until the first look, before which nothing
  can be said (the first opening loads libraries).
  """

  arms: tuple[Arm, ...]
  pairs: tuple[tuple[int, int], ...]
  seconds: float
  alpha: float
  points: tuple[Mapping[str, int], ...] = ({},)
  provider: str = "cuda"
  seed: int = 0
  more_s: float = 0.0


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

  def begin(self) -> None:
    """Let the process load its libraries."""
    self._child.begin()

  def close(self) -> None:
    """End the process."""
    self._child.close()

  def __call__(self, question: Race) -> Times | Failed:
    """As ``race``."""
    return race(question, self._child.ask)


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


def rounds_us(runs: Sequence[Callable[[], object]]) -> np.ndarray:
  """(arms, ``ROUNDS``) of microseconds of things that were run before, in turns."""
  calls = [max(1, int(SAMPLE_S / max(_sample(run, 1), 1e-6))) for run in runs]
  found = np.empty((len(runs), ROUNDS))
  for r in range(ROUNDS):
    for k in range(len(runs)) if r % 2 == 0 else range(len(runs) - 1, -1, -1):
      found[k, r] = _sample(runs[k], calls[k])
  return found * 1e6


def _sample(run: Callable[[], object], calls: int) -> float:
  """Seconds of one of ``calls`` runs."""
  start = time.perf_counter()
  for _ in range(calls):
    run()
  return (time.perf_counter() - start) / calls


def sizes_text(sizes: Mapping[str, int]) -> str:
  """As ``Raced.sizes`` has them."""
  return " ".join(f"{name}={v}" for name, v in sizes.items())


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

  def bound(
    self, feeds: Mapping[str, np.ndarray], graph_id: str, shared: Mapping[str, str]
  ) -> Callable[[], object]:
    """A run on memory of the device that stays the same, as the graph of this number if it captures any.

    ``shared``: the outputs in the memory of an input.
    """
    binding, options = self.session.io_binding(), import_onnxruntime().RunOptions()
    if self.graph:  # the first run allocates, and says how large the results are
      options.add_run_config_entry("gpu_graph_id", _NO_GRAPH)
    kept = {name: ort_value(x, self.device) for name, x in feeds.items()}
    for name, value in kept.items():
      binding.bind_ortvalue_input(name, value)
    names = [o.name for o in self.session.get_outputs()]
    for name in names:
      if name in shared:
        binding.bind_ortvalue_output(name, kept[shared[name]])
      else:
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
    self.counts, self.skipped = list[dict[str, int]](), list[str]()

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
    """One opening: runs first, then graphs, at every point."""
    self._openings += 1
    for graph in (False, True) if self._graphs else (False,):
      sessions = self._sessions(graph)
      if sessions is None:
        self._graphs = False
        return
      for n, sizes in enumerate(self._question.points):
        text = sizes_text(sizes)
        if text in self.skipped:
          continue
        with gpu_alone() if self._question.provider == "cuda" else nullcontext():
          timed = self._time(sessions, n, sizes, text)
        if not timed:
          return
      if not graph:
        self.counts = [dict(launches(s.session)) for s in sessions]
        if not self._us:
          raise MirageError("SESSION_FAILED", "the original runs at none of the declared sizes")

  def _sessions(self, graph: bool) -> list[_Session] | None:
    """One of each arm, with the first in turn; None where onnxruntime cannot capture graphs of all."""
    made = dict[int, _Session]()
    arms = list(enumerate(self._question.arms))
    for k, arm in arms if self._openings % 2 else arms[::-1]:
      self._at(f"{k} opening {os.path.basename(arm.path)}")
      try:
        made[k] = _Session(arm, self._question.provider, graph=graph)
      except Exception:  # of graphs: a node on the CPU, or anything else; then only runs are timed
        if graph:
          return None
        raise
    for k in range(1, len(made)):
      check_signatures(made[0].session, made[k].session)
    return [made[k] for k in range(len(made))]

  def _time(self, sessions: list[_Session], n: int, sizes: Mapping[str, int], text: str) -> bool:
    """Time all arms at a point; False where it turns out that they cannot be captured."""
    graph, rng = sessions[0].graph, np.random.default_rng([self._question.seed, n])
    feeds = draw_one(sessions[0].session.get_inputs(), rng, "normal 0", sizes, {}, self._facts)
    runs = list[Callable[[], object]]()
    try:
      for k, session in enumerate(sessions):
        self._at(f"{k} running {text}".rstrip())
        runs.append(_warmed(session.bound(feeds, str(n + 1), self._facts.shared_at(sizes))))
    except Exception:
      if graph:
        self._graphs = False
        return False
      if runs or len(self._question.points) == 1:
        raise
      self.skipped.append(text)  # the original does not run at this size
      return True
    self._at(f"timing {text}".rstrip())
    us, key = rounds_us(runs), (text, "graph" if graph else "run")
    self._us.setdefault(key, []).append(np.median(us, axis=1))
    ratios = [np.median(us[a] / us[b]) for a, b in self._question.pairs]
    self._ratios.setdefault(key, []).append(np.array(ratios))
    return True


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
    InferenceSession(model.SerializeToString(), None, [CUDA_PROVIDER]).run(
      None, {"x": np.ones(1, np.float32)}
    )


if __name__ == "__main__":
  serve(_work, _ready)
