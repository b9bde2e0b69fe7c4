"""The same library on a real GPU: CUDA provider, driver, stream, CUDA graph, threads."""

import threading

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
extern "C" __global__ void add(float* out, const float* a, const float* b, int n) {
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
    """Makes CUDA sessions of a chain of add nodes."""

    def make(*, nodes=1, smem=0, options=None):
        args = (OutputPtr(0), InputPtr(0), InputPtr(1), Int32(dim(0, 0)))
        grid = (dim(0, 0).ceildiv(128), const(1), const(1))
        launch = Launch(0, "add", grid, 128, args, smem_bytes=smem, pdl=target == "sm_90a")
        plan = models.add_plan(variants=(Variant((launch,)),)).to_text()
        domain = "ai.mirage.v1." + target.replace("_", "")
        bundle = write_bundle(Bundle((cubin,), (plan,)))
        model = models.add(bundle, domain=domain, nodes=nodes)
        session = InferenceSession(model, providers=[(CUDA, options or {})])
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


def test_threads(session_of, vectors):
    session = session_of(nodes=2)
    expected = vectors["a"] + 2 * vectors["b"]
    wrong = []

    def work():
        for _ in range(50):
            if not np.allclose(session.run(None, vectors)[0], expected, rtol=1e-6):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert launches(session) == {"node0": 200, "node1": 200}


def test_cuda_graph_capture_and_replay(session_of, vectors):
    session = session_of(nodes=4, options={"enable_cuda_graph": "1"})
    binding = session.io_binding()
    inputs = {n: ort.OrtValue.ortvalue_from_numpy(v, "cuda", 0) for n, v in vectors.items()}
    output = ort.OrtValue.ortvalue_from_shape_and_type([100], np.float32, "cuda", 0)
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output("c", output)
    for _ in range(3):
        session.run_with_iobinding(binding)
    counted = launches(session)
    fresh = {name: value * 2 + 1 for name, value in vectors.items()}
    for name, value in fresh.items():
        inputs[name].update_inplace(value)
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(output.numpy(), fresh["a"] + 4 * fresh["b"], rtol=1e-6)
    assert launches(session) == counted  # replayed by the graph, not launched by us
    assert all(count > 0 for count in counted.values())


def test_none_runs_the_body_on_the_gpu(models, target, vectors):
    model = models.add(domain="ai.mirage.v1." + target.replace("_", ""))
    session = InferenceSession(model, providers=[CUDA], ep="none")
    np.testing.assert_array_equal(session.run(None, vectors)[0], vectors["a"] + vectors["b"])
    assert launches(session) == {"node0": 0}


def test_cpu_session_on_a_gpu_machine_runs_the_body(models, target, vectors):
    model = models.add(domain="ai.mirage.v1." + target.replace("_", ""))
    session = InferenceSession(model, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, vectors)[0], vectors["a"] + vectors["b"])
    assert launches(session) == {"node0": 0}
