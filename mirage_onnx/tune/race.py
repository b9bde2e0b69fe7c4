"""Candidates against each other and against ONNX Runtime: the rules of a choice by measurement.

What is timed, and where, is the bench's: the GPU (``measure.py``), or what an earlier run has found
there (``kept_bench.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from mirage_onnx.compiler.candidates import Compiled
from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.tune.paired import ALPHA, PairedVerdict, Speedup, decide, speedup

#: Candidates that stay in the race from one look to the next.
FINALISTS = 4
#: Samples of a look that says which are the fastest so far; of more candidates than twice as many a short one
#: is enough to see the worse half.
SAMPLES, FEW_SAMPLES = 7, 3
#: Who takes so many times as long as ONNX Runtime at the first look has no other numbers tried: of 1021
#: kernels the model's first choice took 1.30 times as long as the fastest, and the first are a dozen.
HOPELESS = 1.6
#: Samples after which there is a look at whether a candidate is faster than ONNX Runtime's kernels.
LOOKS = (15, 30, 60)
#: Samples whose median counts as one.
OF_SAMPLES = 3
#: A difference of two cold times may come out as nothing, or less; its logarithm counts.
LEAST_US = 0.05
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


@dataclass(frozen=True, slots=True)
class Lost(Rejection):
  """NOT_FASTER with the times that say so, and the program that was the fastest."""

  measured: Measured | None = None
  best: Compiled | None = field(default=None, compare=False)


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

  It must be faster than these with confidence: samples of one round are a pair, and the lower bound of
  their ratio counts (``paired.py``). ``more`` is asked again until it has nothing, and not where the first
  are far behind. Nothing is timed before it is seen to be right.
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
    is_first = others is compiled
    ranked, took, ort_us = _ranked(bench, arms, beside_ort=is_first)
    timed |= {id(c): (c.candidate.predicted_us, us) for c, us in zip(ranked, took, strict=True)}
    if is_first and took[0] > HOPELESS * max(ort_us, LEAST_US):
      arms = ranked[:1]
      break
    arms = ranked[:FINALISTS]
    others = more(arms[0], tried)
  place = {id(c): i for i, c in enumerate(tried)}
  found_us, best, against = _final(bench, arms, [place[id(c)] for c in arms])
  medians = [float(t) for t in np.median(found_us, axis=1)]
  ort_us, ours = medians[0], medians[1:]
  timed |= {id(c): (c.candidate.predicted_us, us) for c, us in zip(arms, ours, strict=True)}
  measured = Measured(ours[best], ort_us, len(tried) - len(wrong), tuple(timed.values()))
  if against.verdict is not PairedVerdict.FASTER:
    reason = (
      f"{ours[best]:.2f} us measured against {ort_us:.2f} us of onnxruntime: {against.mean:.3f}x "
      f"({against.low:.3f} to {against.high:.3f})"
    )
    return None, Lost("NOT_FASTER", reason, nodes, measured, arms[best])
  return arms[best], measured


def _ranked(
  bench: Bench, arms: Sequence[Compiled], *, beside_ort: bool
) -> tuple[list[Compiled], list[float], float]:
  """The fastest of ``arms`` first, with their medians, and ONNX Runtime's if that was asked.

  Of many only the better ones after a short look.
  """
  if len(arms) > 2 * FINALISTS:
    took = np.median(bench.times_us(arms, FEW_SAMPLES, beside_ort=False), axis=1)
    arms = [arms[i] for i in sorted(np.argsort(took, kind="stable")[: 2 * FINALISTS])]
  took = np.median(bench.times_us(arms, SAMPLES, beside_ort=beside_ort), axis=1)
  ort_us, took = (float(took[0]), took[1:]) if beside_ort else (0.0, took)
  order = np.argsort(took, kind="stable")
  return [arms[i] for i in order], [float(took[i]) for i in order], ort_us


def _final(bench: Bench, arms: Sequence[Compiled], place: Sequence[int]) -> tuple[np.ndarray, int, Speedup]:
  """The last look: the times with ONNX Runtime's first, which of ``arms`` wins, and its speedup over these.

  ``place``: of the arms in the canonical order. Among those that no other one is faster than with
  confidence the first wins, so that what is nearly equal is the same in every run.
  """
  looked: list[np.ndarray] = []
  best = 0

  def samples(count: int) -> list[list[float]]:
    nonlocal best
    if have := sum(x.shape[1] for x in looked):
      looked.append(bench.times_us(arms[best : best + 1], count - have, beside_ort=True))
      return [_ratios(np.concatenate([looked[0][[0, best + 1]], *looked[1:]], axis=1))]
    looked.append(bench.times_us(arms, count, beside_ort=True))
    best = _first_unbeaten(looked[0][1:], place)
    return [_ratios(looked[0][[0, best + 1]])]

  (against,) = decide(lambda n: samples(n * OF_SAMPLES), ALPHA, tuple(n // OF_SAMPLES for n in LOOKS))
  found = looked[0]
  if looked[1:]:  # of the winner and ONNX Runtime all samples count, of others those that there are
    both = np.concatenate([found[[0, best + 1]], *looked[1:]], axis=1)
    found = np.median(found, axis=1, keepdims=True)
    found[[0, best + 1], 0] = np.median(both, axis=1)
  return found, best, against


def _ratios(us: np.ndarray) -> list[float]:
  """First over second of (2, samples): the median of each few, so that an outlier is none."""
  kept = np.maximum(us, LEAST_US)
  few = kept.shape[1] // OF_SAMPLES * OF_SAMPLES
  return [float(x) for x in np.median((kept[0, :few] / kept[1, :few]).reshape(-1, OF_SAMPLES), axis=1)]


def _first_unbeaten(us: np.ndarray, place: Sequence[int]) -> int:
  """The first of (arms, samples) that no other one is faster than with confidence."""

  def is_beaten(i: int) -> bool:
    rest = (j for j in range(len(us)) if j != i)
    return any(speedup(_ratios(us[[i, j]]), ALPHA).verdict is PairedVerdict.FASTER for j in rest)

  return min((i for i in range(len(us)) if not is_beaten(i)), key=lambda i: place[i])
