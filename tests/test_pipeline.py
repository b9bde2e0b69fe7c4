"""All stages together, on small models that each once broke one, and on the committed ones."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from small_models import Net, feeds, norm_to_three, refuse_once, run_model

import mirage_onnx
from mirage_onnx import events, pipeline
from mirage_onnx.compiler import candidates as candidates_module
from mirage_onnx.errors import REJECTIONS, Rejection
from mirage_onnx.importer import load_model
from mirage_onnx.ir.text import parse_ugraph
from mirage_onnx.report.schema import check_report
from mirage_onnx.target import H200

MODELS = Path(__file__).parents[1] / "models"


def optimize(model, **options):
  return mirage_onnx.optimize(model, target="h200", **{"workers": 1, **options})


def replaced(result):
  return [r for r in result.report["regions"] if r["status"] == "replaced"]


def check(model, result):
  """The report is well-formed, and stock ONNX Runtime computes the same bits."""
  check_report(result.report)
  onnx.checker.check_model(result.model)
  for row in result.report["regions"]:
    assert row["reason"] is None or row["reason"] in {*REJECTIONS, "NOT_CHOSEN"}
    assert (row["status"] == "replaced") == (row["reason"] is None)
    if row["status"] == "replaced":
      parse_ugraph(row["ugraph"])
      assert row["predicted_us"] < row["baseline_us"]
      assert 0 <= row["proof"]["bound"] < 1e-9
  calls = [n for n in result.model.graph.node if n.domain.startswith("ai.mirage.v1.")]
  assert len(calls) == sum(r["count"] for r in replaced(result))
  for seed in range(2):
    values = feeds(model, np.random.default_rng(seed))
    pairs = zip(run_model(model, values), run_model(result.model, values), strict=True)
    for a, b in pairs:
      assert a.dtype == b.dtype
      assert a.tobytes() == b.tobytes()


def residual():
  net = Net()
  total = net.Add(net.input(2, 4, 512), net.input(2, 4, 512))
  y = net.MatMul(net.rms(total, net.weight(512)), net.weight(512, 256))
  return net.model(net.Add(total, net.input(2, 4, 512)), y)


def sum_over_two_axes():
  """A contraction spelled as a sum over two axes that are one, of a weight stored along them."""
  net = Net()
  product = net.Mul(net.input(8, 16, 32, 1), net.weight(16, 32, 256, scale=0.05))
  return net.model(net.Relu(net.ReduceSum(product, [1, 2])))


def function_of_a_constant():
  net = Net()
  y = net.MatMul(net.input(8, 512), net.weight(512, 256))
  return net.model(net.Relu(net.Div(y, net.Sqrt(net.Abs(net.constant([-2.0]))))))


def cancelled_input():
  net = Net()
  x, z = net.weight(8, 64), net.input(8, 64)
  return net.model(net.Abs(net.Tanh(net.Exp(net.Add(z, net.Sub(x, x))))))


def entangled():
  """Two regions with two outputs each, of which each would read what the other yields."""
  net = Net()
  x = [net.input(8, 64) for _ in range(8)]

  def stage(op, i):
    return getattr(net, op)(net.Add(net.Mul(x[i], x[i + 1]), net.Mul(x[i + 2], x[i + 3])))

  p, r = stage("Tanh", 0), stage("Exp", 4)
  difference = net.Sub(p, r)
  return net.model(net.Mul(difference, net.Sub(p, r)), net.Abs(net.Add(p, r)))


def one_element():
  net = Net()
  x = net.input(1, 256)
  return net.model(net.Sqrt(net.Add(net.ReduceSum(net.Mul(x, x), [-1]), 0.5)))


SMALL = [
  norm_to_three, residual, sum_over_two_axes, function_of_a_constant, cancelled_input, entangled,
  one_element,
]  # fmt: skip


@pytest.mark.parametrize("build", SMALL, ids=lambda f: f.__name__)
def test_small(build):
  model = build()
  before = model.SerializeToString(deterministic=True)
  result = optimize(model)
  assert replaced(result)
  check(model, result)
  assert model.SerializeToString(deterministic=True) == before


def test_a_shared_stage_disappears():
  result = optimize(norm_to_three())
  assert {n.op_type for n in result.model.graph.node} == {"MuGraph_0", "MuGraph_1"}
  assert [r["count"] for r in replaced(result)] in ([2, 1], [1, 2])


def test_a_committed_model():
  path = MODELS / "rmsnorm_linear.onnx"
  result = optimize(path)
  check(onnx.load(path), result)
  assert len(result.model.graph.node) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama_decode", "lora", "bert"])
def test_exported_models(name, kept_searches):
  path = MODELS / f"{name}.onnx"
  with kept_searches(name):
    result = optimize(path, workers=2, budget_s=3000.0)
  check(onnx.load(path), result)
  assert len(replaced(result)) >= 3


@pytest.mark.parametrize("build", [norm_to_three, residual], ids=lambda f: f.__name__)
def test_every_run_gives_the_same_bytes(build):
  """And the same report: there is time to emulate all that is chosen, on a busy machine, too."""
  first, again, pooled = (optimize(build(), workers=n, budget_s=3000.0) for n in (1, 1, 2))
  bytes_ = {r.model.SerializeToString(deterministic=True) for r in (first, again, pooled)}
  assert len(bytes_) == 1
  for r in (first, again, pooled):
    r.report["seconds"] = 0
    for row in r.report["regions"]:
      row["search"] = None
  assert first.report == again.report == pooled.report


def test_an_impossible_margin():
  model = norm_to_three()
  result = optimize(model, margin=0.95)
  assert not replaced(result)
  assert {r["reason"] for r in result.report["regions"]} <= {"NOT_FASTER", "TOO_SMALL"}
  assert result.model.SerializeToString() == model.SerializeToString()


def test_no_time():
  result = optimize(norm_to_three(), budget_s=0.0)
  assert not replaced(result)
  kept = next(r for r in result.report["regions"] if r["search"])
  assert kept["search"]["stop"] == "BUDGET"
  assert kept["reason"] == "BUDGET"


def test_what_the_compiler_refuses_stays(monkeypatch):
  def refuse(sources, target, workers=1):
    return [Rejection("SPILLS", "it spills") for _ in sources]

  monkeypatch.setattr(candidates_module, "compile_many", refuse)
  model = norm_to_three()
  result = optimize(model)
  assert not replaced(result)
  assert "SPILLS" in {r["reason"] for r in result.report["regions"]}
  check_report(result.report)
  assert len(result.model.graph.node) == len(model.graph.node)


def test_the_next_candidate_is_compiled(monkeypatch):
  calls = refuse_once(monkeypatch)
  model = function_of_a_constant()
  check(model, optimize(model))
  assert len(calls) > 1


def test_every_kernel_that_verifies(net):
  """One operator that ONNX Runtime has a kernel for, whose time nobody has measured."""
  model = net.model(net.Elu(net.input(8, 64)))
  loaded = load_model(model)
  assert not pipeline.run(loaded, pipeline.Options(H200)).chosen
  run = pipeline.run(loaded, pipeline.Options(H200, every=True))
  ((chosen, outcome),) = run.chosen
  assert len(chosen.nodes) == 1 and outcome.rejection is None
  onnx.checker.check_model(run.model)
  values = feeds(model, np.random.default_rng(0))
  (want,), (got,) = run_model(model, values), run_model(run.model, values)
  assert want.tobytes() == got.tobytes()


def test_nothing_to_do(net):
  model = net.model(net.Exp(net.input(8, 64)))
  result = optimize(model)
  assert [r["reason"] for r in result.report["regions"]] == ["TOO_SMALL"]
  assert result.report["barriers"] == {"TOO_SMALL": 1}
  assert result.model.SerializeToString() == model.SerializeToString()


def test_events():
  seen = []
  result = optimize(norm_to_three(), emit=seen.append)
  stages = [e for e in seen if isinstance(e, (events.StageStarted, events.StageEnded))]
  names = ["importer", "match", "superopt", "tune", "rewrite"]
  assert [e.stage for e in stages] == [n for name in names for n in (name, name)]
  (started,) = [e for e in seen if isinstance(e, events.RunStarted)]
  assert started.budget_s == 300.0 and 0 <= started.seconds < 60 and seen[0] is started
  done = [e for e in seen if isinstance(e, events.RegionDone)]
  begun = {"superopt": [], "tune": []}
  for e in seen:
    if isinstance(e, events.RegionsStarted):
      begun[e.stage] += [key for key, _ in e.regions]
  assert [e.region for e in done] == begun["superopt"]
  tuned = [e for e in seen if isinstance(e, events.RegionTuned)]
  assert [e.region for e in tuned] == begun["tune"] and all(e.kernel_us for e in tuned)
  assert len(done) >= len(replaced(result))
  assert len({e.region for e in done}) == len(done)
