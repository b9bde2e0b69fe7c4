"""Searching many regions: the same results from one process and from workers."""

import pickle
import time
from dataclasses import replace
from pathlib import Path

import pytest
from small_models import Net

from mirage_onnx import search_workers
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir.text import print_ugraph
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.searching import Setting, open_structures, search_all, search_region
from mirage_onnx.superopt.result import SearchBound
from mirage_onnx.target import H200

LOADED = load_model(Path(__file__).parents[1] / "models" / "bert.onnx")


def regions(count):
  found = {c.region.key: c.region for c in find_candidates(import_model(LOADED)).candidates}
  return sorted(found.values(), key=lambda r: (len(r.nodes), r.key))[:count]


def summary(result):
  r = result.report
  texts = [
    (print_ugraph(v.candidate.ugraph), [p.to_text() for p in v.candidate.params], v.proof)
    for v in result.candidates
  ]
  return (texts, r.states, r.built, r.verified, r.stop, r.pruned, r.refused)


def run(count, workers, structures=None, model=LOADED):
  setting = Setting(H200, SearchBound(), time.monotonic() + 300, structures=structures)
  order = []
  found = []

  def done(i, result):
    order.append(i)
    found.append(result)

  search_all(model, regions(count), setting, workers=workers, done=done)
  assert order == list(range(count))
  return [summary(r) for r in found]


def test_any_number_of_workers_gives_the_same():
  serial = run(10, 1)
  assert serial == run(10, 2)
  assert serial == run(10, 2, model=replace(LOADED, path=None))
  assert any(texts for texts, *_ in serial)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_later_run_only_solves_for_numbers(workers, tmp_path):
  """And finds the same best programs; regions for which there is none are searched again."""
  first = run(10, workers, open_structures(tmp_path, H200, SearchBound()))
  again = run(10, workers, open_structures(tmp_path, H200, SearchBound()))
  solved = 0
  for (texts, *_), (others, states, *_) in zip(first, again, strict=True):
    assert texts[:1] == others[:1]
    solved += bool(texts) and states == 0
    assert texts or states > 0
  assert solved >= 8


def test_one_region():
  (region,) = regions(1)
  (among_others,) = run(1, 1)
  assert summary(search_region(LOADED, region, H200, SearchBound(), 900.0)) == among_others


def test_an_error_in_a_worker_costs_its_region():
  setting, found = Setting(H200, SearchBound(), time.monotonic() + 300), {}
  wrong = [replace(r, steps=None) for r in regions(10)]
  search_all(LOADED, wrong, setting, workers=2, done=found.__setitem__)
  assert len(found) == 10 and not any(r.candidates for r in found.values())
  assert {r.failure.code for r in found.values()} == {"REGION_FAILED"}
  assert "TypeError" in found[0].failure.reason


def test_few_regions_start_no_worker(monkeypatch):
  monkeypatch.setattr(search_workers, "WorkerProcess", None)
  assert len(run(2, 2)) == 2


def test_terms_stay_one_object_through_a_pickle():
  (region,) = regions(1)
  again = pickle.loads(pickle.dumps(region))
  assert again.terms[0] is region.terms[0]
  assert again.text == region.text


@pytest.mark.parametrize(("workers", "in_order"), [(1, True), (2, False)])
def test_products_of_many_rows_have_numbers_with_wgmma(workers, in_order):
  """Wherever the search was: nobody ranks them in the process that times, or chooses."""
  net = Net()
  made = net.Relu(net.Add(net.MatMul(net.input(512, 256), net.weight(256, 256)), net.weight(256)))
  loaded = load_model(net.model(made))
  (region,) = {
    c.region.key: c.region
    for c in find_candidates(import_model(loaded)).candidates
    if len(c.region.nodes) == 3
  }.values()
  found = []
  setting = Setting(H200, SearchBound(), time.monotonic() + 300)
  tell = lambda _, result: found.append(result)  # noqa: E731
  search_all(loaded, [region], setting, workers=workers, done=tell, in_order=in_order)
  used = {p.instruction for v in found[0].candidates for p in v.candidate.params}
  assert used == {"mma", "wgmma"}
