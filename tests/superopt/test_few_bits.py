"""Weights of few bits through match, search, proof, numbers and text."""

from dataclasses import replace

import numpy as np
import pytest
from packed_models import gated, model_of, nbits, norm, product, residual
from small_models import Net, region_of, search_region

from mirage_onnx.compiler.candidates import emit_candidate
from mirage_onnx.cost.model import features, kernel_cost
from mirage_onnx.emulator import run_kernel
from mirage_onnx.errors import MirageError, Rejection, RejectionError
from mirage_onnx.importer import load_model
from mirage_onnx.ir import Candidate, DType, KernelParams, KTensor, Window, parse_ugraph, print_ugraph
from mirage_onnx.ir.memory_order import stored_orders
from mirage_onnx.lower.layouts import lay_out
from mirage_onnx.superopt.numbers import solve
from mirage_onnx.target import H200
from mirage_onnx.tune.oracle import draw
from mirage_onnx.verify.prover import prover
from mirage_onnx.verify.weights import sample_weights


def found(model):
  region = region_of(model)
  return region, search_region(region).candidates


def test_golden(golden):
  """The region, the µGraph that is chosen for it, and its kernel."""
  region, candidates = found(norm(2, 1024, 512, zero=True, block=128))
  candidate = replace(candidates[0].candidate, params=(KernelParams((32,), 1, 512, 4, 2),))
  (source,) = emit_candidate(candidate, region.extents, H200, "k")
  assert golden == f"{region.text}\n{print_ugraph(candidate.ugraph)}\n{source.text}"


def test_views_of_the_models_bytes(rng):
  region = region_of(product(2, 512, 96, zero=True))
  kinds = {i.source.name: i for i in region.inputs if i.view}
  assert sorted((i.dtype, i.repeat) for i in kinds.values()) == [("f16", 32), ("q4", 1), ("q4", 32)]
  (q,) = (i for i in kinds.values() if i.repeat == 1)
  data = rng.integers(0, 256, q.source.shape, dtype=np.uint8)
  values = region.part(q, data)
  assert values.shape == (96, 512)
  assert values[3, 37] == int(data[3, 1, 2] >> 4) - 8 and values[3, 36] == int(data[3, 1, 2] & 15) - 8
  (s,) = (i for i in kinds.values() if i.dtype is DType.F16)
  scales = rng.standard_normal((96, 16)).astype(np.float16)
  np.testing.assert_array_equal(region.part(s, scales), np.repeat(scales, 32, axis=1))


def test_an_odd_number_of_zero_points_in_a_row():
  region = region_of(product(2, 5 * 32, 16, zero=True))
  (z,) = (i for i in region.inputs if i.dtype is DType.Q4 and i.repeat > 1)
  assert z.windows[-1] == Window(z.axes[-1:], 0, 6, "", 32)
  data = np.arange(48, dtype=np.uint8).reshape(16, 3)
  assert region.part(z, data)[2, 4 * 32] == int(data[2, 2] & 15) - 8


def test_text_and_bytes():
  t = KTensor("s", DType.F16, ("a0", "a1"), "weight", (Window(("a0",)), Window(("a1",), 0, 6, "", 32)))
  graph = found(norm(1, 1024, 64, zero=True))[1][0].candidate.ugraph
  text = print_ugraph(graph)
  assert parse_ugraph(text) == graph and "*32" in text
  assert t.bytes({"a0": 4, "a1": 160}) == 4 * 6 * 2 and t.repeat == 32
  whole = replace(t, windows=(Window(("a0",)), Window(("a1",), repeat=32)))
  assert whole.bytes({"a0": 4, "a1": 160}) == 4 * 5 * 2


def test_what_memory_moves_is_what_is_stored():
  region, candidates = found(norm(1, 1024, 1024))
  graph = candidates[0].candidate.ugraph
  (kernel,), tensors = graph.kernels, {t.name: t for t in graph.tensors}
  read = features(kernel, tensors, region.extents)
  weights = 1024 * 1024 // 2 + 1024 * 32 * 2
  assert read.dram_bytes == weights + 3 * 1024 * 2 and read.lane_depth == 32
  best, params = solve(kernel, tensors, region.extents, H200)[0]
  assert kernel_cost(read, params, H200) == best and params.loop_tile == 128 * params.warps


@pytest.mark.parametrize("model", [norm, gated, residual])
def test_proved_and_emitted(model):
  region, candidates = found(model(3, 1024, 256))
  assert candidates and all(c.proof for c in candidates)
  for c in candidates[:4]:
    assert emit_candidate(c.candidate, region.extents, H200, "k")


def test_no_program_sums_products_beside_a_contraction():
  """With a sum and a norm in front of gate and up all that was kept did, and no text could be made of it."""
  net = Net()
  x = net.Add(net.input(1, 1024), net.input(1, 1024))
  y = net.rms(x, net.constant(1 + 0.1 * net.rng.standard_normal(1024)))
  gate, up = (nbits(net, y, 3072, 1024, block=32) for _ in range(2))
  region, candidates = found(model_of(net, (net.Mul(net.Mul(gate, net.Sigmoid(gate)), up), (1, 3072))))
  assert len(region.nodes) > 6 and candidates
  for v in candidates:
    emit_candidate(v.candidate, region.extents, H200, "k")


