"""Layers of real width and length, by default flags: each ends well, and is right without the library.

What is chosen depends on what was measured of such sizes; that nothing fails does not.
"""

import onnx
import onnxruntime as ort
import pytest
from real_layers import BERT, LLAMA, QWEN3, decoder, encoder

from mirage_onnx import api

LAYERS = {
  "bert 128": lambda: encoder(BERT, 128),
  "bert 512": lambda: encoder(BERT, 512),
  "bert dynamic": lambda: encoder(BERT, "tokens", "batch"),
  "qwen3 128": lambda: decoder(QWEN3, 128),
  "qwen3 512": lambda: decoder(QWEN3, 512),
  "llama 128": lambda: decoder(LLAMA, 128),
}
#: Searches of 10 s and more of processor, and runs of 0.4 GB of weights.
FAST = {"bert 128"}


@pytest.mark.parametrize(
  "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in LAYERS]
)
def test_a_layer(name, tmp_path):
  onnx.save(LAYERS[name](), tmp_path / "in.onnx")
  result = api.optimize(tmp_path / "in.onnx", tmp_path / "out.onnx", target="h200", budget_s=150.0)
  reasons = {r["reason"] for r in result.report["regions"]}
  assert not reasons & {"REGION_FAILED", "CHECK_FAILED", "MEASURE_FAILED"}
  onnx.checker.check_model(str(tmp_path / "out.onnx"))
  ort.InferenceSession(tmp_path / "out.onnx", providers=["CPUExecutionProvider"])
  custom = [n for n in result.model.graph.node if n.op_type.startswith("MuGraph_")]
  said = result.report["checked"]
  assert result.report["regions"], "regions of real size are found, whatever is chosen of them"
  assert ("without the library" in said or "not run" in said) if custom else said == "nothing was replaced"
