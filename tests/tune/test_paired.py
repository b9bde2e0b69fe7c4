"""Paired times: bounds hold what they say under drift and outliers, and false accepts are rare."""

from itertools import pairwise, takewhile

import numpy as np
import pytest

from mirage_onnx.tune.paired import ALPHA, LOOKS, Verdict, decide, speedup, spent

#: Simulated questions; of 1 % wrong answers 4000 show 40, with a deviation of 6.
TRIES = 4000


def noisy(rng, truth, count):
  """Ratios of two things of which the second is ``truth`` times as fast, taken beside each other.

  The clock drifts by 10 % over the samples, times have a spread of 2 % that leans to the long side, and
  one in ten is disturbed by something that takes up to three times as long.
  """
  drift = 1 + 0.1 * np.sin(np.linspace(0, rng.uniform(1, 9), count) + rng.uniform(0, 6))

  def times(us):
    own = us * drift * (1 + 0.02 * np.abs(rng.standard_normal(count)))
    return np.where(rng.random(count) < 0.1, own * rng.uniform(1, 3, count), own)

  return times(100.0) / times(100.0 / truth)


def answer(rng, truth, alpha=ALPHA):
  ratios = noisy(rng, truth, LOOKS[-1])
  *_, last = decide(lambda count: ratios[:count], alpha)
  return last


@pytest.mark.parametrize("truth", [1.0, 0.999, 0.99])
def test_false_accepts(truth):
  rng = np.random.default_rng(0)
  wrong = sum(answer(rng, truth).verdict is Verdict.FASTER for _ in range(TRIES))
  assert wrong <= 0.01 * TRIES * 1.3  # three deviations of the simulation at 1 %


def test_what_is_faster_is_found():
  rng = np.random.default_rng(0)
  found = [answer(rng, 1.05) for _ in range(300)]
  assert np.mean([f.verdict is Verdict.FASTER for f in found]) > 0.95
  assert np.mean([f.low <= 1.05 <= f.high for f in found]) > 0.97
  assert np.mean([answer(rng, 0.95).verdict is Verdict.SLOWER for _ in range(300)]) > 0.95
  assert np.mean([answer(rng, 1.5).pairs for _ in range(100)]) < LOOKS[1]  # the first look, or the second


def test_a_bootstrap_of_few_pairs_claims_more():
  """Why the bound is an order statistic: 11 pairs of a skewed ratio, 0.25 % a side."""
  rng, alpha = np.random.default_rng(0), ALPHA / len(LOOKS)
  draws = np.array([noisy(rng, 1.0, LOOKS[0]) for _ in range(TRIES)])
  ours = sum(speedup(ratios, alpha).low > 1 for ratios in draws)
  medians = [np.median(draws[:, rng.integers(LOOKS[0], size=LOOKS[0])], axis=1) for _ in range(2000)]
  resampled = np.sum(np.quantile(medians, alpha, axis=0) > 1)
  assert ours <= TRIES * alpha < 1.5 * TRIES * alpha < resampled


@pytest.mark.parametrize(("count", "skipped"), [(6, None), (7, 0), (9, 0), (11, 1), (95, 35)])
def test_bounds_are_order_statistics(count, skipped):
  ratios = np.random.default_rng(count).permutation(np.arange(1.0, count + 1))
  found = speedup(ratios, 0.01)
  assert found.median == np.median(ratios) and found.pairs == count
  if skipped is None:
    assert (found.low, found.high) == (0.0, np.inf) and found.verdict is Verdict.UNDECIDED
  else:
    assert (found.low, found.high) == (1.0 + skipped, count - skipped)


def test_looks_end_with_the_decision():
  asked = []

  def sample(count):
    asked.append(count)
    return np.full(count, 2.0)

  assert [s.verdict for s in decide(sample)] == [Verdict.FASTER] and asked == [LOOKS[0]]
  same = list(decide(lambda count: np.tile([0.9, 1.1], count)[:count]))
  assert [s.pairs for s in same] == list(LOOKS)
  assert {s.verdict for s in same} == {Verdict.UNDECIDED}


def test_questions_share_the_chance():
  parts = [spent(ALPHA, n) for n in range(30)]
  assert sum(parts) <= ALPHA and parts[0] == ALPHA / 2
  assert all(a > b for a, b in takewhile(lambda p: p[1], pairwise(parts)))
