"""Random extents and numbers for every graph, on the emulator."""

import random

import numpy as np
import pytest

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.emulator import compile_kernels
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.ugraph import KernelParams
from mirage_onnx.target import H200

NAMES = [
    "plain", "plain:bf16", "scaled", "scaled:bf16", "layouts", "pair", "small_third",
    "over_columns", "vector", "batch", "depth_first", "rows", "rows:bf16", "rows_mixed",
]  # fmt: skip
TOLERANCE = {DType.F16: 2e-3, DType.BF16: 1.6e-2, DType.F32: 1e-4}


def extents(name, rng):
    found = {
        "a0": rng.choice([1, 2, 3, 8, 9, 11, 16, 17]),
        "a1": rng.choice([7, 8, 31, 32, 33, 40, 64, 96, 100, 128, 160, 200, 256, 300, 512]),
        "a2": rng.choice([1, 5, 16, 17, 24, 32, 40, 50, 64]),
        "a3": rng.choice([1, 2, 3]) if name == "batch" else rng.choice([3, 8, 16, 20]),
    }
    if name.startswith("rows"):
        found["a1"] *= rng.choice([1, 4])
        found["a2"] = rng.choice([1, 2, 3])
    return found


def numbers(kernel, rng):
    if kernel.loop is None:
        return KernelParams((1,) * len(kernel.grid), warps=rng.choice([1, 2, 4, 8]))
    tiles = {"a0": [1, 3, 8, 16, 24], "a2": [1, 7, 16, 24, 32, 48], "a3": [1]}
    return KernelParams(
        tuple(rng.choice(tiles[a]) for a in kernel.grid),
        cluster=rng.choice([1, 1, 2, 4]) if kernel.cluster else 1,
        warps=rng.choice([1, 2, 3, 4, 8]),
        stages=rng.choice([1, 2, 3, 4, 8]),
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_random_kernels(graphs, seed):
    rng = random.Random(seed)
    cases, sources = [], []
    for _ in range(150):
        name = rng.choice(NAMES)
        graph, sizes = graphs[name], extents(name, rng)
        params = numbers(graph.kernels[0], rng)
        try:
            sources.append(emit_kernel(graph, graph.kernels[0], params, sizes, H200))
        except RejectionError as error:
            assert "per thread" in error.rejection.reason, error
            continue
        cases.append((name, graph, sizes, params))
    module = compile_kernels(sources)
    for index, (name, graph, sizes, params) in enumerate(cases):
        tensors = graphs.inputs(graph, sizes, np.random.default_rng(index))
        expected = graphs.expected(graph, sizes, tensors)
        module.run(tensors, [index], order=rng.choice(["ascending", "descending"]))
        for tensor in graph.tensors:
            if tensor.role == "output":
                want, tolerance = expected[tensor.name], TOLERANCE[tensor.dtype]
                np.testing.assert_allclose(
                    tensors[tensor.name].astype(np.float64),
                    want,
                    rtol=tolerance,
                    atol=tolerance * np.abs(want).max(),
                    err_msg=f"{name} {sizes} {params.to_text()}",
                )
