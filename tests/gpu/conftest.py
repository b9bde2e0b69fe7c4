"""What some tests on a GPU need."""

import pytest

from mirage_onnx.target import H200
from mirage_onnx.tune.device import present_target


@pytest.fixture(scope="session")
def h200():
  if present_target() is not H200:
    pytest.skip("the GPU is no H200")
