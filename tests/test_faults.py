"""A fault in any stage of any region leaves a right model: the region stays as it was, with a reason."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from planted_failures import STAGES, planted
from small_models import Net

from mirage_onnx import pipeline, search_run, searching
from mirage_onnx.errors import MirageError
from mirage_onnx.importer import load_model
from mirage_onnx.report.optimize_report import found_report
from mirage_onnx.target import H200
from mirage_onnx.tune import realise


def two_layers():
  """Two regions whose search is short: y = sigmoid(tanh(rms(x) W) V)."""
  net = Net()
  x = net.input(8, 64)
  h = net.Tanh(net.MatMul(net.rms(x), net.weight(64, 128)))
  return net.model(net.Sigmoid(net.Mul(net.MatMul(h, net.weight(128, 64)), 0.5)))


MODEL = two_layers()


def optimized(**more):
  options = pipeline.Options(H200, margin=-9.0, budget_s=2000.0, every=True, workers=1, **more)
  return pipeline.run(load_model(MODEL), options)


def outputs(model):
  feeds = {i.name: np.linspace(-2, 2, 512, dtype=np.float16).reshape(8, 64) for i in model.graph.input}
  session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
  return [o.tobytes() for o in session.run(None, feeds)]


def check(run):
  onnx.checker.check_model(run.model)
  assert outputs(run.model) == outputs(MODEL)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
  "operator", ["Tanh", pytest.param("Sigmoid", marks=pytest.mark.slow)], ids=["first", "second"]
)
def test_a_fault_of_one_region(stage, operator):
  with planted(stage, lambda node: node.startswith(operator)) as hits:
    run = optimized(emulate=stage == "emulated run")
  assert hits
  check(run)
  refusals = [o.rejection for o in run.outcomes.values() if o.rejection] + list(run.matches.rejections)
  mine = [r for r in refusals if r.code == "REGION_FAILED"]
  assert mine and all("planted" in r.reason and r.nodes for r in mine)
  replaced = {n for c, _ in run.chosen for n in c.nodes}
  assert replaced, "the other region is replaced all the same"
  assert not any(n.startswith(operator) for n in replaced)


def test_a_fault_of_one_instance():
  """The other instance of its region is replaced; the report counts both."""
  net = Net()
  ends = [
    net.Sigmoid(net.MatMul(net.rms(x), net.weight(64, 128))) for x in (net.input(8, 64), net.input(8, 64))
  ]
  model = net.model(*ends)
  _, second = (n.name for n in model.graph.node if n.op_type == "Sigmoid")
  options = pipeline.Options(H200, margin=-9.0, budget_s=2000.0, every=True, workers=1)
  with planted("plan", lambda node: node == second) as hits:
    run = pipeline.run(load_model(model), options)
  assert hits and not any(second in c.nodes for c, _ in run.chosen)
  ((candidate, why),) = [left for o in run.outcomes.values() for left in o.left_alone]
  assert second in candidate.nodes and why.code == "REGION_FAILED" and "planted" in why.reason
  (mine,) = [o for o in run.outcomes.values() if o.left_alone]
  assert mine.rejection is None and run.counts()[mine.region.key] == 1
  assert found_report(run)["by_result"]["REGION_FAILED"] == {"regions": 0, "instances": 1}


def test_a_worker_that_dies_costs_its_region(monkeypatch):
  monkeypatch.setattr(searching, "MIN_REGIONS", 1)
  right, killed = search_run._ask, []

  def dying(worker, hooks, weights, job):
    if any(n.startswith("Tanh") for n in job.region.nodes):
      killed.append(worker.pid)
      worker.kill()
    return right(worker, hooks, weights, job)

  monkeypatch.setattr(search_run, "_ask", dying)
  options = pipeline.Options(H200, margin=-9.0, budget_s=2000.0, every=True, workers=2)
  run = pipeline.run(load_model(MODEL), options)
  check(run)
  assert killed
  failed = [o for o in run.outcomes.values() if o.rejection and o.rejection.code == "REGION_FAILED"]
  assert failed and all("ended without an answer" in o.rejection.reason for o in failed)
  assert any(n.startswith("Sigmoid") for c, _ in run.chosen for n in c.nodes)


def test_an_error_of_the_whole_run_ends_it(monkeypatch):
  def missing(*_, **__):
    raise MirageError("COMPILER_MISSING", "planted")

  monkeypatch.setattr(realise, "tuned", missing)
  with pytest.raises(MirageError, match="planted"):
    optimized()


def test_nothing_is_lost_without_faults():
  run = optimized()
  check(run)
  assert {"Tanh", "Sigmoid"} <= {n.split("_")[0] for c, _ in run.chosen for n in c.nodes}
