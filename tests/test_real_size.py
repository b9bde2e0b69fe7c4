"""Layers of real width and length, by default flags: each ends well, and is right without the library.

What is chosen depends on what was measured of such sizes; that nothing fails does not.
"""

import onnx
import onnxruntime as ort
import pytest
from real_layers import BERT, LLAMA, QWEN3, decoder, encoder, weights_file

from mirage_onnx import api
from mirage_onnx.report.schema import CUT_OFF

MODELS = {"bert": (encoder, BERT), "qwen3": (decoder, QWEN3), "llama": (decoder, LLAMA)}
TOKENS = (128, 512)
#: Searches of all regions take 10 s and more of processor; in these seconds each ends well, too.
SHORT_S = 3.0
#: Ten times what the longest takes on two cores (LLAMA, 58 s beside other work): no search is cut off.
LONG_S = 600.0


def optimized(name, tokens, is_dynamic, folder, budget_s):
  """The result for one layer. ``tokens``: of the model, or declared."""
  make, width = MODELS[name]
  weights_file(folder / "weights.bin", width)
  sizes = ("tokens", "batch") if is_dynamic else (tokens,)
  onnx.save(make(width, *sizes, outside="weights.bin"), folder / "in.onnx")
  shapes = {"batch": (1,), "tokens": (tokens,)} if is_dynamic else {}
  return api.optimize(
    folder / "in.onnx", folder / "out.onnx", target="h200", budget_s=budget_s, shapes=shapes
  )  # fmt: skip


def check(result, path, opens=True):
  reasons = {r["reason"] for r in result.report["regions"]}
  assert not reasons & {"REGION_FAILED", "CHECK_FAILED", "MEASURE_FAILED", "KERNEL_WRONG"}
  assert result.report["regions"], "regions of real size are found, whatever is chosen of them"
  onnx.checker.check_model(str(path))
  if opens:
    ort.InferenceSession(path, providers=["CPUExecutionProvider"])
  custom = [n for n in result.model.graph.node if n.op_type.startswith("MuGraph_")]
  said = result.report["checked"]
  assert "nothing was replaced" not in said if custom else said == "nothing was replaced"
  return custom


@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("name", MODELS)
def test_a_layer_in_little_time(name, tokens, is_dynamic, tmp_path):
  result = optimized(name, tokens, is_dynamic, tmp_path, SHORT_S)
  check(result, tmp_path / "out.onnx", opens=name != "llama")  # 0.4 GB of weights, of fp32 twice as much


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "is_dynamic"), [(512, False), (128, True)], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", MODELS)
def test_a_layer(name, tokens, is_dynamic, tmp_path):
  """Each way and each length once; every search comes to its own end."""
  result = optimized(name, tokens, is_dynamic, tmp_path, LONG_S)
  found = result.report["found"]
  assert not found["searched_in_part"] and not set(CUT_OFF) & set(found["by_result"])
  custom = check(result, tmp_path / "out.onnx")
  if custom:
    assert "without the library" in result.report["checked"] or "not run" in result.report["checked"]


@pytest.mark.slow
def test_dynamic_attention_of_bert(tmp_path):
  """Only a run knows the batch and the tokens: kernels of all of the attention, right at any size."""
  before, after = tmp_path / "in.onnx", tmp_path / "out.onnx"
  onnx.save(encoder(BERT, "tokens", "batch"), before)
  shapes = {"batch": (8,), "tokens": (128,)}
  result = api.optimize(before, after, target="h200", shapes=shapes, budget_s=6000.0)
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
