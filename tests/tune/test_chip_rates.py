"""L2, tensor cores and barriers of a model of a GPU, whose rates are known; and their kernels."""

import pytest
from modelled_gpu import ModelledGpu

from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.targets import ARCHITECTURES, get_target
from mirage_onnx.tune.chip_rates import READ, TYPES, barrier_text, measure_chip, product_text


@pytest.fixture
def compiled(monkeypatch):
  monkeypatch.setattr("mirage_onnx.compiler.compile.compile_cubin", lambda text, target, name: text)


@pytest.mark.parametrize("name", ["h100", "orin", "a10", "b200", "sm_86x1"])
def test_the_rates_of_a_model_are_found(compiled, name):
  gpu = ModelledGpu(1.1, 2.0, 3.0, 4.2, {"f16": 300.0, "bf16": 150.0}, 0.045, get_target(name))
  found = measure_chip(gpu)
  assert found.l2_tbps == pytest.approx(4.2, rel=0.02) and found.barrier_us == pytest.approx(0.045, rel=0.02)
  assert found.mma_tflops == {"f16": pytest.approx(300, rel=0.02), "bf16": pytest.approx(150, rel=0.02)}
  assert gpu.left == 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
def test_the_texts_compile_for_every_generation(arch):
  assert arch in ARCHITECTURES
  target, texts = get_target(arch.rstrip("a")), [(READ, "read_again")]
  texts += [(product_text(t), "products") for t in TYPES] + [(barrier_text(), "barriers")]
  for text, name in texts:
    made = compile_cubin(text, target, name=name)
    assert made.image and made.spill_bytes == made.stack_bytes == 0
