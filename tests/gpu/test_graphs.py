"""Optimized graphs called with cupy arrays and torch tensors: on their device, on their stream."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from golden_texts import PROGRAMS

import mirage_onnx as mi

pytestmark = pytest.mark.gpu

SHAPE = (2, 48, 1000)
#: A row kernel, for which there are emission rules: a softmax of a sum.
ROW_KERNEL = PROGRAMS["row_kernel"]


@dataclass(frozen=True)
class ArraysOf:
  module: Any
  put: Callable[[np.ndarray], Any]
  get: Callable[[Any], np.ndarray]
  kind: type


@pytest.fixture(scope="module", params=["cupy", "torch"])
def library(request, h200):
  module = pytest.importorskip(request.param)
  if request.param == "cupy":
    return ArraysOf(module, module.asarray, module.asnumpy, module.ndarray)
  return ArraysOf(module, lambda x: module.from_numpy(x).cuda(), lambda x: x.cpu().numpy(), module.Tensor)


@pytest.fixture(scope="module")
def rows():
  graph = mi.new_kernel_graph()
  x, y = (graph.new_input(SHAPE, mi.float16) for _ in range(2))
  graph.softmax(graph.add(x, y))
  numbers = ["tile=1 cluster=1 loop_tile=0 warps=4 stages=1"]
  return graph.read_ugraph(ROW_KERNEL, numbers, target="h200")


def reference(x, y):
  s = (x + y).astype(np.float64)
  e = np.exp(s - s.max(axis=-1, keepdims=True))
  result = e / e.sum(axis=-1, keepdims=True)
  return result


def draw(rng, shape=SHAPE):
  return tuple(rng.standard_normal(shape).astype(np.float16) for _ in range(2))


def test_outputs_are_arrays_of_the_library(rows, library, rng):
  for shape in (SHAPE, (3, 5, 256)):
    x, y = draw(rng, shape)
    (z,) = rows([library.put(x), library.put(y)])
    assert isinstance(z, library.kind) and tuple(z.shape) == shape
    np.testing.assert_allclose(library.get(z), reference(x, y), rtol=5e-3, atol=1e-5)
    # The interpreter says the same to rounding.
    np.testing.assert_allclose(library.get(z), rows([x, y])[0], rtol=5e-3, atol=1e-5)


def test_strided_arrays(rows, library, rng):
  x, y = draw(rng)
  turned = library.put(np.ascontiguousarray(x.transpose(0, 2, 1))).swapaxes(1, 2)
  (z,) = rows([turned, library.put(y)])
  np.testing.assert_allclose(library.get(z), reference(x, y), rtol=5e-3, atol=1e-5)


def test_another_stream(rows, rng):
  """Kernels are ordered with what the caller put on its own stream before and after them."""
  torch = pytest.importorskip("torch")
  x, y = draw(rng)
  stream = torch.cuda.Stream()
  with torch.cuda.stream(stream):
    a, b = (torch.from_numpy(v).cuda(non_blocking=True) for v in (x, y))
    for _ in range(50):
      a = a + 0
    (z,) = rows([a, b])
    doubled = z * 2
  stream.synchronize()
  got = doubled.cpu().numpy() / 2
  np.testing.assert_allclose(got, reference(x, y), rtol=5e-3, atol=1e-5)


def test_captured_into_a_cuda_graph(rows, rng):
  torch = pytest.importorskip("torch")
  x, y = draw(rng)
  a, b = torch.from_numpy(x).cuda(), torch.from_numpy(y).cuda()
  rows([a, b])  # compiles
  graph = torch.cuda.CUDAGraph()
  with torch.cuda.graph(graph):
    (z,) = rows([a, b])
  a.copy_(torch.from_numpy(y))
  graph.replay()
  torch.cuda.synchronize()
  np.testing.assert_allclose(z.cpu().numpy(), reference(y, y), rtol=5e-3, atol=1e-5)


def test_tensors_on_the_host(rows, rng):
  torch = pytest.importorskip("torch")
  x, y = draw(rng, (2, 3, 64))
  (z,) = rows([torch.from_numpy(x), torch.from_numpy(y)])
  assert isinstance(z, torch.Tensor) and z.device.type == "cpu" and z.dtype is torch.float16
  np.testing.assert_allclose(z.numpy(), reference(x, y), rtol=5e-3, atol=1e-5)
