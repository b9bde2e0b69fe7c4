"""Products whose weights a DequantizeLinear widens, from model to session."""

import numpy as np
import onnxruntime as ort
import pytest
from dequantized_models import between, dequantized, integers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_models import feeds, replaced_ops, run_model

import mirage_onnx
from mirage_onnx import pipeline
from mirage_onnx.tune.known_sizes import Unpredicted


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
  """A prediction chooses none by itself; here one takes ONNX Runtime 100 us."""
  floors = pipeline.with_floors

  def slow(times, program, target):
    own = {n.name: 100.0 for n in program.nodes if n.op_type in ("DequantizeLinear", "MatMul", "Gemm")}
    return {**floors(times, program, target), **own}

  monkeypatch.setattr(pipeline, "unpredicted_at", lambda *_: Unpredicted())
  monkeypatch.setattr(pipeline, "with_floors", slow)


CASES = {
  "per tensor": {"rows": 2, "n": 256, "kind": "i8"},
  "per column": {"rows": 3, "n": 256, "axis": 1, "kind": "i8"},
  "per column, one zero point": {"rows": 1, "n": 256, "axis": 1, "zero": "same"},
  "per column, zero points": {"rows": 2, "n": 256, "axis": 1, "zero": "own"},
  "per column of Gemm, zero points": {
    "rows": 2,
    "n": 256,
    "axis": 1,
    "zero": "own",
    "kind": "i8",
    "form": "gemm",
  },
  "blocks, as MatMul wants it": {"rows": 4, "n": 256, "axis": 0, "block": 32, "kind": "i8"},
  "blocks, zero points": {"rows": 4, "n": 256, "axis": 0, "block": 64, "zero": "own"},
  "blocks, behind a Transpose": {
    "rows": 2,
    "n": 256,
    "axis": 0,
    "block": 32,
    "form": "nk",
    "zero": "own",
    "kind": "i8",
  },
  "4 bits": {"rows": 2, "n": 256, "axis": 0, "block": 32, "kind": "i4"},
  "4 bits, zero points": {"rows": 2, "n": 256, "axis": 0, "block": 128, "kind": "u4", "zero": "own"},
  "4 bits behind a Transpose": {"rows": 2, "n": 256, "axis": 0, "block": 64, "form": "nk", "kind": "u4"},
  "4 bits, a column each": {"rows": 2, "n": 256, "axis": 1, "form": "gemm", "kind": "i4"},
  "Gemm": {"rows": 2, "n": 256, "axis": 0, "block": 128, "form": "gemm"},
  "floats of 8 bits": {"rows": 2, "n": 256, "kind": "e4m3"},
  "floats of 8 bits, per column": {"rows": 1, "n": 256, "kind": "e4m3", "axis": 1, "zero": "same"},
  "floats of 8 bits, blocks": {"rows": 4, "n": 256, "kind": "e5m2", "axis": 0, "block": 32, "form": "gemm"},
  "floats of 8 bits beside fp32": {"rows": 2, "n": 256, "kind": "e4m3", "axis": 1, "dtype": np.float32},
  "4 bits beside fp32": {"rows": 3, "n": 256, "axis": 0, "block": 64, "kind": "i4", "dtype": np.float32},
}


def check(model, result, values):
  """Bodies bit for bit as the model; kernels as the model without what rounds activations to 8 bits."""
  assert [x.tobytes() for x in run_model(result.model, values)] == [
    x.tobytes() for x in run_model(model, values)
  ]
  options = ort.SessionOptions()
  options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
  plain = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  for got, want in zip(session.run(None, values), plain.run(None, values), strict=True):
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=1e-2, atol=4e-3)
  counts = mirage_onnx.launches(session)
  assert counts and all(n >= 1 for n in counts.values())


@pytest.mark.parametrize("name", CASES)
def test_replaced(name):
  model = dequantized(k=1024, **CASES[name])
  result = mirage_onnx.optimize(model, target="h200", workers=1)
  assert any(op.startswith("DequantizeLinear") for op in replaced_ops(result)), result.report["regions"]
  check(model, result, feeds(model, np.random.default_rng(0)))
  (region,) = (r for r in result.report["regions"] if r["status"] == "replaced")
  assert any(f"{q}[" in region["ugraph"] for q in ("q8", "s8", "q4", "s4", "p4m3", "p5m2"))


@pytest.mark.parametrize(
  "how",
  [
    {}, {"kind": np.uint8, "point": 128}, {"dtype": np.float32, "axis": 0}, {"rows": 1, "point": None},
    {"rows": 9, "kind": np.uint8, "dtype": np.float32},
  ],
)  # fmt: skip
def test_activations_that_are_integers(how, tmp_path):
  """One kernel reads both as bytes."""
  model = between(k=1024, n=256, **how)
  source, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
  source.write_bytes(model.SerializeToString())
  result = mirage_onnx.optimize(source, out, target="h200", workers=1)
  assert replaced_ops(result) == {n.name for n in model.graph.node}
  check(model, result, integers(model))
  found = mirage_onnx.verify(source, out, provider="cpu", emulate=True)
  assert found.passed and found.nodes and all(n.launches for n in found.nodes), found


WHOLE = {"axis": 0, "block": 1024}


@pytest.mark.parametrize("how", [{"axis": 1}, WHOLE, WHOLE | {"form": "nk"}])
@pytest.mark.parametrize("kind", ["u4", "i4"])
def test_zero_points_that_share_a_byte_with_another_rows(how, kind):
  """One of each row: of every second one it lies in the higher half of a byte, where no row's pointer is."""
  model = dequantized(2, 1024, 256, zero="own", kind=kind, **how)
  result = mirage_onnx.optimize(model, target="h200", workers=1)
  refused = str(result.report)
  assert not replaced_ops(result) and "begin inside a byte" in refused


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_every_form(data):
  """What is replaced is right; what is not says why."""
  k, block = data.draw(st.sampled_from([512, 768, 1024, 1536, 4096]), "k"), 0
  axis = data.draw(st.sampled_from([None, 0, 1, -1, -2]), "axis")
  if axis in (0, -2):  # along the depth
    block = data.draw(st.sampled_from([16, 32, 64, 128, 256, k]), "block")
  model = dequantized(
    data.draw(st.sampled_from([1, 2, 5, 16]), "rows"), k, data.draw(st.sampled_from([96, 256, 520]), "n"),
    axis=axis, block=block, form=data.draw(st.sampled_from(["kn", "nk", "gemm"]), "form"),
    kind=data.draw(st.sampled_from(["u8", "i8", "u4", "i4", "e4m3", "e5m2"]), "kind"),
    zero=data.draw(st.sampled_from(["", "same", "own"]), "zero"), seed=data.draw(st.integers(0, 99), "seed"),
  )  # fmt: skip
  result = mirage_onnx.optimize(model, target="h200", workers=1)
  if replaced_ops(result):
    check(model, result, feeds(model, np.random.default_rng(0)))
  else:
    assert all(r["reason"] for r in result.report["regions"]), result.report["regions"]
