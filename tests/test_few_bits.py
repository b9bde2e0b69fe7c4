"""Products with weights of 4 and 8 bits, fused with what is around them, from model to session."""

import numpy as np
import pytest
from onnx import helper
from packed_models import decoder_layer, gated, heads, model_of, nbits, norm, residual
from slow_nodes import choose_slow
from small_models import Net, check_kernels, check_stored_once, feeds, replaced_ops

import mirage_onnx


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
  """Nothing was measured of such products, so by itself a prediction chooses none.

  Here one takes ONNX Runtime 100 us.
  """
  choose_slow(monkeypatch, {"MatMulNBits"}, 100.0)


CASES = {
  "one row": lambda: norm(),
  "blocks of 128": lambda: norm(block=128, n=512),
  "blocks of 128, zero points, an uneven depth": lambda: norm(12, 128 * 11, 200, block=128, zero=True),
  "8 bits, blocks of 128, zero points": lambda: norm(2, bits=8, zero=True, block=128, n=256),
  "blocks of 16, 16 rows": lambda: norm(16, block=16, n=256),
  "zero points": lambda: norm(3, zero=True, n=256),
  "8 bits": lambda: norm(2, bits=8, block=64, n=256),
  "8 bits, zero points": lambda: norm(2, bits=8, zero=True, n=256),
  "2 bits": lambda: norm(2, bits=2, n=256),
  "2 bits, zero points": lambda: norm(3, bits=2, zero=True, n=256, block=16),
  "bias": lambda: norm(5, bias=True, n=256, flat=True),
  "gate and up": lambda: gated(4, n=256, block=128),
  "three products": lambda: heads(2),
  "residual": lambda: residual(8, n=256, zero=True),
  "an uneven depth": lambda: norm(5, 1024 + 32 * 3, 200),
  "zero points that are floats": lambda: norm(3, zero="float", n=256),
}
#: The same beside activations of fp32, in multiply-adds.
WIDE = {
  "one row": (1, {"n": 512, "block": 128}),
  "zero points": (3, {"n": 256, "zero": True}),
  "zero points that are floats": (3, {"n": 256, "zero": "float"}),
  "rows of three tiles": (20, {"n": 200, "block": 16}),
  "8 bits": (2, {"n": 256, "bits": 8, "zero": True, "bias": True}),
  "2 bits": (5, {"n": 256, "bits": 2, "zero": True}),
  "an uneven depth": (8, {"k": 1024 + 32 * 3, "n": 200}),
}


@pytest.mark.parametrize("name", CASES)
def test_fused(name):
  model = CASES[name]()
  result = mirage_onnx.optimize(model, target="h200", workers=1)
  assert "MatMulNBits" not in {n.op_type for n in result.model.graph.node}
  check_kernels(model, result, feeds(model, np.random.default_rng(0)), atol=4e-3, rtol=1e-2)
  replaced = [r for r in result.report["regions"] if r["status"] == "replaced"]
  assert any(f"{q}[" in r["ugraph"] for r in replaced for q in ("q2", "q4", "q8"))


@pytest.mark.parametrize("name", WIDE)
def test_beside_fp32(name):
  rows, how = WIDE[name]
  model = norm(rows, dtype=np.float32, **how)
  result = mirage_onnx.optimize(model, target="h200", workers=1)
  assert replaced_ops(result) == {n.name for n in model.graph.node}
  check_kernels(model, result, feeds(model, np.random.default_rng(0)), atol=2e-5, rtol=2e-5)


def check_every_count(model, result, x, dtype, **how):
  """All is replaced, and right at declared numbers of rows and others."""
  assert replaced_ops(result) == {n.name for n in model.graph.node}
  for rows in (1, 3, 16, 21):
    values = {x: np.random.default_rng(rows).standard_normal((rows, 1024)).astype(dtype)}
    check_kernels(model, result, values, **how)


def test_rows_of_fp32_that_a_run_counts():
  net = Net(np.float32)
  x = net.input("batch", 1024)
  model = model_of(net, (nbits(net, x, 256, 1024), ("batch", 256)))
  result = mirage_onnx.optimize(model, target="h200", workers=1, shapes={"batch": (1, 16)})
  check_every_count(model, result, x, np.float32, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_verified(dtype, tmp_path):
  """By ``verify``: as it is, the original would round activations to 8 bits on a CPU (``accuracy_level``)."""
  net = Net(dtype)
  model = model_of(net, (nbits(net, net.input(3, 1024), 256, 1024, zero=True), (3, 256)))
  model.graph.node[0].attribute.append(helper.make_attribute("accuracy_level", 4))
  source, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
  source.write_bytes(model.SerializeToString())
  mirage_onnx.optimize(source, out, target="h200", workers=1)
  found = mirage_onnx.verify(source, out, provider="cpu", emulate=True)
  assert found.passed and all(n.launches for n in found.nodes) and found.nodes, found


def test_the_weights_are_stored_once_and_as_they_were():
  model = gated(n=256)
  check_stored_once(model)


def test_rows_that_a_run_counts():
  net = Net()
  x = net.input("batch", 1024)
  y = net.rms(x, net.constant(1 + 0.1 * net.rng.standard_normal(1024)))
  model = model_of(net, (nbits(net, y, 256, 1024), ("batch", 256)))
  result = mirage_onnx.optimize(model, target="h200", workers=1, shapes={"batch": (1, 16)})
  check_every_count(model, result, x, np.float16, atol=4e-3, rtol=1e-2)


def test_beside_a_weight_of_16_bits():
  """One kernel takes both kinds: fp16 operands lie in the order of the packed ones, or both in order."""
  net = Net()
  x = net.input(2, 1024)
  packed, plain = nbits(net, x, 256, 1024), net.MatMul(x, net.weight(1024, 256))
  model = model_of(net, (net.Add(packed, plain), (2, 256)))
  result = mirage_onnx.optimize(model, target="h200", workers=1)
  assert replaced_ops(result) == {n.name for n in model.graph.node}
  check_kernels(model, result, feeds(model, np.random.default_rng(0)), atol=8e-3, rtol=1e-2)


@pytest.mark.slow
def test_the_packed_bytes_of_a_decoder_are_replaced():
  """As onnxruntime-genai's builder writes it: at least 97 % of the bytes of its products' weights."""
  model = decoder_layer()
  result = mirage_onnx.optimize(model, target="h200", workers=1, budget_s=600)
  size = {w.name: len(w.raw_data) for w in model.graph.initializer}
  products = [n for n in model.graph.node if n.op_type == "MatMulNBits"]
  found = {n.name: sum(size[i] for i in n.input[1:]) for n in products}
  replaced = replaced_ops(result)
  left = [n for n in found if n not in replaced]
  assert sum(found[n] for n in found if n in replaced) >= 0.97 * sum(found.values()), left
