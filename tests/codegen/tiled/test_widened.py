"""Packed weights as operand A of wgmma: right in the emulator at all numbers, and what is refused."""

import numpy as np
import pytest
from dequantized_models import dequantized
from packed_models import product, residual
from small_models import region_of, search_region

from mirage_onnx.compiler.candidates import emit_candidate
from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.emulator import run_kernel
from mirage_onnx.errors import RejectionError
from mirage_onnx.importer import load_model
from mirage_onnx.ir import Candidate, KernelParams
from mirage_onnx.superopt.widened_numbers import PackedShape
from mirage_onnx.target import H200
from mirage_onnx.tune.measure import stored
from mirage_onnx.tune.oracle import draw
from mirage_onnx.verify.weights import sample_weights


def graph_of(region):
  """The first whose one kernel has packed weights as wgmma takes them."""
  for c in search_region(region).candidates:
    graph = c.candidate.ugraph
    tensors = {t.name: t for t in graph.tensors}
    if len(graph.kernels) == 1 and PackedShape.of(graph.kernels[0], tensors, region.extents):
      return graph
  raise AssertionError("none")


def numbers(graph, region, rows, columns, loop_tile, warps, stages, cluster=1):
  """``rows``: of weights, which are columns of the result."""
  last = region.outputs[0].axes[-1]
  tile = tuple(rows if a == last else columns for a in graph.kernels[0].grid)
  return KernelParams(tile, cluster, loop_tile, warps, stages, "wgmma")


def memory_of(graph, x, data):
  """What the kernels are given of an input, in their order."""
  return stored(x, graph.tensor(x.name).axes, data, {}) if x.view else np.ascontiguousarray(data)


MODELS = {
  "4 bits": (product, {"rows": 80, "k": 512, "n": 192}),
  "zero points": (product, {"rows": 64, "k": 512, "n": 136, "zero": True}),
  "blocks of 16, odd zero points": (product, {"rows": 70, "k": 64 * 5, "n": 64, "zero": True, "block": 16}),
  "blocks of 128": (product, {"rows": 65, "k": 512, "n": 128, "block": 128, "zero": True}),
  "blocks of 256": (product, {"rows": 64, "k": 1024, "n": 64, "block": 256}),
  "8 bits": (product, {"rows": 64, "k": 256, "n": 128, "bits": 8, "zero": True}),
  "2 bits": (product, {"rows": 64, "k": 256, "n": 128, "bits": 2, "zero": True, "block": 64}),
  "a column each": (dequantized, {"rows": 64, "k": 256, "n": 128, "axis": 1, "kind": "i8"}),
  "int4 blocks": (
    dequantized,
    {"rows": 64, "k": 256, "n": 64, "axis": 0, "block": 32, "kind": "i4", "form": "nk"},
  ),
  "bias": (product, {"rows": 130, "k": 256, "n": 128, "bias": True}),
  "residual": (residual, {"rows": 64, "k": 256, "n": 192, "zero": True}),
}
POINTS = [(64, 64, 64, 4, 3), (128, 64, 64, 8, 3), (64, 128, 64, 4, 2), (64, 64, 128, 8, 3)]


@pytest.mark.parametrize("name", MODELS)
def test_right_in_the_emulator(name):
  made, how = MODELS[name]
  model = made(**how)
  region = region_of(model)
  graph = graph_of(region)
  data, oracle = draw(region, sample_weights(load_model(model), region), np.random.default_rng(0))
  (output,) = region.outputs
  points = [p for p in POINTS if p[0] <= how["n"] and p[1] <= how["rows"] and not how["k"] % p[2]]
  for point in points:
    params = numbers(graph, region, *point)
    (source,) = emit_candidate(Candidate(graph, (params,)), region.extents, H200, "k")
    assert "widen_tile" in source.text
    tensors = {i.name: memory_of(graph, i, data[i.source.name]) for i in region.inputs}
    tensors[output.name] = np.full(region.shape(output.tensor), np.nan, np.float16)
    run_kernel(source, tensors)
    exact, rounded = (x[output.tensor.name] for x in (oracle.exact, oracle.rounded))
    size = np.linalg.norm(exact)
    error = np.linalg.norm(tensors[output.name].reshape(exact.shape) - exact) / size
    assert error <= 2 * np.linalg.norm(rounded - exact) / size + 1e-3, params


@pytest.mark.parametrize("name", ["4 bits", "8 bits", "2 bits"])
def test_compiles(name):
  made, how = MODELS[name]
  region = region_of(made(**how))
  graph = graph_of(region)
  (source,) = emit_candidate(
    Candidate(graph, (numbers(graph, region, 128, 64, 64, 8, 4),)), region.extents, H200, "k"
  )
  assert compile_cubin(source.text, H200, name=source.name)


def test_a_depth_that_steps_do_not_share_out():
  region = region_of(product(rows=64, k=64 + 32, n=64))
  graph = graph_of(region)
  with pytest.raises(RejectionError, match="leave a part of the depth over"):
    emit_candidate(Candidate(graph, (numbers(graph, region, 64, 64, 64, 4, 2),)), region.extents, H200, "k")
