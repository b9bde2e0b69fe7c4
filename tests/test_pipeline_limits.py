"""What runs out (names, time) leaves regions as they were, with the reason."""

from pathlib import Path

import onnxruntime as ort
import pytest

from mirage_onnx import judging, pipeline
from mirage_onnx.events import StageEnded, Warned
from mirage_onnx.importer import load_model
from mirage_onnx.pipeline import Options
from mirage_onnx.superopt.result import SearchBound, Stop
from mirage_onnx.target import H200

MODELS = Path(__file__).parents[1] / "models"


@pytest.mark.slow
def test_names_run_out(kept_searches):
  loaded = load_model(MODELS / "bert.onnx")
  with kept_searches("bert"):
    run = pipeline.run(loaded, Options(H200, pool=2, budget_s=3000.0))
  names = {n.op_type for n in run.model.graph.node if n.domain.startswith("ai.mirage")}
  assert names == {"MuGraph_0", "MuGraph_1"}
  refused = [o.rejection for o in run.outcomes.values() if o.rejection]
  assert "NAME_POOL_FULL" in {r.code for r in refused}
  ort.InferenceSession(run.model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_time_runs_out():
  loaded = load_model(MODELS / "rmsnorm_linear.onnx")
  run = pipeline.run(loaded, Options(H200, budget_s=0.0))
  assert not run.chosen
  assert {o.rejection.code for o in run.outcomes.values() if o.rejection} == {"BUDGET"}
  assert run.model.SerializeToString() == loaded.proto.SerializeToString()


def test_nothing_is_looked_at_where_the_time_is_over(monkeypatch):
  """On a machine with much other work matching alone may take all of it; the rest would take longer."""
  monkeypatch.setattr(judging, "with_right_terms", lambda *a: pytest.fail("its terms were looked at"))
  run = pipeline.run(load_model(MODELS / "bert.onnx"), Options(H200, budget_s=0.0))
  refused = [o for o in run.outcomes.values() if o.rejection and o.rejection.code == "BUDGET"]
  assert refused and all(o.result and o.result.report.stop is Stop.BUDGET for o in refused)


def test_a_run_that_is_stopped_before_it_searches(tmp_path):
  loaded = load_model(MODELS / "rmsnorm_linear.onnx")
  journal = tmp_path / "journal"
  run = pipeline.run(loaded, Options(H200, journal=journal, stop=lambda: Stop.INTERRUPTED))
  codes = {o.rejection.code for o in run.outcomes.values() if o.rejection}
  assert codes == {"INTERRUPTED"}
  assert run.model.SerializeToString() == loaded.proto.SerializeToString()
  assert not journal.exists()


def test_a_journal_gives_the_same_model_and_says_so(tmp_path):
  loaded = load_model(MODELS / "rmsnorm_linear.onnx")
  journal, models, said = tmp_path / "journal", [], []
  for options in (Options(H200), *[Options(H200, journal=journal)] * 2):
    found = []
    run = pipeline.run(loaded, options, found.append)
    models.append(run.model.SerializeToString(deterministic=True))
    said.append([e.detail for e in found if isinstance(e, StageEnded) and e.detail])
  assert models[0] == models[1] == models[2]
  assert said[:2] == [[], []]
  assert "finished steps" in said[2][0]
  other = pipeline.Options(H200, journal=journal, bound=SearchBound(tried=1))
  found = []
  pipeline.run(loaded, other, found.append)
  (warning,) = [e.text for e in found if isinstance(e, Warned)]
  assert "another setting (bound differs)" in warning
