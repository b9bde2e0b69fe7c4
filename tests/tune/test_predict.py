"""Refusals after a search, from predicted times."""

from dataclasses import replace

import stand_ins
from golden_graphs import golden_graph
from search_programs import PROGRAMS

from mirage_onnx.errors import Rejection
from mirage_onnx.ir.ugraph import Candidate
from mirage_onnx.superopt.expected_time import CLUSTERED_OFF, TILED_OFF, doubt
from mirage_onnx.superopt.numbers import solve
from mirage_onnx.superopt.result import SearchResult, Verified
from mirage_onnx.superopt.tiled_numbers import solve_tiled
from mirage_onnx.target import H200, get_target
from mirage_onnx.tune import predict
from mirage_onnx.tune.predict import as_expected, expected_us, refuse_result


def result(*predicted, refused=()):
  return stand_ins.found(*predicted, refused=refused)


def test_the_best_candidate_must_win_by_the_margin():
  assert refuse_result(result(7.9, 20.0), 10.0, 0.2, ("a",)) is None
  found = refuse_result(result(8.1), 10.0, 0.2, ("a",))
  assert found.code == "NOT_FASTER"
  assert "8.10 us predicted against 10.00 us, margin 20%" in found.reason
  assert refuse_result(result(8.1), 10.0, 0.1, ("a",)) is None


def test_no_candidate_says_why():
  found = refuse_result(result(), 10.0, 0.2, ("a",))
  assert found.code == "NO_CANDIDATE"
  assert "EXHAUSTED" in found.reason
  why = Rejection("LAYOUT", "no layout holds it")
  found = refuse_result(result(refused=(why,)), 10.0, 0.2, ("a",))
  assert "LAYOUT: no layout holds it" in found.reason


def test_what_was_not_worth_a_proof_is_slower():
  slow = Rejection("NOT_FASTER", "9.00 us predicted (or 1.53 times as many)")
  found = refuse_result(result(refused=(Rejection("RANGE", "too large"), slow)), 10.0, 0.2, ("a",))
  assert found.code == "NOT_FASTER" and found.nodes == ("a",)
  assert found.reason == f"{slow.reason} against 10.00 us, margin 20%"


def test_tiled_programs_are_expected_to_take_longer():
  found = []
  for name, predicted_us in (("attention", 10.0), ("softmax_rows", 20.0)):
    region, graph = PROGRAMS[name](), golden_graph(name)
    tensors = {t.name: t for t in graph.tensors}
    solver = solve_tiled if name == "attention" else solve
    numbers = tuple(solver(k, tensors, region.extents, H200, keep=1)[0][1] for k in graph.kernels)
    found.append((region, Candidate(graph, numbers, predicted_us)))
  (region, tiled), (other, rows) = found
  assert expected_us(other, rows, H200) == 20.0
  time_us = expected_us(region, tiled, H200)
  proof = stand_ins.verified(0.0).proof
  both = SearchResult((Verified(tiled, proof), Verified(rows, proof)), stand_ins.report())
  ordered = as_expected(region, both, H200).candidates
  assert time_us > 20 and [v.candidate.predicted_us for v in ordered] == [20.0, time_us]


def test_a_repeat_knows_what_is_expected(monkeypatch, tmp_path):
  """Of the same region, numbers and graph; whatever differs, or is damaged, is worked out."""
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "on")
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path))
  asked, own = [], predict.expected_us
  monkeypatch.setattr(predict, "expected_us", lambda *a: asked.append(a) or own(*a))
  region, graph = PROGRAMS["attention"](), golden_graph("attention")
  tensors = {t.name: t for t in graph.tensors}
  points = [solve_tiled(k, tensors, region.extents, H200, keep=2) for k in graph.kernels]
  some = [Candidate(graph, tuple(p[n][1] for p in points), 1.0 + n) for n in (0, 1)]
  proof = stand_ins.verified(0.0).proof

  def times(some, target=H200, region=region):
    asked.clear()
    found = SearchResult(tuple(Verified(c, proof) for c in some), stand_ins.report())
    return [
      (v.candidate.params, v.candidate.predicted_us) for v in as_expected(region, found, target).candidates
    ]

  first = times(some)
  assert len(asked) == 2 and times(some) == first and not asked
  times(some[:1]), times(some[1:])
  assert not times([]) and times(some[::-1]) == first and len(asked) == 2
  times([some[0], replace(some[1], params=some[0].params)])
  assert len(asked) == 2
  times(some, get_target("h100"))
  assert len(asked) == 2
  for file in (tmp_path / "expected").iterdir():
    file.write_text(file.read_text().replace('"us"', '"them"'))
  assert times(some) == first and len(asked) == 2 and times(some) == first and not asked


def test_clusters_of_eight_are_less_sure():
  """Kernels of two activations took 1.26 times as long as expected there; others count as ever."""
  region, graph = PROGRAMS["attention"](), golden_graph("attention")
  tensors = {t.name: t for t in graph.tensors}
  numbers = [solve_tiled(k, tensors, region.extents, H200, keep=1)[0][1] for k in graph.kernels]
  numbers = [replace(p, cluster=1) for p in numbers]
  sure = doubt(region, Candidate(graph, tuple(numbers), 1.0), H200)
  numbers[0] = replace(numbers[0], cluster=8)
  less = doubt(region, Candidate(graph, tuple(numbers), 1.0), H200)
  assert 1 < sure <= TILED_OFF and sure < less <= CLUSTERED_OFF
