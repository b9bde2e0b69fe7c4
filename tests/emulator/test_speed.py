"""How fast checked emulation is. The bounds are those of a quiet machine with two cores; CI is
allowed ``NOISE`` times as much."""

import os
import random

import numpy as np
import pytest

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.emulator import compile_kernels, toolchain
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import KernelParams
from mirage_onnx.target import H200
from tests.support.block_graphs import Graphs

NOISE = 3
NAMES = [
  "plain", "plain:bf16", "scaled", "scaled:bf16", "layouts", "pair", "small_third",
  "over_columns", "vector", "batch", "depth_first", "rows", "rows:bf16", "rows_mixed",
]  # fmt: skip


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


def processor_s():
  """Of this process and of those that have ended."""
  used = os.times()
  return used.user + used.system + used.children_user + used.children_system


def seconds(call, *args):
  start = processor_s()
  call(*args)
  return processor_s() - start


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
    assert min(seconds(module.run, tensors) for _ in range(3)) < 0.5 * NOISE


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
  start = processor_s()
  module = compile_kernels(sources)
  for index, (graph, sizes) in enumerate(cases):
    module.run(graphs.inputs(graph, sizes, np.random.default_rng(index)), [index])
  assert processor_s() - start < 60 * NOISE
