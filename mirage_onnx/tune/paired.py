"""Whether one thing is faster than another, by several openings of both: samples within one say too little.

    an opening: both are made anew, and run in turns   its speedup: the median of t(first) / t(second)
    the speedup: geometric mean over openings          its bounds: Student's t of the openings' logarithms

Two sessions of one and the same model differ from each other, however often each is run: MiniLM's graph took
342 to 374 us on an H100 in eight sessions, each within 0.2 % of its own median (where memory lies decides
what shares a part of the L2). So an interval over samples of one pair of sessions would be sure of what is
only luck. What drifts (clocks, other programs) is in both times of a pair of samples. Openings are looked at
several times, so the chance of a wrong "faster" is shared among the looks, and among the questions that a
search asks one after the other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import exp, inf, log, sqrt

import numpy as np

#: Openings after which there is a look; the chance of an error is divided by the number of looks.
LOOKS = (4, 6, 9, 14, 21)
#: The chance that what is not faster is said to be, over all looks.
ALPHA = 0.01
#: The least relative deviation between openings that is believed: a few may agree by chance.
LEAST_DEVIATION = 1e-3
#: The same of so few openings: where memory lies well or costs 7 %, four agree on 7 % for nothing once in 256
#: times, which is more than what a question may be wrong by. Four are enough for a gain of 10 %.
FEW, FEW_DEVIATION = 4, 0.018


class PairedVerdict(Enum):
  """FASTER and SLOWER with confidence, else UNDECIDED."""

  FASTER = "faster"
  SLOWER = "slower"
  UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Speedup:
  """The mean over ``openings``; each bound is wrong with a chance of ``alpha`` at most."""

  mean: float
  low: float
  high: float
  openings: int
  alpha: float

  @property
  def verdict(self) -> PairedVerdict:
    """Against no change at all."""
    if self.low >= 1:
      return PairedVerdict.FASTER
    return PairedVerdict.SLOWER if self.high < 1 else PairedVerdict.UNDECIDED


def speedup(ratios: Sequence[float], alpha: float) -> Speedup:
  """Of the openings' speedups; with one opening the bounds are 0 and infinity."""
  logs = np.log(np.asarray(ratios, np.float64))
  mean = float(logs.mean())
  if len(logs) < 2:
    return Speedup(exp(mean), 0.0, inf, len(logs), alpha)
  least = FEW_DEVIATION if len(logs) <= FEW else LEAST_DEVIATION
  deviation = max(float(logs.std(ddof=1)), log(1 + least))
  off = _student(alpha, len(logs) - 1) * deviation / sqrt(len(logs))
  return Speedup(exp(mean), exp(mean - off), exp(mean + off), len(logs), alpha)


@cache
def _student(alpha: float, freedom: int) -> float:
  from scipy.special import stdtrit  # here: it takes a tenth of a second (scipy.stats, with the same, one)

  return float(stdtrit(freedom, 1 - alpha))


def decide(
  openings: Callable[[int], Sequence[Sequence[float]]], alpha: float = ALPHA, looks: tuple[int, ...] = LOOKS
) -> list[Speedup]:
  """The speedup of each question when all are decided, at the last look, or when no more openings come.

  ``openings(n)``: of each question the ratios of n openings, or of all that there are.
  """
  found = list[Speedup]()
  for count in looks:
    ratios = openings(count)
    found = [speedup(some, alpha / len(looks)) for some in ratios]
    if all(s.verdict is not PairedVerdict.UNDECIDED for s in found) or max(map(len, ratios)) < count:
      break
  return found


def spent(alpha: float, question: int) -> float:
  """The part of ``alpha`` for the question of this number (from 0) in a row that may go on: halves."""
  return alpha / 2 ** (question + 1)
