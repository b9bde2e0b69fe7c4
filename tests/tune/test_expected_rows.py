"""How far rows may be off: luck and cancellation are no faults, a real fault in few rows is one."""

import numpy as np
import pytest

from mirage_onnx.ir import round_to
from mirage_onnx.ir.dtype import DType
from mirage_onnx.tune import expected_rows
from mirage_onnx.tune.expected_rows import FEW, ExpectedRows, allowed_errors, distances

SLACK = 1e-3


def scores(rng, rows=400, width=64, keys=96):
  """Products of queries with equal keys: every row is one number, by chance as good as zero."""
  q, k = rng.standard_normal((rows, width)) * 256, np.full((keys, width), 1.5)
  q, k = (round_to(x, DType.F16) for x in (q, k))
  exact = q @ k.T / 8
  scaled = [round_to(x * np.sqrt(1 / 8), DType.F16) for x in (q, k)]
  return exact, round_to(scaled[0] @ scaled[1].T, DType.F16)


def expected(exact, rounded, classes):
  compared = np.ones(exact.shape, bool)
  norms = np.linalg.norm(exact, axis=-1)
  kinds = np.zeros(len(exact), int)
  allowed = allowed_errors(distances(rounded, exact, compared), norms, kinds, classes, SLACK)
  return ExpectedRows(exact, compared, norms, allowed)


@pytest.mark.parametrize("seed", range(12))
def test_other_roundings_of_terms_that_cancel_are_right(seed):
  """A kernel that scales the sum in place of both operands rounds elsewhere: no more, but not the same."""
  rng = np.random.default_rng(seed)
  exact, rounded = scores(rng)
  rows = expected(exact, rounded, np.zeros(len(exact), int))
  terms = 256 * 1.5 * 8 / 8  # the size of what is summed up
  kernel = round_to(exact + rng.standard_normal((len(exact), 1)) * terms * 2.0**-12, DType.F16)
  assert (rows.errors(kernel) <= rows.allowed).all()


def test_without_classes_chance_decides():
  """Why there are classes: the same kernels, judged by relative errors alone."""
  wrong = 0
  for seed in range(12):
    rng = np.random.default_rng(seed)
    exact, rounded = scores(rng)
    norms = np.linalg.norm(exact, axis=-1)
    off = np.abs(rng.standard_normal(len(exact))) * 384 * 2.0**-12 * np.sqrt(96)
    base = distances(rounded, exact, np.ones(exact.shape, bool)) / norms
    wrong += bool((off / norms > 2 * base + SLACK).any())
  assert wrong > 6


@pytest.mark.parametrize("rows", [[7], range(100, 400)])
def test_a_fault_of_one_percent_is_seen(rows):
  rng = np.random.default_rng(0)
  exact = round_to(rng.standard_normal((400, 96)), DType.F16)
  rounded = round_to(exact * (1 + rng.standard_normal(exact.shape) * 2.0**-12), DType.F16)
  found = expected(exact, rounded, np.arange(400) % 6)
  assert (found.errors(rounded) <= found.allowed).all()
  bad = rounded.copy()
  bad[list(rows)] *= 1.01
  seen = found.errors(bad) > found.allowed
  assert list(np.flatnonzero(seen)) == list(rows)


def test_an_outlier_in_another_class_excuses_nothing():
  exact = np.ones((64, 8))
  off = np.full(64, 1e-4)
  off[::2] = 0.5
  norms = np.linalg.norm(exact, axis=-1)
  allowed = allowed_errors(off, norms, np.zeros(64, int), np.arange(64) % 2, SLACK)
  assert allowed[1::2].max() < 2e-3 and allowed[::2].min() > 0.1


def test_few_rows_of_a_class_take_the_kinds_measure():
  off, norms = np.array([0.0, *[1e-2] * (FEW - 2)]), np.ones(FEW - 1)
  classes = np.zeros(FEW - 1, int)
  lucky = allowed_errors(off, norms, np.zeros(FEW - 1, int), classes, SLACK)[0]
  assert lucky == pytest.approx(2e-2 + SLACK, rel=0.1)
  assert allowed_errors(off, norms, None, None, SLACK)[0] == SLACK


def test_nan_is_infinitely_far_and_parts_are_the_whole(monkeypatch):
  rng = np.random.default_rng(0)
  exact = rng.standard_normal((257, 33))
  got = (exact + 1e-3).astype(np.float32)
  got[5, 3] = np.nan
  compared = rng.random(exact.shape) < 0.9
  compared[5, 3] = True
  compared[6] = False
  got[6] = np.nan
  whole = distances(got, exact, compared)
  monkeypatch.setattr(expected_rows, "PART", 100)
  np.testing.assert_array_equal(distances(got, exact, compared), whole)
  rows = ExpectedRows(exact, compared, np.ones(257), np.ones(257))
  assert rows.errors(got)[5] == np.inf and rows.errors(got)[6] == 0.0


def test_no_rows():
  none = np.zeros((0, 4))
  assert distances(none, none, none.astype(bool)).shape == (0,)
  assert allowed_errors(np.zeros(0), np.ones(0), np.zeros(0, int), np.zeros(0, int), SLACK).shape == (0,)
