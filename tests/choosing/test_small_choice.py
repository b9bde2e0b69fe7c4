"""Few candidates are chosen by trying; many are the solver's (test_partition.py compares the two)."""

import numpy as np

from mirage_onnx.choosing import small_choice
from mirage_onnx.choosing.small_choice import least_cost


def program_of(costs, covers):
  """An integer program: candidate k covers the nodes ``covers[k]``; nodes bring one microsecond."""
  count, nodes = len(costs), 1 + max(max(c) for c in covers)
  rows = [({count + n: 1.0, **{k: -1.0 for k, c in enumerate(covers) if n in c}}, 0.0) for n in range(nodes)]
  return np.array([*costs, *[-1.0] * nodes]), rows, count


def test_two_small_ones_are_better_than_a_large_one():
  cost, rows, count = program_of([3.9, 1.0, 1.0], [(0, 1, 2, 3), (0, 1), (2, 3)])
  assert least_cost(cost, rows, 0, count) == {1, 2, 3, 4, 5, 6}


def test_those_that_are_fixed_stay():
  cost, rows, count = program_of([3.9, 1.0, 1.0], [(0, 1, 2, 3), (0, 1), (2, 3)])
  assert least_cost(cost, rows, 1, count) == {0, 3, 4, 5, 6}


def test_nothing_where_nothing_gains():
  cost, rows, count = program_of([9.0, 9.0], [(0, 1), (1,)])
  assert least_cost(cost, rows, 0, count) == frozenset()


def test_what_no_solution_has_is_the_solvers():
  cost, rows, count = program_of([1.0, 1.0], [(0, 1), (1,)])
  assert least_cost(cost, [*rows, ({0: 1.0, 1: 1.0}, 1.0)], 2, count) is None


def test_many_candidates_are_the_solvers():
  count = small_choice.FREE + 1
  cost, rows, count = program_of([0.5] * count, [(k,) for k in range(count)])
  assert least_cost(cost, rows, 0, count) is None
  assert least_cost(cost, rows, 1, count) is not None


def test_too_many_trials_are_the_solvers(monkeypatch):
  cost, rows, count = program_of([0.5] * 8, [(k, (k + 1) % 8) for k in range(8)])
  assert least_cost(cost, rows, 0, count) is not None
  monkeypatch.setattr(small_choice, "MOST", 3)
  assert least_cost(cost, rows, 0, count) is None
