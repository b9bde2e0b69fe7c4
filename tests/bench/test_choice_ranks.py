"""What is said of the order of choices, of lines that are made up."""

import choice_ranks
import pytest


def region(baseline_us, ort_us, *timed):
  return {"baseline_us": baseline_us, "ort_us": ort_us, "timed": [list(t) for t in timed]}


def test_figures():
  found = choice_ranks.judged(
    [
      # Right but for the first two, which differ by little; the final look of finalists turns two.
      region(9.0, 12.0, (1.0, 4.2, 1, "a", 4.0), (1.1, 4.1, 1, "b", 4.1), (2.0, 5.0, 1, "c", 5.0),
             (3.0, 6.0, 1, "d", 6.1)),
      region(3.0, 5.0, (4.0, 7.0, 1, "a"), (5.0, 8.0, 1, "b"), (6.0, 0.0, 1, "no time")),
      region(20.0, 30.0, (10.0, 33.0, 2, "a / a")),  # predicted to win, and does not
    ]
  )  # fmt: skip
  assert found["regions"] == 3 and found["choices"]["count"] == 10
  assert found["gains"] == {"rank": -0.5, "signs": pytest.approx(2 / 3, abs=1e-3)}
  assert found["candidates"] == {"regions": 1, "mean": 0.8, "median": 0.8}
  assert found["within"]["regions"] == 2 and found["within"]["mean"] == pytest.approx(0.95, abs=0.01)
  assert found["first_over_fastest"] == pytest.approx((4.2 / 4.1) ** (1 / 3), abs=1e-3)
  assert found["again"] == {
    "measured": {"regions": 1, "mean": 0.8, "median": 0.8},
    "predicted": {"regions": 1, "mean": 1.0, "median": 1.0},
  }


def test_what_has_no_order_has_no_rank():
  assert choice_ranks.rank([(1, 2), (2, 3)]) is None and choice_ranks.rank([(1, 2), (1, 3), (1, 4)]) is None
  assert choice_ranks.judged([])["regions"] == 0
