"""Choosing with a GPU: candidates and ONNX Runtime's own kernels, timed side by side.

One process owns the GPU. Every arm is a CUDA-graph replay on one stream after two clean reads of
256 MB, all arms interleaved; the time between two events has the replay's own launch in it, the
same for every arm. A kernel is timed only after it agreed with a float64 oracle. It must be at
least ``MIN_GAIN`` faster than ONNX Runtime; near ties go to the candidate that comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol, TypeVar

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mirage_onnx.codegen.compile import Cubin
from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.errors import Rejection
from mirage_onnx.importer import LoadedModel
from mirage_onnx.importer.constants import constant_values
from mirage_onnx.ir.region import Region, RegionTensor
from mirage_onnx.ir.ugraph import Candidate
from mirage_onnx.target import Target
from mirage_onnx.tune.device import Gpu
from mirage_onnx.verify.interpret_steps import interpret_steps
from mirage_onnx.verify.weights import sample_weights

MIN_GAIN = 0.03
TIE = 0.01
REPEATS = 60
#: Largest relative L2 error of an output row, beyond twice that of rounding every step.
SLACK = 1e-3


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians, microseconds, cold L2, graph replay included in both."""

    kernel_us: float
    ort_us: float
    spread_us: float
    tried: int


class CompiledLike(Protocol):
    """What is measured: a candidate with its kernels (``custom_op.assemble.Compiled``)."""

    @property
    def candidate(self) -> Candidate: ...
    @property
    def sources(self) -> tuple[KernelSource, ...]: ...
    @property
    def cubins(self) -> tuple[Cubin, ...]: ...


C = TypeVar("C", bound=CompiledLike)


_gpu: Gpu | None = None


def gpu_of(target: Target) -> Gpu:
    """The process's one owner of the GPU."""
    global _gpu
    if _gpu is None:
        _gpu = Gpu(target)
    return _gpu


def measure_region(
    loaded: LoadedModel, region: Region, compiled: Sequence[C], target: Target
) -> tuple[C | None, Measured | Rejection]:
    """The fastest right candidate with its time, or why ONNX Runtime's kernels stay."""
    gpu = gpu_of(target)
    rng = np.random.default_rng(0)
    data = region_data(region, sample_weights(loaded, region), rng)
    exact = interpret_steps(region, _wide(region, data), rounded=False)
    rounded = interpret_steps(region, _wide(region, data), rounded=True)
    arms: list[Callable[[], None]] = []
    right: list[C] = []
    wrong: list[str] = []
    for c in compiled:
        replay, outputs = prepare(gpu, region, c, data)
        error = _check(gpu, region, replay, outputs, exact, rounded)
        if error:
            wrong.append(error)
        else:
            right.append(c)
            arms.append(replay)
    if not right:
        return None, Rejection("KERNEL_WRONG", wrong[0], region.nodes)
    baseline = ort_replay(gpu, loaded, region, data)
    times = gpu.time_us([baseline, *arms], REPEATS)
    medians = [float(np.median(t)) for t in times]
    ort_us, ours = medians[0], medians[1:]
    best = next(i for i, t in enumerate(ours) if t <= min(ours) * (1 + TIE))
    if ours[best] > ort_us * (1 - MIN_GAIN):
        reason = f"{ours[best]:.2f} us measured against {ort_us:.2f} us of onnxruntime"
        return None, Rejection("NOT_FASTER", reason, region.nodes)
    spread = float(np.subtract(*np.percentile(times[1 + best], [75, 25])))
    return right[best], Measured(ours[best], ort_us, spread, len(right))


