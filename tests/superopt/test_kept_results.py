"""Results of searches from run to run: the same, or none."""

import json
from dataclasses import replace

import pytest
from small_models import Net

from mirage_onnx import pipeline, searching
from mirage_onnx.errors import Rejection
from mirage_onnx.importer import load_model
from mirage_onnx.ir import print_ugraph
from mirage_onnx.pipeline import Options
from mirage_onnx.superopt.journal_lines import entry_line, header_line
from mirage_onnx.superopt.kept_results import KeptResults
from mirage_onnx.superopt.result import SearchReport, SearchResult, Stop
from mirage_onnx.target import H200

SETTING = {"target": "a"}


@pytest.fixture(scope="module")
def found():
  net = Net(seed=1)
  model = net.model(net.MatMul(net.rms(net.input(4, 64)), net.weight(64, 96)))
  run = pipeline.run(load_model(model), Options(H200, margin=-20.0))
  ((_, outcome),) = run.chosen
  return outcome.region, outcome.result


def texts(result):
  return [
    (
      print_ugraph(v.candidate.ugraph),
      v.candidate.params,
      v.candidate.predicted_us,
      v.proof.draws,
      v.proof.bound,
    )
    for v in result.candidates
  ]


def test_what_is_kept_comes_back(found, tmp_path):
  region, result = found
  refused = Rejection("RANGE", "too large", ("n",))
  result = replace(result, report=replace(result.report, refused=(refused,), pruned=(("shape", 3),)))
  KeptResults(tmp_path / "new", SETTING).put(region, "w", 9.0, result)
  got = KeptResults(tmp_path / "new", SETTING).get(region, "w", 9.0)
  assert texts(got) == texts(result) and texts(got)
  assert got.report == replace(result.report, seconds=0.0)


def test_nothing_else_comes_back(found, tmp_path):
  """Other weights, another region, another setting, a damaged file."""
  region, result = found
  kept = KeptResults(tmp_path, SETTING)
  kept.put(region, "w", 9.0, result)
  assert kept.get(region, "v", 9.0) is None
  assert kept.get(replace(region, extents={a: n + 1 for a, n in region.extents.items()}), "w", 9.0) is None
  assert KeptResults(tmp_path, {"target": "b"}).get(region, "w", 9.0) is None
  assert KeptResults(None, SETTING).get(region, "w", 9.0) is None
  path = kept.path(region, "w")
  data = path.read_bytes()
  for damaged in (data[:-9], data.replace(b'"draws', b'"d'), data.replace(b"EXHAUSTED", b"EXHAUSTEB"), b""):
    path.write_bytes(damaged)
    got = kept.get(region, "w", 9.0)
    assert got is None or damaged == data
  path.write_bytes(data)
  assert kept.get(region, "w", 9.0) is not None


@pytest.mark.parametrize(
  ("stop", "states", "seconds", "comes"),
  [
    (Stop.EXHAUSTED, 9, 1e9, True),
    (Stop.BUDGET, 9, 10.0, True),
    (Stop.BUDGET, 9, 20.0, False),
    (Stop.BUDGET, 0, 10.0, False),
    (Stop.INTERRUPTED, 9, 10.0, False),
  ],
)
def test_what_was_cut_off_is_as_good_as_its_time(found, tmp_path, stop, states, seconds, comes):
  kept = KeptResults(tmp_path, SETTING)
  kept.put(found[0], "w", 10.0, SearchResult((), SearchReport(1.0, states, 1, 1, stop, (), ())))
  assert (kept.get(found[0], "w", seconds) is not None) == comes


def model_of(scale):
  net = Net(seed=2)
  return net.model(net.Tanh(net.Mul(net.Mul(net.input(4, 64), net.weight(64, scale=scale)), 0.5)))


def test_a_second_run_searches_nothing_and_other_weights_are_checked(monkeypatch, tmp_path):
  """A gamma so large that a kernel overflows is looked at again, though all else is known."""
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "on")
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path))
  asked = []
  rest = searching._search_rest

  def counted(loaded, regions, *others, **more):
    asked.append(len(regions))
    rest(loaded, regions, *others, **more)

  monkeypatch.setattr(searching, "_search_rest", counted)
  options = Options(H200, margin=-20.0)
  first = pipeline.run(load_model(model_of(1.0)), options)
  again = pipeline.run(load_model(model_of(1.0)), options)
  assert asked == [len(first.outcomes)] and first.chosen
  assert again.model.SerializeToString(deterministic=True) == first.model.SerializeToString(
    deterministic=True
  )
  pipeline.run(load_model(model_of(3.0)), options)
  assert len(asked) == 2 and asked[1] > 0


def edited(path, change):
  """The entry of a file, changed, with a checksum of its own."""
  header, line, _ = path.read_bytes().split(b"\n")
  entry = json.loads(line)
  change(entry["value"])
  path.write_bytes(header_line(json.loads(header)["setting"]) + entry_line(entry["key"], entry["value"]))


def other_graph(value):
  """One that is well spelled, and of no region."""
  value["graphs"] = [text.replace("i0", "i7") for text in value["graphs"]]


def no_such_graph(value):
  value["candidates"][0][0] = 99


def other_axes(value):
  value["graphs"] = [text.replace("a0", "zz") for text in value["graphs"]]


@pytest.mark.parametrize(
  ("what", "change"),
  [(w, c) for w in ("results", "structures") for c in (other_graph, other_axes)]
  + [("results", no_such_graph)],
)
def test_edited_files_are_found_again(monkeypatch, tmp_path, what, change):
  """Once a failure of the region in every run, until the file was deleted."""
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "on")
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path))
  options = Options(H200, margin=-20.0)
  first = pipeline.run(load_model(model_of(1.0)), options)
  assert first.chosen
  if what == "structures":
    for path in (tmp_path / "results").iterdir():
      path.unlink()
  files = list((tmp_path / what).iterdir())
  before = [path.read_bytes() for path in files]
  for path in files:
    edited(path, change)
  spoiled = [path.read_bytes() for path in files]
  assert spoiled != before
  for _ in range(2):
    again = pipeline.run(load_model(model_of(1.0)), options)
    assert [o.rejection for o in again.outcomes.values()] == [o.rejection for o in first.outcomes.values()]
    assert len(again.chosen) == len(first.chosen)
  if what == "results":
    assert not {path.read_bytes() for path in files} & set(spoiled), "what was damaged is replaced"


def other_function(value):
  """A program of the same form that computes something else."""
  value["graphs"] = [text.replace("= mul", "= add") for text in value["graphs"]]


def test_an_edited_program_is_proven_again(monkeypatch, tmp_path):
  """Its checksum is right: it was written into the model once."""
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "on")
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path))
  options = Options(H200, margin=-20.0)
  first = pipeline.run(load_model(model_of(1.0)), options)
  assert first.chosen
  for path in (tmp_path / "results").iterdir():
    edited(path, other_function)
  spoiled = pipeline.run(load_model(model_of(1.0)), options)
  codes = {o.rejection.code for o in spoiled.outcomes.values() if o.rejection}
  assert not spoiled.chosen and "NOT_EQUIVALENT" in codes
  again = pipeline.run(load_model(model_of(1.0)), options)
  assert len(again.chosen) == len(first.chosen)
