"""A test file's ``KERNELS``, compiled together and run in both orders of threads."""

import pytest

from mirage_onnx import emulator


@pytest.fixture(scope="module")
def module(request):
  return emulator.compile_kernels(request.module.KERNELS)


@pytest.fixture(params=["ascending", "descending"])
def run(module, request):
  order = request.param
  names = [kernel.name for kernel in request.module.KERNELS]

  def go(*kernels, **tensors):
    module.run(tensors, [names.index(k) for k in kernels], order=order, timeout_s=1)

  return go
