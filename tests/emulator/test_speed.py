"""How fast checked emulation is. The bounds are those of a quiet machine with two cores; CI is
allowed ``NOISE`` times as much."""

import random
import time

import numpy as np
import pytest

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.emulator import compile_kernels, toolchain
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import KernelParams
from mirage_onnx.target import H200
from tests.codegen.conftest import Graphs
from tests.codegen.test_fuzz import NAMES, extents, numbers

NOISE = 3


@pytest.fixture(scope="module")
def graphs():
    return Graphs()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "scaled"])
def test_a_cluster_kernel_in_half_a_second(graphs, name):
    """16 x 4096 x 512 (rows, depth, columns), depth split over clusters of 4 and 8 blocks."""
    sizes = {"a0": 16, "a1": 4096, "a2": 512, "a3": 1}
    graph = graphs[name]
    for cluster in (4, 8):
        params = KernelParams((16, 16), cluster=cluster, warps=4, stages=4)
        source = emit_kernel(graph, graph.kernels[0], params, sizes, H200)
        assert source.cluster == cluster
        module = compile_kernels([source])
        tensors = graphs.inputs(graph, sizes, np.random.default_rng(0))
        start = time.perf_counter()
        module.run(tensors)
        assert time.perf_counter() - start < 0.5 * NOISE


@pytest.mark.slow
def test_sixty_small_kernels_in_a_minute(graphs, tmp_path, monkeypatch):
    monkeypatch.setattr(toolchain, "cache_folder", lambda: tmp_path)  # nothing is compiled yet
    rng = random.Random(7)
    cases, sources = [], []
    while len(sources) < 60:
        name = rng.choice(NAMES)
        graph, sizes = graphs[name], extents(name, rng)
        params = numbers(graph.kernels[0], rng)
        try:
            sources.append(emit_kernel(graph, graph.kernels[0], params, sizes, H200))
        except RejectionError:
            continue
        cases.append((graph, sizes))
    start = time.perf_counter()
    module = compile_kernels(sources)
    for index, (graph, sizes) in enumerate(cases):
        module.run(graphs.inputs(graph, sizes, np.random.default_rng(index)), [index])
    assert time.perf_counter() - start < 60 * NOISE
