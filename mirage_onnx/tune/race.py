"""Candidates against each other and against ONNX Runtime: the rules of a choice by measurement.

What is timed, and where, is the bench's: the GPU (``measure.py``), or what an earlier run has found
there (``kept_bench.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mirage_onnx.codegen.candidates import Compiled
from mirage_onnx.errors import Rejection, RejectionError

MIN_GAIN = 0.03
#: Candidates that stay in the race from one look to the next.
FINALISTS = 4
SAMPLES = 15
#: What else is worth a try, by the fastest so far and all that were tried.
More = Callable[[Compiled, Sequence[Compiled]], Sequence[Compiled]]


@dataclass(frozen=True, slots=True)
class Measured:
  """Medians in microseconds (cold L2), and how many candidates were right.

  ``timed``: of every candidate that was timed, what was predicted and what was measured last.
  """

  kernel_us: float
  ort_us: float
  tried: int
  timed: tuple[tuple[float, float], ...] = ()


class Bench(Protocol):
  """Where the candidates of one region are run."""

  def complaints(self, some: Sequence[Compiled]) -> list[str | None]:
    """For each what is wrong with its results on hard inputs, or None.

    Raises:
        RejectionError: INCONCLUSIVE, there is nothing to compare with.
    """
    ...

  def times_us(self, some: Sequence[Compiled], samples: int, *, beside_ort: bool) -> np.ndarray:
    """(arms, samples), interleaved; ``beside_ort``: ONNX Runtime's kernels of the region come first."""
    ...


def raced(
  bench: Bench, nodes: tuple[str, ...], compiled: Sequence[Compiled], more: More
) -> tuple[Compiled | None, Measured | Rejection]:
  """The fastest right candidate with its time, or why ONNX Runtime's kernels stay.

  It must be at least ``MIN_GAIN`` faster than these. ``more`` is asked again until it has nothing.
  """
  tried: list[Compiled] = []
  wrong: list[str] = []
  arms: list[Compiled] = []
  timed: dict[int, tuple[float, float]] = {}
  others = compiled
  while others:
    tried += others
    try:
      found = bench.complaints(others)
    except RejectionError as refused:
      return None, refused.rejection
    wrong += [error for error in found if error]
    arms += [c for c, error in zip(others, found, strict=True) if not error]
    if not arms:
      return None, Rejection("KERNEL_WRONG", wrong[0], nodes)
    took = np.median(bench.times_us(arms, SAMPLES, beside_ort=False), axis=1)
    timed |= {id(c): (c.candidate.predicted_us, float(us)) for c, us in zip(arms, took, strict=True)}
    arms = [arms[i] for i in np.argsort(took, kind="stable")[:FINALISTS]]
    others = more(arms[0], tried)
  medians = [float(t) for t in np.median(bench.times_us(arms, SAMPLES, beside_ort=True), axis=1)]
  ort_us, ours = medians[0], medians[1:]
  best = int(np.argmin(ours))
  if ours[best] > ort_us * (1 - MIN_GAIN):
    reason = f"{ours[best]:.2f} us measured against {ort_us:.2f} us of onnxruntime"
    return None, Rejection("NOT_FASTER", reason, nodes)
  timed |= {id(c): (c.candidate.predicted_us, us) for c, us in zip(arms, ours, strict=True)}
  return arms[best], Measured(ours[best], ort_us, len(tried) - len(wrong), tuple(timed.values()))
