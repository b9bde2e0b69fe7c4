"""What runs out (names, time) leaves regions as they were, with the reason."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort
import pytest

from mirage_onnx import pipeline
from mirage_onnx.importer import load_model
from mirage_onnx.pipeline import Options
from mirage_onnx.target import H200

MODELS = Path(__file__).resolve().parents[1] / "models"


@pytest.mark.slow
def test_names_run_out():
    loaded = load_model(MODELS / "bert.onnx")
    run = pipeline.run(loaded, Options(H200, pool=2))
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
