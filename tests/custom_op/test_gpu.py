"""The same library on a real GPU of any kind: CUDA provider, driver, stream.

Threads and CUDA graphs: ``tests/gpu/test_models.py``.
"""

import numpy as np
import onnxruntime as ort
import pytest

from mirage_onnx.custom_op import (
  Bundle,
  InferenceSession,
  InputPtr,
  Int32,
  Launch,
  OutputPtr,
  Variant,
  const,
  dim,
  launches,
  write_bundle,
)

pytestmark = pytest.mark.gpu

CUDA = "CUDAExecutionProvider"
SOURCE = """
extern "C" __global__ void __launch_bounds__(128) add(float* out, const float* a, const float* b, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");  // pdl: the node before may still run
#endif
  if (i < n) out[i] = a[i] + b[i];
}
"""
TARGETS = {
  (8, 0): "sm_80",
  (8, 9): "sm_89",
  (9, 0): "sm_90a",
  (10, 0): "sm_100a",
  (12, 0): "sm_120a",
}


@pytest.fixture(scope="module")
def target():
  if CUDA not in ort.get_available_providers():
    pytest.skip("this onnxruntime has no CUDA execution provider")
  device_module = pytest.importorskip("cuda.core")
  try:
    device = device_module.Device(0)
    device.set_current()
  except Exception as error:  # the driver's way to say that there is no GPU
    pytest.skip(f"no usable GPU: {error}")
  capability = tuple(device.compute_capability)
  if capability not in TARGETS:
    pytest.skip(f"no target for compute capability {capability}")
  return TARGETS[capability]


@pytest.fixture(scope="module")
def cubin(target):
  from cuda.core import Program, ProgramOptions

  program = Program(SOURCE, "c++", ProgramOptions(arch=target))
  return bytes(program.compile("cubin").code)


@pytest.fixture
def session_of(models, cubin, target):
  def make(*, nodes=1, smem=0):
    size = dim(0, 0) * 4
    args = (OutputPtr(0, size), InputPtr(0, size), InputPtr(1, size), Int32(dim(0, 0)))
    grid = (dim(0, 0).ceildiv(128), const(1), const(1))
    launch = Launch(0, "add", grid, 128, args, smem_bytes=smem, pdl=target == "sm_90a")
    plan = models.add_plan(variants=(Variant((launch,)),)).to_text()
    domain = "ai.mirage.v1." + target.replace("_", "")
    bundle = write_bundle(Bundle((cubin,), (plan,)))
    model = models.add(bundle, domain=domain, nodes=nodes)
    session = InferenceSession(model, providers=[CUDA])
    assert session.get_providers()[0] == CUDA
    return session

  return make


def test_kernels_run_and_are_counted(session_of, vectors):
  session = session_of(nodes=3)
  got = session.run(None, vectors)[0]
  np.testing.assert_allclose(got, vectors["a"] + 3 * vectors["b"], rtol=1e-6)
  assert launches(session) == {"node0": 1, "node1": 1, "node2": 1}


def test_empty_tensors_launch_nothing(session_of):
  session = session_of()
  empty = np.zeros(0, np.float32)
  assert session.run(None, {"a": empty, "b": empty})[0].shape == (0,)
  assert launches(session) == {"node0": 0}


def test_large_shared_memory(session_of, vectors):
  session = session_of(smem=96 * 1024)
  got = session.run(None, vectors)[0]
  np.testing.assert_array_equal(got, vectors["a"] + vectors["b"])


@pytest.mark.parametrize(
  "how", [{"providers": [CUDA], "ep": "none"}, {"providers": ["CPUExecutionProvider"]}]
)
def test_the_body_runs_on_the_gpu_or_beside_it(models, target, vectors, how):
  model = models.add(domain="ai.mirage.v1." + target.replace("_", ""))
  session = InferenceSession(model, **how)
  np.testing.assert_array_equal(session.run(None, vectors)[0], vectors["a"] + vectors["b"])
  assert launches(session) == {"node0": 0}
