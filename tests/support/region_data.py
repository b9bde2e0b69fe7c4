"""A region's tensors as plain arrays, for the interpreters and for the emulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from mirage_onnx.codegen import KernelSource, emit_kernel
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.region import Region
from mirage_onnx.ir.ugraph import Candidate
from mirage_onnx.target import H200
from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.interpret_steps import by_axes
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import Named

Arrays = Mapping[str, np.ndarray]


def exactly(region: Region, candidate: Candidate, values: Arrays) -> dict[str, np.ndarray]:
    """ONNX output -> what the candidate's block graphs compute from ``values`` in float64."""
    inputs = {
        i.name: Named(by_axes(i, values[i.tensor.name], region.extents)[None], i.axes)
        for i in region.inputs
    }
    got = interpret_ugraph(Float64(), candidate.ugraph, candidate.params, region.extents, inputs)
    return {
        o.tensor.name: got[o.name].aligned(o.axes)[0].reshape(_shape(o.tensor.shape))
        for o in region.outputs
    }


def _shape(shape: tuple[int | str, ...] | None) -> tuple[int, ...]:
    return tuple(int(d) for d in shape or ())


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """L2, over everything; below 1e-8 (programs of values near 1) a result is what cancelled."""
    norm = float(np.linalg.norm(want))
    return float(np.linalg.norm(np.asarray(got, np.float64) - want)) / max(norm, 1e-8)


def sources_of(region: Region, candidate: Candidate, name: str) -> list[KernelSource] | None:
    """The kernels' CUDA text, or None where the code generator refuses with a reason."""
    graph = candidate.ugraph
    try:
        return [
            emit_kernel(graph, replace(k, name=f"{name}_{k.name}"), p, region.extents, H200)
            for k, p in zip(graph.kernels, candidate.params, strict=True)
        ]
    except RejectionError:
        return None


def device_tensors(region: Region, candidate: Candidate, values: Arrays) -> dict[str, np.ndarray]:
    """Every tensor of the µGraph, laid out as its kernels read it; unwritten ones hold NaN."""
    source = {i.name: i for i in region.inputs}
    found = {}
    for t in candidate.ugraph.tensors:
        if t.name in source:
            i = source[t.name]
            data = by_axes(i, values[i.tensor.name], region.extents)
            order = [i.axes.index(a) for a in t.axes]
            found[t.name] = np.ascontiguousarray(data.transpose(order)).astype(t.dtype.numpy)
        else:
            shape = [region.extents[a] for a in t.axes]
            found[t.name] = np.full(shape, np.nan, np.float32).astype(t.dtype.numpy)
    return found


def device_outputs(region: Region, tensors: Arrays) -> dict[str, np.ndarray]:
    """ONNX output -> what the kernels left in memory."""
    return {o.tensor.name: tensors[o.name].reshape(_shape(o.tensor.shape)) for o in region.outputs}
