"""Steps with a cache are judged half full, as onnxruntime's operator is timed: full ones lost at once."""

from dataclasses import replace
from math import inf

import pytest
from cached_steps import cached_step

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.judging import Judge
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.cuts import TIMED
from mirage_onnx.search_run import Setting
from mirage_onnx.superopt.result import SearchBound
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.space import space_of
from mirage_onnx.target import H100
from mirage_onnx.tune.outcome import Outcome
from mirage_onnx.tune.predict import as_half_full
from mirage_onnx.verify.prover import prover


@pytest.fixture(scope="module")
def searched():
  """What attends, of 16 caches, and its programs."""
  loaded = load_model(cached_step(16, 8, 4, 128, 4096))
  found = find_candidates(import_model(loaded), TIMED).candidates
  chosen = next(c for c in found if c.outputs == {"y"})
  result = search(chosen.region, H100, prover(chosen.region), space=space_of(chosen.region))
  return chosen, replace(result, candidates=result.candidates[:3])


def test_a_loop_over_a_cache_takes_half(searched):
  """It reads half of the bytes; where nothing has an end the result is as it was."""
  chosen, result = searched
  made = as_half_full(chosen.region, result, H100)
  times = [v.candidate.predicted_us for v in made.candidates]
  assert times == sorted(times) and len(times) == len(result.candidates)
  before = {(v.candidate.ugraph, v.candidate.params): v.candidate.predicted_us for v in result.candidates}
  ratios = [
    v.candidate.predicted_us / before[v.candidate.ugraph, v.candidate.params] for v in made.candidates
  ]
  assert 0.4 < ratios[0] < 0.65 and max(ratios) <= 1
  endless = replace(chosen.region, terms=())
  assert as_half_full(endless, result, H100) is result


def test_what_is_timed_is_not_refused_for_a_full_cache(searched):
  """Twice the baseline is too slow: what a full cache takes is, what one takes that is half full is not."""
  chosen, result = searched
  full_us = result.candidates[0].candidate.predicted_us
  setting = Setting(H100, SearchBound(), inf)
  for baseline_us, refused in ((0.45 * full_us, False), (0.2 * full_us, True)):
    o = Outcome(chosen.region, (chosen,), baseline_us)
    judged = Judge(None, -1.0, timed=True)(o, result, setting)
    assert (judged.rejection is not None) == refused