def region_data(
    region: Region, weights: Mapping[str, np.ndarray], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Random values of every region input in its own type and ONNX shape; real weights stay."""
    found = {}
    for i in region.inputs:
        name = i.tensor.name
        shape = tuple(int(d) for d in i.tensor.shape or ())
        drawn = weights.get(name)
        found[name] = drawn if drawn is not None else rng.standard_normal(shape)
        found[name] = np.asarray(found[name]).astype(i.dtype.numpy).reshape(shape)
    return found


def _wide(region: Region, data: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {i.tensor.name: data[i.tensor.name].astype(np.float64) for i in region.inputs}


def stored(source: RegionTensor, axes: tuple[str, ...], x: np.ndarray) -> np.ndarray:
    """The values of a region input in the memory order that the kernels read."""
    flat = x.reshape([n for n in x.shape if n != 1] or [1])
    if axes == source.axes:
        return np.ascontiguousarray(x)
    return np.ascontiguousarray(flat.transpose([source.axes.index(a) for a in axes]))


def prepare(
    gpu: Gpu, region: Region, compiled: CompiledLike, data: Mapping[str, np.ndarray]
) -> tuple[Callable[[], None], dict[str, int]]:
    """A graph replay of the candidate's kernels, and the addresses of its outputs."""
    graph = compiled.candidate.ugraph
    sources = {i.name: i for i in region.inputs}
    at: dict[str, int] = {}
    outputs: dict[str, int] = {}
    for t in graph.tensors:
        size = prod(region.extents[a] for a in t.axes) * t.dtype.size_bytes
        if t.name in sources:
            source = sources[t.name]
            at[t.name] = gpu.put(stored(source, t.axes, data[source.tensor.name]))
        else:
            at[t.name] = gpu.empty(size)
            gpu.poison(at[t.name], size)
            if t.role == "output":
                outputs[t.name] = at[t.name]
    kernels = [
        (gpu.load(c, s.name, s.smem_bytes), s)
        for s, c in zip(compiled.sources, compiled.cubins, strict=True)
    ]

    def work() -> None:
        for function, source in kernels:
            gpu.launch_source(function, source, at)

    work()
    gpu.wait()
    return gpu.capture(work), outputs


def _check(
    gpu: Gpu,
    region: Region,
    replay: Callable[[], None],
    outputs: Mapping[str, int],
    exact: Mapping[str, np.ndarray],
    rounded: Mapping[str, np.ndarray],
) -> str | None:
    """What is wrong with the kernels' outputs, or None."""
    for o in region.outputs:
        shape = tuple(int(d) for d in o.tensor.shape or ())
        gpu.poison(outputs[o.name], prod(shape) * o.dtype.size_bytes)
    replay()
    for o in region.outputs:
        shape = tuple(int(d) for d in o.tensor.shape or ())
        got = gpu.get(outputs[o.name], shape, o.dtype.numpy).astype(np.float64)
        want, baseline = exact[o.tensor.name], rounded[o.tensor.name]
        norm = np.maximum(np.linalg.norm(want, axis=-1), 1e-30)
        error = np.linalg.norm(got - want, axis=-1) / norm
        allowed = 2 * np.linalg.norm(baseline - want, axis=-1) / norm + SLACK
        if not np.all(error <= allowed):
            worst = float(np.nanmax(np.where(np.isnan(error), np.inf, error)))
            return f"{o.tensor.name} is off by {worst:.2e} (relative, float64 oracle)"
    return None


def region_model(loaded: LoadedModel, region: Region) -> onnx.ModelProto:
    """The region's own ONNX nodes as a model: its activations in, its outputs out."""
    values = constant_values(loaded)
    inputs = {i.tensor.name for i in region.inputs if not i.is_weight}
    nodes = [loaded.node(n) for n in region.nodes]
    made = {o for n in nodes for o in n.output}
    needed = dict.fromkeys(i for n in nodes for i in n.input if i and i not in made | inputs)
    initializers = []
    for name in needed:
        tensor = numpy_helper.from_array(loaded.read(values[name]), name)
        initializers.append(tensor)

    def info(t: RegionTensor) -> onnx.ValueInfoProto:
        dtype = helper.np_dtype_to_tensor_dtype(t.dtype.numpy)
        return helper.make_tensor_value_info(t.tensor.name, dtype, t.tensor.shape)

    graph = helper.make_graph(
        nodes, "region",
        [info(i) for i in region.inputs if not i.is_weight],
        [info(o) for o in region.outputs], initializers,
    )  # fmt: skip
    return helper.make_model(
        graph, opset_imports=loaded.proto.opset_import, ir_version=min(loaded.proto.ir_version, 10)
    )


def ort_replay(
    gpu: Gpu, loaded: LoadedModel, region: Region, data: Mapping[str, np.ndarray]
) -> Callable[[], None]:
    """ONNX Runtime's CUDA-graph replay of the region on the GPU's stream."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    provider = {
        "enable_cuda_graph": "1",
        "user_compute_stream": str(gpu.stream_address),
        "has_user_compute_stream": "1",
    }
    session = ort.InferenceSession(
        region_model(loaded, region).SerializeToString(),
        options,
        providers=[("CUDAExecutionProvider", provider)],
    )
    if session.get_providers()[0] != "CUDAExecutionProvider":
        raise RuntimeError("onnxruntime fell back to the CPU")
    binding = session.io_binding()
    keep = []
    for i in region.inputs:
        if not i.is_weight:
            value = ort.OrtValue.ortvalue_from_numpy(data[i.tensor.name], "cuda", 0)
            keep.append(value)
            binding.bind_ortvalue_input(i.tensor.name, value)
    for o in region.outputs:
        shape = [int(d) for d in o.tensor.shape or ()]
        value = ort.OrtValue.ortvalue_from_shape_and_type(shape, o.dtype.numpy, "cuda", 0)
        keep.append(value)
        binding.bind_ortvalue_output(o.tensor.name, value)
    run = ort.RunOptions()
    run.add_run_config_entry("disable_synchronize_execution_providers", "1")
    for _ in range(4):
        session.run_with_iobinding(binding, run)
    gpu.wait()

    def replay() -> None:
        session.run_with_iobinding(binding, run)

    replay.keep = (session, keep)  # type: ignore[attr-defined]
    return replay
