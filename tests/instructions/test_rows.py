"""The rows of instructions, and which GPU has which."""

import pytest

from mirage_onnx.codegen.compile import DEVICE_HEADERS
from mirage_onnx.cost.model import MMA_SHARE
from mirage_onnx.errors import RejectionError
from mirage_onnx.instructions import INSTRUCTIONS, MMA, instruction_of
from mirage_onnx.target import H100, TARGETS


def test_targets_name_rows():
  assert all(set(t.instructions) <= INSTRUCTIONS.keys() for t in TARGETS.values())
  assert all("mma" in t.instructions for t in TARGETS.values())


def test_the_share_of_mma_is_that_of_the_cost_model():
  assert MMA.share == MMA_SHARE


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_a_function_of_the_device_headers(name):
  row = INSTRUCTIONS[name]
  texts = [path.read_text() for path in DEVICE_HEADERS.glob("*.cuh")]
  assert any(f" {row.function}(F16" in text for text in texts)
  assert all((DEVICE_HEADERS / header).exists() for header in row.headers)


def test_no_such_instruction():
  with pytest.raises(RejectionError, match="no instruction 'tcgen05'"):
    instruction_of("tcgen05", H100)
