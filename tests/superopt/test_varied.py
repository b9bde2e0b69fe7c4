"""Which candidates are returned and tried: the best of every program before more of the first."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_programs import PROGRAMS
from small_models import prover

from mirage_onnx.deadline import Ends
from mirage_onnx.errors import Rejection
from mirage_onnx.superopt.result import FAR, Verified, varied
from mirage_onnx.superopt.search import search
from mirage_onnx.target import H200
from mirage_onnx.tune import ahead, tuning
from mirage_onnx.tune.outcome import Outcome


@dataclass(frozen=True)
class Fake:
  ugraph: Any
  predicted_us: float


def verified(programs):
  made = [Verified(Fake(*p), None) for p in programs]
  return sorted(made, key=lambda v: v.candidate.predicted_us)


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(1, 5)), max_size=20), st.integers(0, 20))
def test_every_near_program_has_its_best(programs, count):
  found = verified(programs)
  kept = varied(found, count)
  assert len(kept) == min(count, len(found))
  ids = list(map(id, kept))
  assert [id(v) for v in found if id(v) in ids] == ids
  best = {}
  for v in found:
    best.setdefault(v.candidate.ugraph, v)
  near = [v for v in best.values() if v.candidate.predicted_us <= FAR * found[0].candidate.predicted_us]
  others = [v for v in found if all(v is not n for n in near)]
  left = max(0, count - len(near))
  assert set(ids) == {id(v) for v in (*near[:count], *others[:left])}


def test_more_numbers_of_one_program_do_not_take_all_places():
  found = verified([(0, 10.0 + n / 100) for n in range(8)] + [(1, 11.0), (2, 19.0), (3, 21.0)])
  shown = [(v.candidate.ugraph, v.candidate.predicted_us) for v in varied(found, 5)]
  assert shown == [(0, 10.0), (0, 10.01), (0, 10.02), (1, 11.0), (2, 19.0)]
  assert [v.candidate.ugraph for v in varied(found, 2)] == [0, 1]


@pytest.mark.parametrize("tries", [3, 8])
def test_different_programs_are_tried(tries, monkeypatch):
  """Of the search, and of what is compiled and timed."""
  region = PROGRAMS["residual_rmsnorm"]()
  result = search(region, H200, prover(), budget_s=900.0)
  assert len({v.candidate.ugraph for v in result.candidates}) == result.report.verified > 2
  tried = []

  def compile_candidates(region, candidates, *_, **__):
    tried.extend(candidates)
    return [], [Rejection("SMEM", "said so")]

  monkeypatch.setattr(tuning, "compile_candidates", compile_candidates)
  monkeypatch.setattr(ahead, "compile_candidates", compile_candidates)
  outcome = Outcome(region, (), 100.0, result)
  tuning.tuned(None, outcome, H200, measure=True, tries=tries, ends=Ends(), look=None)
  assert tried == [v.candidate for v in varied(result.candidates, tries)]
  near = {v.candidate.ugraph for v in result.candidates if v.candidate.predicted_us < 5}
  assert len({c.ugraph for c in tried}) == min(tries, len(near)) > 2
  assert tried[0] == result.candidates[0].candidate
