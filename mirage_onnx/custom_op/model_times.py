"""How long whole runs of two models take in onnxruntime, side by side, in a child process.

Sessions with default options; inputs and outputs stay on the device, so that nothing but the models is
timed. A sample is ``SAMPLE_S`` of runs of one model, samples of both alternate, and each pair gives one
speedup: what drifts (clocks, other programs) is in both. The interval is a bootstrap's, of the median.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx

from mirage_onnx.custom_op.child import At, Ended, in_child, serve
from mirage_onnx.custom_op.compare_inputs import combinations, draw_one
from mirage_onnx.custom_op.input_facts import input_facts
from mirage_onnx.custom_op.model_run import How, check_signatures, open_session, ort_value
from mirage_onnx.custom_op.session import launches
from mirage_onnx.errors import MirageError

if TYPE_CHECKING:
  import onnxruntime as ort

#: Seconds of one sample, about; pairs of samples at least.
SAMPLE_S, LEAST_PAIRS = 0.01, 10
#: Runs before anything counts: allocations, the choice of algorithms.
WARM_RUNS = 3
RESAMPLES, CONFIDENCE = 2000, 0.95
#: A child that takes so many times the seconds it was given, and so many more, hangs.
_HANGS, _HANGS_S = 10.0, 600.0


@dataclass(frozen=True, slots=True)
class Timed:
  """Medians of a run in microseconds; ``speedup`` of the pairs, with the ends of its interval.

  ``sizes``: of the dynamic dimensions, as text.
  """

  sizes: str
  a_us: float
  b_us: float
  speedup: float
  low: float
  high: float
  pairs: int


@dataclass(frozen=True, slots=True)
class Times:
  """``launches``: kernels of ours that a run of ``b`` launched, by custom node."""

  rows: tuple[Timed, ...]
  launches: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Question:
  a: str
  b: str
  provider: str
  dims: Mapping[str, Sequence[int]]
  seconds: float
  seed: int


def time_models(
  a: str, b: str, *, provider: str, dims: Mapping[str, Sequence[int]], seconds: float, seed: int = 0
) -> Times:
  """Time the original ``a`` and ``b`` for ``seconds`` at every combination of ``dims``.

  Raises:
      MirageError: SHAPES_DIFFER, OPTION_INVALID for inputs that cannot be drawn, and SESSION_FAILED, also
          where onnxruntime ended the process.
  """
  question = _Question(a, b, provider, dict(dims), seconds, seed)
  limit = _HANGS * seconds * len(combinations(question.dims)) + _HANGS_S
  found = in_child(__name__, question, limit)
  if isinstance(found, Ended):
    raise MirageError("SESSION_FAILED", str(found))
  kind, *rest = found
  if kind == "refused":
    raise MirageError(*rest)
  rows, counts = rest
  return Times(tuple(Timed(*row) for row in rows), counts)


def interval(speedups: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
  """The ends of the median's interval, by resampling the pairs."""
  picks = rng.integers(len(speedups), size=(RESAMPLES, len(speedups)))
  tail = (1 - CONFIDENCE) / 2
  low, high = np.quantile(np.median(speedups[picks], axis=1), [tail, 1 - tail])
  return float(low), float(high)


def compare(
  runs: Sequence[Callable[[], object]], seconds: float, rng: np.random.Generator
) -> tuple[float, ...]:
  """The numbers of ``Timed`` of two things that can be run."""
  for run in runs:
    for _ in range(WARM_RUNS):
      run()
  once = max(_sample(run, 1) for run in runs)
  calls = max(1, int(SAMPLE_S / once))
  end, samples = time.monotonic() + seconds, list[tuple[float, float]]()
  while len(samples) < LEAST_PAIRS or time.monotonic() < end:
    order = (0, 1) if len(samples) % 2 == 0 else (1, 0)
    pair = {k: _sample(runs[k], calls) * 1e6 for k in order}
    samples.append((pair[0], pair[1]))
  times = np.array(samples)
  speedups = times[:, 0] / times[:, 1]
  a_us, b_us = np.median(times, axis=0)
  return float(a_us), float(b_us), float(np.median(speedups)), *interval(speedups, rng), len(samples)


def _sample(run: Callable[[], object], calls: int) -> float:
  start = time.perf_counter()
  for _ in range(calls):
    run()
  return (time.perf_counter() - start) / calls


def _bound(
  session: ort.InferenceSession, feeds: Mapping[str, np.ndarray], device: str
) -> Callable[[], object]:
  """A run on inputs that lie on the device already."""
  binding = session.io_binding()
  kept = {name: ort_value(x, device) for name, x in feeds.items()}
  for name, value in kept.items():
    binding.bind_ortvalue_input(name, value)
  for output in session.get_outputs():
    binding.bind_output(output.name, device)
  return lambda: (session.run_with_iobinding(binding), kept)


def _times(question: _Question, at: At) -> tuple[object, ...]:
  how, device = How(question.provider), "cuda" if question.provider == "cuda" else "cpu"
  rng = np.random.default_rng(question.seed)
  sessions = []
  for path in (question.a, question.b):
    at(f"opening {os.path.basename(path)}")
    sessions.append(open_session(path, how))
  check_signatures(*sessions)
  facts = input_facts(onnx.load(question.a, load_external_data=False))
  rows = []
  for sizes in combinations(question.dims):
    text = " ".join(f"{n}={v}" for n, v in sizes.items())
    at(f"running both {text}".rstrip())
    feeds = draw_one(sessions[0].get_inputs(), rng, "normal 0", sizes, {}, facts)
    runs = [_bound(s, feeds, device) for s in sessions]
    rows.append((text, *compare(runs, question.seconds, rng)))
  return "timed", rows, dict(launches(sessions[1]))


def _work(question: _Question, at: At) -> tuple[object, ...]:
  try:
    return _times(question, at)
  except MirageError as error:
    return "refused", error.code, error.detail
  except Exception as error:  # onnxruntime has a class per status code and no common base
    line = next(iter(str(error).splitlines()), "")
    return "refused", "SESSION_FAILED", f"{type(error).__name__}: {line}"


if __name__ == "__main__":
  serve(_work)
