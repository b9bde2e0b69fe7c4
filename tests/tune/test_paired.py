"""Speedups over openings: false accepts are rare under luck of sessions, drift and outliers."""

from itertools import pairwise
from math import inf

import numpy as np
import pytest

from mirage_onnx.tune.paired import ALPHA, LOOKS, PairedVerdict, decide, speedup, spent

#: Simulated questions; of 1 % wrong answers 3000 show 30, with a deviation of 5.5.
TRIES = 3000
ROUNDS = 9


def opening(rng, truth, luck):
  """Median ratio of two things of which the second is ``truth`` times as fast.

  Each has the luck of its session; the clock drifts by 10 % over the rounds, times have a spread of 2 % that
  leans to the long side, and one in ten is disturbed by something that takes up to three times as long.
  """
  drift = 1 + 0.1 * np.sin(np.linspace(0, rng.uniform(1, 9), ROUNDS) + rng.uniform(0, 6))

  def times(us):
    own = us * luck(rng) * drift * (1 + 0.02 * np.abs(rng.standard_normal(ROUNDS)))
    return np.where(rng.random(ROUNDS) < 0.1, own * rng.uniform(1, 3, ROUNDS), own)

  return float(np.median(times(100.0) / times(100.0 / truth)))


def none(rng):
  return 1.0


def even(rng):
  return rng.uniform(0.95, 1.05)


def one_of_two(rng):
  """Memory lies well, or it does not."""
  return rng.choice([1.0, 1.07])


def answer(rng, truth, luck):
  made = []

  def openings(count):
    while len(made) < count:
      made.append(opening(rng, truth, luck))
    return [made]

  return decide(openings)[0]


@pytest.mark.parametrize("luck", [none, even, one_of_two])
@pytest.mark.parametrize("truth", [1.0, 0.99])
def test_false_accepts(truth, luck):
  rng = np.random.default_rng(0)
  wrong = sum(answer(rng, truth, luck).verdict is PairedVerdict.FASTER for _ in range(TRIES))
  assert wrong <= 0.01 * TRIES


def test_what_is_faster_is_found():
  rng = np.random.default_rng(0)
  assert np.mean([answer(rng, 1.1, none).verdict is PairedVerdict.FASTER for _ in range(200)]) > 0.97
  found = [answer(rng, 1.3, even) for _ in range(200)]
  assert np.mean([f.verdict is PairedVerdict.FASTER for f in found]) > 0.95
  assert np.mean([f.low <= 1.3 <= f.high for f in found]) > 0.97
  assert np.mean([answer(rng, 0.75, even).verdict is PairedVerdict.SLOWER for _ in range(200)]) > 0.95


def test_samples_of_one_opening_would_claim_what_is_luck():
  """Why openings are what is counted: of equal things in one opening each, a sign test is sure of half."""
  rng = np.random.default_rng(0)
  sure = 0
  for _ in range(300):
    ratio = even(rng) / even(rng)
    samples = ratio * (1 + 0.002 * rng.standard_normal(11))
    sure += samples.min() > 1
  assert sure > 100


def test_bounds():
  one, two = speedup([1.5], 0.01), speedup([1.4, 1.6], 0.01)
  assert (one.low, one.high, one.verdict) == (0.0, inf, PairedVerdict.UNDECIDED)
  assert 0 < two.low < 1 < 1.49 < two.mean < 1.5 < two.high and two.openings == 2
  assert speedup([1.05] * 4, 0.01).low < 1.05  # no three agree so well but by chance
  assert speedup([1.05, 1.06, 1.05, 1.06], 0.01).verdict is PairedVerdict.FASTER
  assert speedup([0.95, 0.94, 0.95, 0.94], 0.01).verdict is PairedVerdict.SLOWER


def test_few_that_agree_are_believed_less():
  """Four on 7 % may be luck of memory, four on 11 % or six on 7 % are not."""
  alpha = ALPHA / 2 / len(LOOKS)
  assert speedup([1.07] * 4, alpha).verdict is PairedVerdict.UNDECIDED
  assert speedup([1.11] * 4, alpha).verdict is PairedVerdict.FASTER
  assert speedup([1.07] * 6, alpha).verdict is PairedVerdict.FASTER
  assert speedup([1 / 1.11] * 4, alpha).verdict is PairedVerdict.SLOWER


def test_looks_end_with_the_decision():
  asked = []

  def openings(*ratios):
    def of(count):
      asked.append(count)
      return [r[:count] for r in ratios]

    return of

  undecided = [0.9, 1.1, 0.95, 1.07, 1.0, 0.99, 1.01, 0.9, 1.1]
  (found,) = decide(openings([2.0] * LOOKS[-1]))
  assert found.verdict is PairedVerdict.FASTER and asked == [LOOKS[0]] == [found.openings]
  asked.clear()
  same, faster = decide(
    openings((undecided * 3)[: LOOKS[-1]], [2.0] * LOOKS[-1])
  )  # one goes on as long as another does
  assert asked == list(LOOKS) and same.openings == faster.openings == LOOKS[-1]
  assert (same.verdict, faster.verdict) == (PairedVerdict.UNDECIDED, PairedVerdict.FASTER)
  asked.clear()
  (found,) = decide(openings(undecided[:5]))  # no more come
  assert asked == list(LOOKS[:2]) and found.openings == 5


def test_questions_share_the_chance():
  parts = [spent(ALPHA, n) for n in range(30)]
  assert sum(parts) <= ALPHA and parts[0] == ALPHA / 2
  assert all(a > b for a, b in pairwise(parts))
