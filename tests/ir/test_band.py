"""Bands of masks: found in data, with nothing seen outside, and none where nothing is left out."""

from fractions import Fraction

import numpy as np
import pytest

from mirage_onnx.ir.band import Band, band_of

LOWEST = -65504.0


def distances(rows, columns):
  return np.arange(columns)[None, :] - np.arange(rows)[:, None]


@pytest.mark.parametrize(
  ("rows", "columns", "least", "most"),
  [(64, 64, None, 0), (64, 64, -7, 0), (16, 64, None, 48), (64, 64, 0, None), (64, 64, -3, 3), (5, 9, 2, 2)],
)
def test_of_truth_values_and_of_floats(rows, columns, least, most):
  want = Band("q", "k", least, most, Fraction(0), sharp=True)
  seen = want.covers(distances(rows, columns))
  assert band_of(seen, "q", "k", LOWEST) == want
  for low in (-65504.0, -np.inf):
    added = np.where(seen, 0, low).astype(np.float16)
    found = band_of(added, "q", "k", LOWEST)
    assert (found.least, found.most) == (least, most)
    assert low <= found.outside <= LOWEST
    assert found.sharp == np.isfinite(low)
    assert found.sharp == found.text.endswith("else -65504 sharp")


def test_a_band_that_leaves_something_open_is_not_sharp():
  seen = np.tri(64, dtype=bool)
  added = np.where(seen, 0, -65504).astype(np.float16)
  assert band_of(seen, "q", "k", LOWEST).sharp and band_of(added, "q", "k", LOWEST).sharp
  for at, value in (((9, 3), -1), ((9, 3), np.nan), ((3, 9), -np.inf)):
    other = added.copy()
    other[at] = value
    assert not band_of(other, "q", "k", LOWEST).sharp
  seen[9, 3] = False
  assert not band_of(seen, "q", "k", LOWEST).sharp


def test_none_where_nothing_is_left_out():
  ones = np.ones((8, 8), bool)
  assert band_of(ones, "q", "k", LOWEST) is None
  assert band_of(~ones, "q", "k", LOWEST) is None
  assert band_of(ones.astype(np.float16), "q", "k", LOWEST) is None
  corner = np.tri(8, dtype=bool)
  corner[0, -1] = corner[-1, 0] = True
  assert band_of(corner, "q", "k", LOWEST) is None
  # A NaN hides nothing.
  added = np.where(np.tri(8, dtype=bool), 0, np.nan)
  assert band_of(added, "q", "k", LOWEST) is None


def test_random_masks_are_hidden_outside():
  rng = np.random.default_rng(0)
  for _ in range(200):
    shape = rng.integers(1, 12, 2)
    seen = (rng.random(shape) < 0.3) & (distances(*shape) <= rng.integers(-3, 12))
    if band := band_of(seen, "q", "k", LOWEST):
      assert not seen[~band.covers(distances(*shape))].any()
      assert not band.covers(distances(*shape)).all()


def test_it_is_renamed():
  assert Band("2", "3", None, 0, Fraction(0)).renamed({"2": "a1", "3": "a4"}).text == "a4:a1 ..0 else 0"
