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


@pytest.mark.slow
def test_dynamic_attention_of_bert(tmp_path):
  """Only a run knows the batch and the tokens: kernels of all of the attention, right at any size."""
  before, after = tmp_path / "in.onnx", tmp_path / "out.onnx"
  onnx.save(encoder(BERT, "tokens", "batch"), before)
  shapes = {"batch": (1, 8), "tokens": (64, 128)}
  result = api.optimize(before, after, target="h200", tiled=True, shapes=shapes, budget_s=1500.0)
  kinds = {n.name: n.op_type for n in onnx.load(before).graph.node}
  (attention,) = (
    r["ops"] for r in result.report["regions"]
    if r["status"] == "replaced" and any(kinds[n] == "Softmax" for n in r["ops"])
  )  # fmt: skip
  assert sum(kinds[n] == "MatMul" for n in attention) == 2
  found = api.verify(before, after, emulate=True, shapes={"batch": [1, 3], "tokens": [7, 77, 128]})
  assert found.passed
  assert all(n.launches for n in found.nodes)
  assert f"{len(found.nodes)} of {len(found.nodes)} nodes follow from the original" in found.source