@pytest.mark.parametrize(
  ("old", "new"),
  [
    ("const[-1]", "const[1]"),  # a zero point that is added
    (" q4[", " q8["),
    ("f32[a2] post row\n  %11 = rsqrt", "f32[a2] post row\n  %11 = sqrt"),
  ],
)
def test_wrong_programs_are_refused(old, new):
  region, candidates = found(norm(2, 1024, 64, zero=True))
  text = print_ugraph(candidates[0].candidate.ugraph)
  assert old in text
  wrong = prover(region)(region, parse_ugraph(text.replace(old, new)), candidates[0].candidate.params)
  assert isinstance(wrong, Rejection) and wrong.code == "NOT_EQUIVALENT"


def test_scales_of_other_blocks_are_another_tensor():
  """Equivalence holds for any scales; which of them memory has once is between region and plan."""
  region, candidates = found(norm(2, 1024, 64))
  text = print_ugraph(candidates[0].candidate.ugraph)
  with pytest.raises(MirageError, match="another part of a tensor"):
    stored_orders(region, parse_ugraph(text.replace("*32", "*64")))


@pytest.mark.parametrize("kernel", ["row", "tiled"])
def test_other_kernels_do_not_read_them(kernel):
  """A product with a reduction is no product for the tensor cores: those kernels do not widen."""
  _, candidates = found(product(1, 512, 64))
  graph = candidates[0].candidate.ugraph
  (own,) = graph.kernels
  tensors = {t.name: t for t in graph.tensors}
  if kernel == "row":
    own = replace(own, loop=None, cluster=None)
  else:
    own = replace(own, ops=tuple(replace(o, axes=(*o.axes, "b")) if o.op == "matmul" else o for o in own.ops))
  with pytest.raises(RejectionError) as refused:
    lay_out(own, tensors)
  assert refused.value.rejection.code == "LAYOUT"


@pytest.mark.parametrize(
  ("change", "text"),
  [
    ({"k": 48, "block": 16}, "lanes take 32"),
    ({"k": 1040, "block": 16}, "lanes take 32"),
  ],
)
def test_depths_that_lanes_do_not_share_out(change, text):
  region, candidates = found(product(2, n=64, **change))
  kernels = [c.candidate for c in candidates]
  for c in kernels:
    with pytest.raises(RejectionError, match=text) as refused:
      emit_candidate(c, region.extents, H200, "k")
    assert refused.value.rejection.code == "LAYOUT"


@pytest.mark.parametrize(
  ("model", "how"),
  [
    (norm, {"rows": 16, "k": 1024, "n": 232, "zero": True}),
    (norm, {"rows": 3, "k": 1120, "n": 112, "block": 16}),
    (gated, {"rows": 9, "k": 1024, "n": 120, "block": 128}),
    (product, {"rows": 1, "k": 1536, "n": 128, "block": 256, "bits": 8, "zero": True}),
  ],
)
def test_any_numbers_are_right(model, how):
  """In the emulator, which sees races and reads outside: even and uneven depths, tiles of any width."""
  made = model(**how)
  region, candidates = found(made)
  graph = next(c.candidate.ugraph for c in candidates if len(c.candidate.ugraph.kernels) == 1)
  (kernel,) = graph.kernels
  step, grid = 4 * kernel.lane_depth, kernel.grid
  data, oracle = draw(region, sample_weights(load_model(made), region), np.random.default_rng(0))
  (output,) = region.outputs
  for tile, cluster, warps, stages in ((112, 1, 2, 1), (16, 1, 3, 2), (48, 2, 1, 4), (64, 1, 4, 3)):
    tiles = tuple(tile if a == output.axes[-1] else 8 for a in grid)
    params = (KernelParams(tiles, cluster, step * warps, warps, stages),)
    (source,) = emit_candidate(Candidate(graph, params), region.extents, H200, "k")
    tensors = {i.name: np.ascontiguousarray(data[i.source.name]) for i in region.inputs}
    tensors[output.name] = np.full(region.shape(output.tensor), np.nan, np.float16)
    run_kernel(source, tensors)
    exact, rounded = (x[output.tensor.name] for x in (oracle.exact, oracle.rounded))
    size = np.linalg.norm(exact)
    error = np.linalg.norm(tensors[output.name].reshape(exact.shape) - exact) / size
    assert error <= 2 * np.linalg.norm(rounded - exact) / size + 1e-3, params


def test_numbers_that_leave_nothing_over_are_right():
  region, candidates = found(product(1, 1024, 64))
  candidate = candidates[0].candidate
  for warps, stages in ((2, 4), (3, 2), (8, 1), (16, 8)):
    params = (KernelParams((16,), 1, 128 * warps, warps, stages),)
    assert emit_candidate(replace(candidate, params=params), region.extents, H200, "k")
