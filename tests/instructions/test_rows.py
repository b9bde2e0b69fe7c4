"""The rows of instructions, and which GPU has which."""

import pytest

from mirage_onnx.compiler.compile import DEVICE_HEADERS
from mirage_onnx.errors import RejectionError
from mirage_onnx.instructions import INSTRUCTIONS, MMA, WGMMA, fastest_of_warps, instruction_of
from mirage_onnx.ir.dtype import DType
from mirage_onnx.target import H100, TARGETS


def test_targets_name_rows():
  assert all(set(t.instructions) <= INSTRUCTIONS.keys() for t in TARGETS.values())
  assert all(MMA.is_on(t) for t in TARGETS.values())
  assert {t.arch for t in TARGETS.values() if WGMMA.is_on(t)} == {"sm_90a"}


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda t: t.name)
def test_warps_contract_by_mma(target):
  """The only row of a single warp; types that none takes have no other."""
  assert fastest_of_warps((DType.F16, DType.BF16), target) is MMA
  assert fastest_of_warps((DType.F32,), target) is MMA


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_a_function_of_the_device_headers(name):
  row = INSTRUCTIONS[name]
  texts = [path.read_text() for path in DEVICE_HEADERS.glob("*.cuh")]
  assert any(f" {row.function}(F16" in text for text in texts)
  assert all((DEVICE_HEADERS / header).exists() for header in row.headers)


def test_no_such_instruction():
  with pytest.raises(RejectionError, match="no instruction 'tcgen05'"):
    instruction_of("tcgen05", H100)
