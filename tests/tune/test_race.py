"""The choice by samples: what is not faster is hardly ever taken, what is nearly equal is the first of."""

from types import SimpleNamespace

import numpy as np
import pytest

from mirage_onnx.codegen.candidates import Compiled
from mirage_onnx.tune.race import LOOKS, Lost, raced


class Noisy:
  """Arms with these true times; samples drift together, differ by ``noise``, and some are outliers."""

  def __init__(self, ort_us, us, seed=0, noise=0.02):
    self.ort_us, self.us, self.noise, self.asked = ort_us, us, noise, []
    self.rng = np.random.default_rng(seed)

  def complaints(self, some):
    return [None] * len(some)

  def times_us(self, some, samples, *, beside_ort):
    self.asked.append((len(some), samples, beside_ort))
    true = np.array([*([self.ort_us] if beside_ort else []), *(self.us[c.candidate.name] for c in some)])
    drift = 1 + 0.1 * np.linspace(0, 1, samples) * self.rng.standard_normal()
    found = true[:, None] * drift * (1 + self.noise * self.rng.standard_normal((len(true), samples)))
    return np.where(self.rng.random(found.shape) < 0.01, 3 * found, found)


def candidates(count):
  return [Compiled(SimpleNamespace(name=n, predicted_us=1.0), (), ()) for n in range(count)]  # type: ignore[arg-type]


def choice(bench, count):
  arms = candidates(count)
  best, measured = raced(bench, ("n",), arms, lambda best, tried: ())
  return None if best is None else arms.index(best), measured


def test_what_is_not_faster_is_hardly_ever_taken():
  taken = sum(choice(Noisy(10.0, [10.0], seed), 1)[0] is not None for seed in range(500))
  assert taken <= 10  # at most 1 %, and what chance adds to that
  assert all(choice(Noisy(10.0, [10.5], seed), 1)[0] is None for seed in range(100))


def test_what_is_faster_is_taken():
  assert sum(choice(Noisy(10.0, [9.5], seed), 1)[0] == 0 for seed in range(100)) >= 95
  assert all(choice(Noisy(10.0, [8.0], seed), 1)[0] == 0 for seed in range(100))


def test_there_are_more_samples_while_it_is_open():
  clear, near = Noisy(10.0, [5.0]), Noisy(10.0, [10.0])
  choice(clear, 1)
  choice(near, 1)
  assert [n for _, n, beside in clear.asked if beside] == [LOOKS[0]]
  assert np.cumsum([n for _, n, beside in near.asked if beside]).tolist() == list(LOOKS)


def test_of_what_is_nearly_equal_the_first_is_taken():
  """And so in every run; but what is faster beats what comes before it."""
  first = [choice(Noisy(20.0, [10.0, 9.99, 10.0], seed), 3)[0] for seed in range(100)]
  assert first.count(0) >= 95
  assert {choice(Noisy(20.0, [10.0, 9.0, 9.0], seed), 3)[0] for seed in range(30)} == {1}


def test_who_loses_says_what_it_took():
  best, lost = choice(Noisy(10.0, [14.0, 12.0], noise=0.001), 2)
  assert best is None and isinstance(lost, Lost) and lost.code == "NOT_FASTER"
  assert lost.measured.kernel_us == pytest.approx(12.0, rel=0.1)
  assert "us of onnxruntime" in lost.reason and "0.8" in lost.reason


def test_times_of_nothing():
  assert choice(Noisy(10.0, [0.0]), 1)[0] == 0
  assert choice(Noisy(0.0, [10.0]), 1)[0] is None
