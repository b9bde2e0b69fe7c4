"""The record of a run says what the run's report says, node by node."""

import onnx
import pytest
from reported import optimized, record_of

from mirage_onnx import api
from mirage_onnx.custom_op.runtime import DOMAIN_PREFIX
from mirage_onnx.report.record_run import op_counts, region_of
from mirage_onnx.report.schema import check_report


def test_the_nodes_are_those_of_the_model_and_add_up():
  (model, result), record = optimized(), record_of()
  report = check_report(result.report)
  assert [(n.name, n.op) for n in record.nodes] == [(n.name, n.op_type) for n in model.graph.node]
  assert report.model is not None and record.model == report.model and record.found == report.found
  before = sum(n.us or 0.0 for n in record.nodes)
  after = sum(n.left_us for n in record.nodes) + sum(p.us for p in record.places)
  assert before == pytest.approx(report.model.before_us, abs=0.02)
  assert after == pytest.approx(report.model.after_us, abs=0.02)
  assert sum(n.us is None for n in record.nodes) == report.model.nodes_unknown
  assert sum(n.bound for n in record.nodes) == report.model.nodes_bounded
  for i, place in enumerate(record.places):
    assert all(i in record.nodes[n].places for n in place.nodes)
    assert place.nodes == sorted(place.nodes)


def test_regions_are_the_rows_of_the_report():
  record, report = record_of(), check_report(optimized()[1].report)
  rows = [r for r in report.regions if r.status == "replaced"]
  assert [r.id for r in record.regions] == [r.id for r in rows] and rows
  for i, (ours, row) in enumerate(zip(record.regions, rows, strict=True)):
    assert sum(p.region == i for p in record.places) == row.count
    assert (ours.baseline_us, ours.choice, ours.ran) == (row.baseline_us, row.choice, "")
    assert row.ran in ("emulated", "never ran")  # as there was time, and the model is the same
    assert ours.ours_us == row.predicted_us and not ours.measured
    assert 0 < ours.work.floor_us <= ours.ours_us and ours.work.flops >= ours.work.mma_flops > 0
    assert [c.chosen for c in ours.candidates].count(True) == 1
    assert ours.proof is not None and row.proof is not None and ours.proof.draws == row.proof.draws
    made = {name for n in optimized()[0].graph.node for name in (*n.input, *n.output)}
    assert ours.names and set(ours.names.values()) <= made
  kept = {k.code for k in record.kept}
  assert kept <= {*report.found.by_result} and "REPLACED" not in kept  # type: ignore[union-attr]
  assert {b.code: len(b.nodes) for b in record.barriers} == report.barriers


def test_equal_runs_keep_equal_records(tmp_path):
  model, result = optimized()
  source = tmp_path / "a" / "model.onnx"
  source.parent.mkdir()
  onnx.save(model, source)
  out = tmp_path / "out.onnx"
  how = {"target": "h200", "workers": 1, "budget_s": 3000.0}  # both have the time to emulate what is chosen
  api.optimize(source, out, **how)
  again = api.optimize(source, **how)
  assert onnx.load(out).metadata_props == again.model.metadata_props
  assert str(tmp_path) not in str(again.model.metadata_props)
  assert len(result.model.metadata_props) == 2


def test_custom_nodes_say_what_they_stand_for():
  model = optimized()[1].model
  texts = {n.name: n.doc_string for n in model.graph.node}
  record = record_of()
  custom = [n for n in model.graph.node if n.domain.startswith(DOMAIN_PREFIX)]
  assert custom and all(texts[n.name].startswith("In place of ") for n in custom)
  for n in custom:
    names = region_of(n).split(",")
    assert f"In place of {len(names)} node" in n.doc_string and names[0] in n.doc_string
    assert "x predicted (h200)" in n.doc_string and "MatMul" in n.doc_string
  others = [n for n in model.graph.node if not n.domain.startswith(DOMAIN_PREFIX)]
  assert others and not any(n.doc_string for n in others)
  assert all("MatMul" in f.doc_string and "original nodes" in f.doc_string for f in model.functions)
  assert len(custom) == len(record.places)


def test_what_replaces_nothing_keeps_nothing(net):
  model = net.model(net.Hardmax(net.input(8, 8)))
  result = api.optimize(model, target="h200")
  assert result.model.SerializeToString() == model.SerializeToString()


def test_op_counts():
  assert op_counts(["MatMul", "Add", "MatMul"]) == "2 MatMul, Add" and op_counts([]) == ""
