"""Measuring without a GPU: kernels on the emulator, ONNX Runtime's region models on the CPU."""

from contextlib import contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from mirage_onnx import pipeline
from mirage_onnx.emulator import run_kernel
from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.importer import load_model
from mirage_onnx.target import H200
from mirage_onnx.tune import measure
from mirage_onnx.tune.measure import Inputs, draw, measure_region, prepare
from mirage_onnx.tune.ort_run import region_model
from mirage_onnx.verify.weights import sample_weights

MODELS = Path(__file__).resolve().parents[2] / "models"


class EmulatedGpu:
    """What ``measure`` needs of a ``Gpu``: an address is an index of an array of bytes."""

    def __init__(self, speeds=None):
        self.arrays: list[np.ndarray] = []
        self.speeds = speeds or []

    @contextmanager
    def scope(self):
        yield

    def empty(self, size):
        self.arrays.append(np.zeros(size, np.uint8))
        return len(self.arrays) - 1

    def put(self, x):
        at = self.empty(x.nbytes)
        self.arrays[at][:] = np.frombuffer(x.tobytes(), np.uint8)
        return at

    def poison(self, at, size):
        assert size == len(self.arrays[at])
        self.arrays[at][:] = 0xFF

    def get(self, at, shape, dtype):
        return self.arrays[at].view(dtype).reshape(shape)

    def load(self, cubin, name, smem_bytes):
        return name

    def launch_source(self, function, source, at):
        assert function == source.name
        run_kernel(source, {a: self.arrays[at[a]] for a in source.args})

    def capture(self, work):
        return work

    def wait(self):
        pass

    def time_us(self, arms, samples):
        return np.array([[speed] * samples for speed in self.speeds[: len(arms)]])


def run_of(name):
    loaded = load_model(MODELS / f"{name}.onnx")
    return loaded, pipeline.run(loaded, pipeline.Options(H200))


@pytest.fixture(scope="module")
def small():
    return run_of("rmsnorm_linear")


def drawn(loaded, region):
    return draw(region, sample_weights(loaded, region), np.random.default_rng(0))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama_decode", "lora", "bert", "rmsnorm_linear"])
def test_chosen_kernels_agree_with_the_oracle(name):
    loaded, run = run_of(name)
    assert run.chosen
    for outcome in {o.region.key: o for _, o in run.chosen}.values():
        gpu: Any = EmulatedGpu()
        data, oracle = drawn(loaded, outcome.region)
        inputs = Inputs(gpu, outcome.region, data)
        assert outcome.compiled is not None
        replay, outputs = prepare(gpu, outcome.region, outcome.compiled, inputs)
        assert oracle.complaint(gpu, replay, outputs) is None


@pytest.mark.parametrize("name", ["llama_decode", "lora", "bert", "rmsnorm_linear"])
def test_a_region_is_a_model_that_onnxruntime_runs(name):
    loaded = load_model(MODELS / f"{name}.onnx")
    matches = pipeline.find_candidates(pipeline.import_model(loaded))
    for region in {c.region.key: c.region for c in matches.candidates}.values():
        data, oracle = drawn(loaded, region)
        model = region_model(loaded, region).SerializeToString()
        session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
        feeds = {i.tensor.name: data[i.tensor.name] for i in region.inputs if not i.is_weight}
        got = session.run([o.tensor.name for o in region.outputs], feeds)
        for o, x in zip(region.outputs, got, strict=True):
            want = oracle.exact[o.tensor.name]
            assert x.shape == want.shape
            assert np.linalg.norm(x - want) <= 1e-2 * np.linalg.norm(want)


