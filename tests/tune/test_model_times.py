"""The time of a whole model, before and after: every node once."""

import pytest
import stand_ins
from small_models import Net

import mirage_onnx
from mirage_onnx import pipeline
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.pipeline import Options
from mirage_onnx.report.schema import check_report
from mirage_onnx.report.summary import summary
from mirage_onnx.target import H200
from mirage_onnx.tune.model_times import IN_MODEL_US, model_times


def test_a_node_that_two_regions_compute_counts_once(net):
  """A norm before two products: both regions have it, and only one of them can save it."""
  x = net.rms(net.input(8, 64))
  program = import_model(load_model(net.model(*(net.MatMul(x, net.weight(64, n)) for n in (64, 128)))))
  every = find_candidates(program).candidates
  largest = [max((c for c in every if o in c.outputs), key=lambda c: len(c.nodes)) for o in program.outputs]
  assert largest[0].nodes & largest[1].nodes
  node_us = {n.name: 1.0 for n in program.nodes}
  both = [(c, stand_ins.priced(0.25)) for c in largest]

  def times(chosen, known=node_us):
    return model_times(program, chosen, known, known, {})

  whole = times(both)
  assert (whole.before_us, whole.after_us) == (len(program.nodes), 0.5 + 2 * IN_MODEL_US)
  assert (whole.gone, whole.kernels, whole.unknown, whole.bounded) == (whole.nodes, 2, 0, 0)
  one = times(both[:1])
  assert one.after_us == pytest.approx(0.25 + IN_MODEL_US + one.nodes - one.gone)
  assert one.gone == 1  # the norm is still read by the other product
  # A node without a time is in neither.
  gap = {n: us for n, us in node_us.items() if n != program.nodes[0].name}
  some = times(both, gap)
  assert (some.unknown, some.unknown_gone) == (1, 1)
  assert some.before_us == whole.before_us - 1 and some.after_us == whole.after_us


def test_what_only_its_neighbour_computed_is_left_alone(net):
  y = net.Add(net.MatMul(net.input(8, 64), net.weight(64, 64)), net.weight(64))
  program = import_model(load_model(net.model(net.Exp(y), y)))
  product, bias, _ = (n.name for n in program.nodes)
  first = program.nodes[0]
  gone = stand_ins.place({product}, first.outputs, first.inputs)
  node_us = {product: 2.0, bias: 0.0}
  found = model_times(
    program,
    [(gone, stand_ins.priced(1.5))],
    {product: 2.0},
    node_us,
    {bias: (product, 1.0)},
  )
  assert (found.before_us, found.after_us, found.bounded) == (2.0, 2.5 + IN_MODEL_US, 1)


def test_report_of_a_run(net):
  """The sums of the report, by hand from the run."""
  x = net.rms(net.input(8, 1024))
  model = net.model(*(net.MatMul(x, net.weight(1024, 1024)) for _ in range(2)), net.Hardmax(x))
  loaded = load_model(model)
  run = pipeline.run(loaded, Options(H200, workers=1))
  assert run.chosen
  kernels_us = sum(o.compiled.candidate.predicted_us for _, o in run.chosen)
  gone = run.times.gone
  assert run.times.before_us == pytest.approx(sum(run.times.node_us.values()))
  assert run.times.node_us.keys() >= run.node_us.keys()  # of all that is known, not of what choices stand on
  assert kernels_us <= run.times.after_us < run.times.before_us and 0 < gone <= run.times.nodes
  assert run.times.unknown == 1  # Hardmax

  report = check_report(mirage_onnx.optimize(model, target="h200", workers=1).report)
  assert report.model.nodes_unknown == 1 and report.model.before_us > report.model.after_us
  every = report.found
  assert every.instances == len(run.matches.candidates)
  assert every.regions == len(run.outcomes) == sum(c.regions for c in every.by_result.values())
  assert every.instances == sum(c.instances for c in every.by_result.values())
  assert every.by_result["REPLACED"].instances == len(run.chosen)
  text = summary(report)
  assert f"of {every.regions}, which overlap" in text
  assert "left out: 1 node of unknown time" in text


def test_every_region_that_the_time_cut_off_is_listed():
  net = Net()
  x = net.input(8, 1024)
  for n in (1024, 2048, 768):
    x = net.MatMul(net.MatMul(net.rms(x), net.weight(1024, n)), net.weight(n, 1024))
  found = mirage_onnx.optimize(net.model(x), target="h200", workers=1, budget_s=1e-6).report
  late = found["found"]["by_result"]["BUDGET"]["regions"]
  rows = [r for r in found["regions"] if r["reason"] == "BUDGET"]
  assert len(rows) == late > 1
  assert f"{late} not reached (of {found['found']['regions']}," in summary(check_report(found))


def test_no_time_is_said_to_be_zero(net):
  """Nodes of which nobody knows the time: the refusal says so, and the region's time is null."""
  x = net.input(1 << 15, 1 << 10)  # more elements than were measured
  found = mirage_onnx.optimize(
    net.model(net.Mul(net.Exp(x), 0.5)), target="h200", workers=1, margin=-20.0
  ).report
  (row,) = (r for r in found["regions"] if len(r["ops"]) == 2)
  assert row["baseline_us"] is None and row["unknown_nodes"] == 2
  assert row["reason"] == "NOT_PREDICTED" and "time of 2 of its 2 nodes is unknown" in row["reason_text"]
  assert found["model"] is None
