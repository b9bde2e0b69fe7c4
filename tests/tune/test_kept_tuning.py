"""What became of a region is kept with all that it is made of: its winner alone is compiled in a repeat."""

from dataclasses import replace
from pathlib import Path

import pytest

from mirage_onnx import pipeline
from mirage_onnx.errors import RejectionError
from mirage_onnx.importer import load_model
from mirage_onnx.superopt.kept_folder import KeptFolder
from mirage_onnx.target import H200
from mirage_onnx.tune.kept_tuning import KeptTuning
from mirage_onnx.tune.race import Lost, Measured
from mirage_onnx.verify.weights import ModelWeights

MODELS = Path(__file__).resolve().parents[2] / "models"
TIMES = Measured(8.0, 10.0, 3, ((7.0, 9.5), (8.0, 8.0)))
TRIES = 8


@pytest.fixture(scope="module")
def timed():
  """A model, a region as its search left it, and with what was chosen."""
  loaded = load_model(MODELS / "rmsnorm_linear.onnx")
  ((_, o),) = pipeline.run(loaded, pipeline.Options(H200)).chosen
  return loaded, replace(o, compiled=None, ran=""), replace(o, measured=TIMES, ran="")


def kept(timed, folder, cut_too=False, **changes):
  about = {"target": H200, "tries": TRIES, "setting": {"gpu": "one"}, **changes}
  store = KeptFolder(folder, about["setting"])
  return KeptTuning(timed[0], ModelWeights(timed[0]), about["target"], about["tries"], store, cut_too=cut_too)


def same(one, other):
  """But for the seconds of the compiler."""
  images = [[c.image for c in x.cubins] for x in (one, other)]
  return images[0] == images[1] and (one.candidate, one.sources) == (other.candidate, other.sources)


def right(region, compiled):
  return [None] * len(compiled)


def test_the_winner_comes_back(timed, tmp_path):
  _, before, after = timed
  assert not kept(timed, tmp_path).knows(before)
  assert kept(timed, tmp_path).outcome(before, H200, right) is None
  kept(timed, tmp_path).keep(before, after)
  again = kept(timed, tmp_path)
  assert again.knows(before)
  asked = []
  found = again.outcome(before, H200, lambda region, some: asked.append(len(some)) or [None])
  assert same(found.compiled, after.compiled) and replace(found, compiled=after.compiled) == after
  assert asked == [1]  # its results are looked at as ever


def test_what_lost_comes_back_with_its_program(timed, tmp_path):
  _, before, after = timed
  lost = Lost("NOT_FASTER", "11 us against 10", before.region.nodes, TIMES, after.compiled)
  kept(timed, tmp_path).keep(before, replace(before, rejection=lost))
  found = kept(timed, tmp_path).outcome(before, H200, right)
  assert found.rejection == lost and same(found.rejection.best, after.compiled) and found.compiled is None


def test_what_was_cut_short_comes_back_where_the_run_has_ended_with_it(timed, tmp_path):
  """Else a region whose share of time is over in every run is timed in every run."""
  _, before, after = timed
  kept(timed, tmp_path).keep(before, after, cut=True)
  assert (
    not kept(timed, tmp_path).knows(before) and kept(timed, tmp_path).outcome(before, H200, right) is None
  )
  ended = kept(timed, tmp_path, cut_too=True)
  assert ended.knows(before) and same(ended.outcome(before, H200, right).compiled, after.compiled)
  kept(timed, tmp_path).keep(before, after)
  assert kept(timed, tmp_path).knows(before)


def test_wrong_results_are_not_believed(timed, tmp_path):
  _, before, after = timed
  kept(timed, tmp_path).keep(before, after)

  def inconclusive(region, compiled):
    raise RejectionError("INCONCLUSIVE", "nothing to compare with")

  for complaints in (lambda region, compiled: ["off by 3"], inconclusive):
    assert kept(timed, tmp_path).outcome(before, H200, complaints) is None


def test_whatever_differs_is_timed(timed, tmp_path):
  _, before, after = timed
  kept(timed, tmp_path).keep(before, after)
  assert not kept(timed, tmp_path, tries=4).knows(before)
  assert not kept(timed, tmp_path, target=replace(H200, l2_tbps=1.0)).knows(before)
  assert not kept(timed, tmp_path, setting={"gpu": "two"}).knows(before)
  fewer = replace(before, result=replace(before.result, candidates=before.result.candidates[:1]))
  assert len(before.result.candidates) > 1 and not kept(timed, tmp_path).knows(fewer)


def test_a_program_that_was_not_searched_is_not_kept(timed, tmp_path):
  _, before, after = timed
  graph = replace(after.compiled.candidate.ugraph, kernels=())
  other = replace(after.compiled, candidate=replace(after.compiled.candidate, ugraph=graph))
  kept(timed, tmp_path).keep(before, replace(after, compiled=other))
  assert not kept(timed, tmp_path).knows(before)


@pytest.mark.parametrize(
  "change",
  [
    {"graph": 99},
    {"params": []},
    {"us": [0.0, 1.0]},
    {"us": "fast"},
    {"timed": 3},
    {"lost": None, "tried": "x"},
  ],
)
def test_an_entry_that_says_nothing_is_timed(timed, tmp_path, change):
  _, before, after = timed
  one = kept(timed, tmp_path)
  one.keep(before, after)
  (key,) = (f.stem for f in tmp_path.iterdir())
  store = KeptFolder(tmp_path, {"gpu": "one"})
  store.put(key, {**store.get(key), **change})
  assert kept(timed, tmp_path).outcome(before, H200, right) is None
