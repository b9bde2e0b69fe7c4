"""Kernels whose sizes only a launch knows, on the GPU: one image for every size and beyond 2^31."""

import numpy as np
import pytest

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.compiler.compile import compile_many
from mirage_onnx.compiler.cubin import Cubin
from mirage_onnx.ir.ugraph import KernelParams
from mirage_onnx.target import H200
from mirage_onnx.tune.device import Gpu
from tests.codegen.test_runtime_sizes import CASES, emitted
from tests.codegen.tiled import test_runtime_sizes as tiled
from tests.codegen.tiled import test_runtime_warpgroup as warpgroup
from tests.support.block_graphs import Graphs

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def gpu(h200):
  return Gpu(H200)


def check_at(gpu, graph, extents, runtime, source, image, all_sizes):
  """One image at every size; ``all_sizes``: of the ``runtime`` axes, in their order."""
  graphs = Graphs()
  assert isinstance(image, Cubin), image
  for number, own in enumerate(all_sizes):
    sizes = dict(zip(runtime, own, strict=False))
    every = {**extents, **sizes}
    given = graphs.inputs(graph, every, np.random.default_rng(number))
    with gpu.scope():
      at = {n: gpu.put(x) for n, x in given.items()} | sizes
      gpu.launch_source(gpu.load(image, source.name, source.smem_bytes), source, at)
      got = {n: gpu.get(at[n], x.shape, x.dtype) for n, x in given.items()}
    graphs.check(graph, got, graphs.expected(graph, every, given))


def test_every_size(gpu):
  graphs = Graphs()
  sources = [emitted(graphs, i, 8) for i in range(len(CASES))]
  images = compile_many(sources, H200, 4)
  for (name, axes, extents, _), source, image in zip(CASES, sources, images, strict=True):
    all_sizes = [(size, 3) for size in (1, 2, 7, 8, 9, 17, 100, 1000, 66_000)]
    check_at(gpu, graphs[name], extents, axes.split(), source, image, all_sizes)


def test_every_size_of_tiled_kernels(gpu):
  """Walked by the loop, too: fewer elements than a tile, and far more than were assumed."""
  sources = [tiled.emitted(i) for i in range(len(tiled.CASES))]
  images = compile_many(sources, H200, 4)
  for case, (source, image) in enumerate(zip(sources, images, strict=True)):
    _, axes, extents, _ = tiled.CASES[case]
    all_sizes = [(size, 33, 2) for size in (*tiled.SIZES, 1000, 4096)]
    check_at(gpu, tiled.graph_of(case), extents, axes.split()[::-1], source, image, all_sizes)


def test_every_size_of_products_by_wgmma(gpu):
  made = [warpgroup.emitted(i) for i in range(len(warpgroup.CASES))]
  images = compile_many([source for _, source in made], H200, 4)
  for case, ((graph, source), image) in enumerate(zip(made, images, strict=True)):
    _, axes, extents, _ = warpgroup.CASES[case]
    all_sizes = [(size, 200) for size in (1, 64, 77, 128, 300, 1000, 4096)]
    check_at(gpu, graph, extents, axes.split()[::-1], source, image, all_sizes)


def test_more_than_2_to_31_elements(gpu):
  """The last row of a tensor of 4 GiB and more."""
  graphs, columns, rows = Graphs(), 4096, 2**19 + 5
  graph = graphs["rows"]
  source = emit_kernel(
    graph, graph.kernels[0], KernelParams((1,), warps=8), {"a0": 2, "a1": columns}, H200,
    frozenset({"a0"}),
  )  # fmt: skip
  (image,) = compile_many([source], H200, 1)
  assert isinstance(image, Cubin), image
  one = {"a0": 1, "a1": columns}
  given = graphs.inputs(graph, one, np.random.default_rng(0))
  with gpu.scope():
    at = {"a0": rows, "i1": gpu.put(given["i1"])}
    at |= {n: gpu.empty(rows * given[n].nbytes) for n in ("i0", "o0", "o1", "o2")}
    last = {n: at[n] + (rows - 1) * given[n].nbytes for n in ("i0", "o0", "o1")}
    gpu.poison(at["i0"], rows * given["i0"].nbytes)
    row = gpu.put(given["i0"])
    gpu.d.cuMemcpyDtoDAsync(last["i0"], row, given["i0"].nbytes, gpu.stream)
    gpu.launch_source(gpu.load(image, source.name, source.smem_bytes), source, at)
    got = {n: gpu.get(last[n], given[n].shape, given[n].dtype) for n in ("o0", "o1")}
    # o2 is transposed: the last row is its last column.
    got["o2"] = np.stack(
      [gpu.get(at["o2"] + 4 * (j * rows + rows - 1), (1,), given["o2"].dtype) for j in range(columns)]
    )
  graphs.check(graph, got, graphs.expected(graph, one, given))
