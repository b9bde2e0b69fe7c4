"""Whether one thing is faster than another, from pairs of times taken beside each other.

    speedup of a pair = time of the first / time of the second

What drifts (clocks, other programs) is in both times of a pair. Of the pairs' median the bound is that of
the sign test: an order statistic, exact for any distribution, however skewed, and for few pairs; a
bootstrap of the median of 11 pairs claims more than it holds (``tests/tune/test_paired.py`` has both).
Samples are looked at several times, so the chance of a wrong "faster" is shared among the looks, and
among the questions that a search asks one after the other.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from math import comb

import numpy as np

#: Pairs after which the samples are looked at; the chance of an error is divided by the number of looks.
LOOKS = (11, 23, 47, 95)
#: The chance that what is not faster is said to be, over all looks.
ALPHA = 0.01


class Verdict(Enum):
  """FASTER and SLOWER with confidence, UNDECIDED after the last look."""

  FASTER = "faster"
  SLOWER = "slower"
  UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Speedup:
  """The median over ``pairs``; each bound is wrong with a chance of ``alpha`` at most."""

  median: float
  low: float
  high: float
  pairs: int
  alpha: float

  @property
  def verdict(self) -> Verdict:
    """Against no change at all."""
    if self.low >= 1:
      return Verdict.FASTER
    return Verdict.SLOWER if self.high < 1 else Verdict.UNDECIDED


def speedup(ratios: np.ndarray, alpha: float) -> Speedup:
  """The median of ``ratios`` with one-sided bounds of 1 - ``alpha`` each.

  Without enough pairs for that (7 for 1 %) the bounds are 0 and infinity.
  """
  order = np.sort(ratios)
  skipped = _skipped(len(order), alpha)
  low, high = (order[skipped], order[-1 - skipped]) if skipped >= 0 else (0.0, np.inf)
  return Speedup(float(np.median(order)), float(low), float(high), len(order), alpha)


def _skipped(count: int, alpha: float) -> int:
  """How many of the smallest are below the bound: the most k with P(Binomial(count, 1/2) <= k) <= alpha.

  -1 if not even the smallest is a bound.
  """
  total, k = 0, -1
  while k + 1 < count and total + comb(count, k + 1) <= alpha * 2**count:
    k += 1
    total += comb(count, k)
  return k


def decide(
  sample: Callable[[int], np.ndarray], alpha: float = ALPHA, looks: tuple[int, ...] = LOOKS
) -> Iterator[Speedup]:
  """The speedup at every look, until it is decided; ``sample(n)`` returns all ratios so far, n at least."""
  for pairs in looks:
    found = speedup(sample(pairs), alpha / len(looks))
    yield found
    if found.verdict is not Verdict.UNDECIDED:
      return


def spent(alpha: float, question: int) -> float:
  """The part of ``alpha`` for the question of this number (from 0) in a row that may go on: halves."""
  return alpha / 2 ** (question + 1)
