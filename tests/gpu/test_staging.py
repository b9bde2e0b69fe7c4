"""Tensors that are bound at any address of the GPU's memory, also in a CUDA graph."""

import numpy as np
import onnxruntime as ort
import pytest

import mirage_onnx
from mirage_onnx.custom_op.library import get_library_path, load_library
from tests.support.rewritten import chain

pytestmark = pytest.mark.gpu

CUDA = "CUDAExecutionProvider"


@pytest.fixture(autouse=True, scope="module")
def cuda(h200):
  if CUDA not in ort.get_available_providers():
    pytest.skip("this onnxruntime has no CUDA execution provider")


@pytest.fixture(scope="module")
def small():
  return chain()


def device_memory(x, offset):
  """Memory of the GPU that holds ``x`` so many elements after its beginning."""
  return ort.OrtValue.ortvalue_from_numpy(np.concatenate([np.zeros(offset, x.dtype), x.ravel()]), "cuda", 0)


def results(session, xs, offset):
  """The outputs for ``xs``, one run after the other in the same memory."""
  (given,), (made,) = session.get_inputs(), session.get_outputs()
  source = device_memory(xs[0], offset)
  target = device_memory(np.full(xs[0].shape, -1, np.float16), offset)
  binding = session.io_binding()
  shape, each = xs[0].shape, np.dtype(np.float16).itemsize
  binding.bind_input(given.name, "cuda", 0, np.float16, shape, source.data_ptr() + offset * each)
  binding.bind_output(made.name, "cuda", 0, np.float16, shape, target.data_ptr() + offset * each)
  found = []
  for x in xs:
    source.update_inplace(np.concatenate([np.zeros(offset, x.dtype), x.ravel()]))
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    whole = target.numpy()
    assert (whole[:offset] == 0).all(), "nothing before it is written"
    found.append(whole[offset:].reshape(shape).copy())
  return found


@pytest.mark.parametrize("graph", ["0", "1"])
@pytest.mark.parametrize("offset", [1, 3, 4])
def test_any_address(small, graph, offset):
  rng = np.random.default_rng(0)
  xs = [rng.standard_normal((8, 64)).astype(np.float16) for _ in range(4)]
  data = small.model.SerializeToString()
  plain = mirage_onnx.InferenceSession(data, providers=[CUDA])
  session = mirage_onnx.InferenceSession(data, providers=[(CUDA, {"enable_cuda_graph": graph})])
  got, want = results(session, xs, offset), results(plain, xs, 0)
  assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
  assert all(mirage_onnx.launches(s).get(n) for s in (plain, session) for n in small.nodes)
  ours = [c.copies for c in load_library(get_library_path()).counters()[-len(small.nodes) :]]
  assert ours[0] > 0 and ours[2] > 0, "its input and its output"
