"""Generated kernels on the CPU emulator against float64: tails, clusters, layouts, types."""

import zlib

import numpy as np
import pytest

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.emulator import compile_kernels
from mirage_onnx.target import H200
from tests.support.block_graphs import numbers as p

#: graph, extents of a0 a1 a2 a3, numbers
CASES = [
  # tails of every axis, with and without masks
  ("plain", (8, 128, 16), p(16, 8)),
  ("plain", (8, 256, 16), p(16, 8, w=2, s=2)),
  ("plain", (1, 64, 24), p(16, 8, w=1, s=1)),
  ("plain", (3, 40, 17), p(16, 8)),
  ("plain", (11, 33, 40), p(32, 8, w=4)),
  ("plain", (11, 7, 16), p(16, 16, w=1)),
  ("plain", (5, 96, 20), p(12, 3)),
  ("plain", (20, 64, 70), p(64, 32, w=1)),
  ("plain:bf16", (9, 72, 24), p(16, 16)),
  ("scaled", (8, 512, 32), p(16, 8, w=4, s=2)),
  ("scaled", (1, 1000, 40), p(16, 8, w=8, s=8)),
  ("scaled", (11, 200, 24), p(24, 16, w=2, s=3)),
  ("scaled:bf16", (8, 256, 32), p(32, 8, w=2, s=1)),
  ("layouts", (8, 128, 16), p(16, 8)),
  ("layouts", (11, 72, 40), p(32, 8, w=1)),
  ("layouts", (3, 37, 17), p(16, 16, w=2)),
  ("layouts", (11, 96, 40), p(16, 8, w=2, s=4)),
  # clusters, also with ranks that have no depth and no elements
  ("plain", (8, 256, 32), p(16, 8, c=2)),
  ("plain", (3, 40, 17), p(16, 8, c=4)),
  ("scaled", (8, 512, 32), p(32, 8, c=4, w=2, s=2)),
  ("scaled", (11, 1000, 40), p(32, 16, c=2, w=4, s=2)),
  ("layouts", (11, 200, 40), p(16, 8, c=4, w=2, s=1)),
  ("small_third", (8, 256, 32, 16), p(16, 8, c=2)),
  ("small_third", (3, 100, 40, 12), p(16, 8, c=4)),
  ("over_columns", (9, 128, 40), p(8, c=2, w=4)),
  ("vector", (0, 256, 40), p(16, c=2)),
  # several contractions, staged values, other axes
  ("pair", (8, 128, 32), p(16, 8)),
  ("pair", (5, 72, 24), p(32, 8, w=4)),
  ("pair:bf16", (8, 64, 16), p(16, 8, c=2, w=1)),
  ("small_third", (8, 128, 48, 16), p(32, 8)),
  ("small_third", (11, 72, 24, 10), p(16, 16, w=1)),
  ("over_columns", (5, 64, 24), p(8)),
  ("over_columns", (3, 64, 100), p(1, w=1)),
  ("vector", (0, 100, 24), p(16, w=4)),
  ("batch", (3, 64, 24, 2), p(16, 8, 1)),
  ("depth_first", (8, 64, 16), p(16, 8)),
  ("depth_first", (3, 37, 20), p(16, 8)),
  # rows: vectors of 8, 4, 2 and 1, short rows, one and many warps
  ("rows", (3, 1024, 0), p(1, w=4)),
  ("rows", (2, 1000, 0), p(1, w=2)),
  ("rows", (3, 77, 0), p(1, w=1)),
  ("rows", (2, 12, 0), p(1, w=4)),
  ("rows:bf16", (2, 520, 0), p(1, w=1)),
  ("rows_mixed", (2, 48, 3), p(1, 1, w=1)),
  ("rows_mixed", (2, 515, 2), p(1, 1, w=8)),
  # rows that share a block: all there, some missing, one lane each, one block
  ("rows", (16, 40, 0), p(8, w=1)),
  ("rows", (11, 12, 0), p(4, w=2)),
  ("rows:bf16", (70, 8, 0), p(64, w=2)),
  ("rows_mixed", (5, 33, 7), p(1, 4, w=4)),
  ("rows_mixed", (6, 16, 3), p(2, 1, w=1)),
  ("rows_mixed", (4, 7, 3), p(4, 1, w=1)),
]
IDS = [f"{n}-{'x'.join(map(str, e))}-{q.to_text().replace(' ', '-')}" for n, e, q in CASES]


def extents_of(numbers):
  return {f"a{i}": n for i, n in enumerate(numbers)}


@pytest.fixture(scope="module")
def sources(graphs):
  found = []
  for name, numbers, params in CASES:
    graph = graphs[name]
    found.append(emit_kernel(graph, graph.kernels[0], params, extents_of(numbers), H200))
  return found


@pytest.fixture(scope="module")
def module(sources):
  return compile_kernels(sources)


@pytest.mark.parametrize("case", range(len(CASES)), ids=IDS)
@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_kernel_computes_what_its_graph_means(graphs, module, case, order):
  name, numbers, _ = CASES[case]
  graph, extents = graphs[name], extents_of(numbers)
  tensors = graphs.inputs(graph, extents, np.random.default_rng(zlib.crc32(IDS[case].encode())))
  expected = graphs.expected(graph, extents, tensors)
  module.run(tensors, [case], order=order)
  graphs.check(graph, tensors, expected)


def test_the_second_kernel_reads_what_the_first_wrote(graphs, rng):
  graph, extents = graphs["chain"], extents_of((9, 72, 24))
  numbers = [p(1, w=1), p(16, 8)]
  kernels = [emit_kernel(graph, k, q, extents, H200) for k, q in zip(graph.kernels, numbers, strict=True)]
  assert "Path::kCoherent" in kernels[1].text
  tensors = graphs.inputs(graph, extents, rng)
  expected = graphs.expected(graph, extents, tensors)
  compile_kernels(kernels).run(tensors)
  graphs.check(graph, tensors, expected)
