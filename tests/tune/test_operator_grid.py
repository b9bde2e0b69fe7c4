"""Times between measured points, and nothing beyond them."""

import pytest

from mirage_onnx.tune.operator_grid import TimesGrid

GRID = TimesGrid.of(
  {
    "fp16": {
      "Exp": [[1000, 1.0], [100_000, 100.0]],
      "MatMul": [[m, k, n, 1e-6 * m * k * n] for m in (1, 100) for k in (100, 1000) for n in (100, 10_000)],
      "scores/8": [[8, 64, 64, 2.0], [8, 128, 64, 4.0], [32, 64, 64, 8.0]],
    }
  }
)


def test_powers_are_found_between_points():
  assert GRID.us("Exp", "fp16", (1000,)) == pytest.approx(1.0)
  assert GRID.us("Exp", "fp16", (10_000,)) == pytest.approx(10.0)
  for m, k, n in ((1, 100, 100), (10, 300, 128), (100, 1000, 10_000), (7, 999, 101)):
    assert GRID.us("MatMul", "fp16", (m, k, n)) == pytest.approx(1e-6 * m * k * n)


def test_less_than_the_least_takes_as_long():
  assert GRID.us("Exp", "fp16", (1,)) == pytest.approx(1.0)
  assert GRID.us("MatMul", "fp16", (1, 5, 100)) == GRID.us("MatMul", "fp16", (1, 100, 100))


def test_of_elements_of_which_only_many_were_measured_few_are_not_known():
  grid = TimesGrid.of({"fp16": {"Exp": [[1 << 20, 3.0], [1 << 22, 9.0]]}})
  assert grid.us("Exp", "fp16", (1 << 21,)) == pytest.approx(27**0.5)
  assert grid.us("Exp", "fp16", (1 << 19,)) is None


def test_nothing_is_known_beyond_the_points_or_where_one_is_missing():
  assert GRID.us("Exp", "fp16", (100_001,)) is None
  assert GRID.us("MatMul", "fp16", (101, 100, 100)) is None
  assert GRID.us("Exp", "fp32", (1000,)) is None and GRID.us("Erf", "fp16", (1000,)) is None
  assert GRID.us("MatMul", "fp16", (100, 100)) is None
  assert GRID.us("scores/8", "fp16", (8, 100, 64)) == pytest.approx(3.22, abs=0.1)
  assert GRID.us("scores/8", "fp16", (16, 64, 64)) == pytest.approx(4.0)
  assert GRID.us("scores/8", "fp16", (16, 100, 64)) is None  # (32, 128) was not measured


def test_where_a_point_is_missing_others_around_are_asked():
  rows = [[r, c, 1e-3 * r * c] for r in (10, 100, 1000) for c in (10, 100, 1000) if (r, c) != (100, 100)]
  grid = TimesGrid.of({"fp16": {"norm": rows}})
  for sizes in ((50, 50), (100, 100), (300, 300), (100, 500)):
    assert grid.us("norm", "fp16", sizes) == pytest.approx(1e-3 * sizes[0] * sizes[1])
  assert grid.us("norm", "fp16", (100, 1000)) == pytest.approx(100.0)


def test_the_largest_elementwise_operator():
  assert GRID.most_elements == 100_000