def test_an_unwritten_or_wrong_output_is_noticed(small):
    loaded, run = small
    ((_, outcome),) = run.chosen
    gpu: Any = EmulatedGpu()
    data, oracle = drawn(loaded, outcome.region)
    replay, outputs = prepare(
        gpu, outcome.region, outcome.compiled, Inputs(gpu, outcome.region, data)
    )
    (name,) = outputs
    assert oracle.complaint(gpu, lambda: None, outputs)

    def one_wrong():
        replay()
        gpu.arrays[outputs[name]].view(np.float16)[5] += 1

    assert oracle.complaint(gpu, replay, outputs) is None
    complaint = oracle.complaint(gpu, one_wrong, outputs)
    assert complaint is not None and "float64" in complaint


@pytest.mark.parametrize(
    ("speeds", "choice"),
    [([30.0, 12.0, 10.0], 1), ([30.0, 10.05, 10.0], 0), ([10.0, 9.9, 9.8], None)],
    ids=["fastest", "near tie: the first", "no gain"],
)
def test_choice(small, monkeypatch, speeds, choice):
    loaded, run = small
    ((_, outcome),) = run.chosen
    monkeypatch.setattr(measure, "gpu_of", lambda target: EmulatedGpu(speeds))
    monkeypatch.setattr(measure, "ort_replay", lambda *args: None)
    compiled = [outcome.compiled, outcome.compiled]
    best, measured = measure_region(loaded, outcome.region, compiled, H200)
    if choice is None:
        assert best is None
        assert isinstance(measured, Rejection) and measured.code == "NOT_FASTER"
    else:
        assert not isinstance(measured, Rejection)
        assert (measured.kernel_us, measured.ort_us) == (speeds[1 + choice], speeds[0])


def test_a_second_look(small, monkeypatch):
    loaded, run = small
    ((_, outcome),) = run.chosen
    gpu = EmulatedGpu([30.0, 10.0, 12.0, 8.0])
    monkeypatch.setattr(measure, "gpu_of", lambda target: gpu)
    monkeypatch.setattr(measure, "ort_replay", lambda *args: None)
    first, second, third = (replace(outcome.compiled) for _ in range(3))
    asked: list[Any] = []

    def more(best):
        asked.append(best)
        return [third]

    best, measured = measure_region(loaded, outcome.region, [first, second], H200, more)
    assert len(asked) == 1 and asked[0] is first and best is third
    assert not isinstance(measured, Rejection)
    assert (measured.kernel_us, measured.tried) == (8.0, 3)


def test_all_candidates_wrong(small, monkeypatch):
    loaded, run = small
    ((_, outcome),) = run.chosen
    gpu = EmulatedGpu()
    monkeypatch.setattr(gpu, "launch_source", lambda *args: None)
    monkeypatch.setattr(measure, "gpu_of", lambda target: gpu)
    best, refused = measure_region(loaded, outcome.region, [outcome.compiled], H200)
    assert best is None
    assert isinstance(refused, Rejection) and refused.code == "KERNEL_WRONG"


def test_inputs_are_uploaded_once_per_order(small):
    loaded, run = small
    region = run.chosen[0][1].region
    gpu: Any = EmulatedGpu()
    inputs = Inputs(gpu, region, drawn(loaded, region)[0])
    weight = next(i for i in region.inputs if len(i.axes) == 2 and i.is_weight)
    first = inputs.address(weight.name, weight.axes)
    assert inputs.address(weight.name, weight.axes) == first
    other = inputs.address(weight.name, weight.axes[::-1])
    assert other is not None and other != first
    size = [region.extents[a] for a in weight.axes]
    assert prod(size) * 2 == len(gpu.arrays[other])
    a, b = (gpu.arrays[x].view(np.float16) for x in (first, other))
    np.testing.assert_array_equal(a.reshape(size).T, b.reshape(size[::-1]))
    assert inputs.address("t0", ("a0",)) is None


def test_a_region_without_finite_values(small):
    loaded, run = small
    region = run.chosen[0][1].region
    weights = {n: np.full_like(x, np.inf) for n, x in sample_weights(loaded, region).items()}
    with pytest.raises(RejectionError, match="finite") as error:
        draw(region, weights, np.random.default_rng(0))
    assert error.value.rejection.code == "INCONCLUSIVE"
