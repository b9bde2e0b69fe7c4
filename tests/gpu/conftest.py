"""What some tests on a GPU need."""

import pytest

from mirage_onnx.target import H200
from mirage_onnx.tune.device import present_gpu


@pytest.fixture(scope="session")
def h200():
  """A GPU that runs an H200's kernels, and has a profile: an H100 does."""
  gpu = present_gpu()
  if gpu is None or gpu.target is None or gpu.target.arch != H200.arch:
    pytest.skip("the GPU runs no kernels of an H200, or has no profile")
