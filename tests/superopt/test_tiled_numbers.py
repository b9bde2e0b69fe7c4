"""Numbers of general block graphs: limits, order, and what is known of such kernels on an H200."""

import re
from collections import Counter
from dataclasses import replace
from math import prod

import pytest
from goldens import GOLDENS, golden
from transposed_keys import transposed_keys

from mirage_onnx.cost import chip
from mirage_onnx.cost import tiled as model
from mirage_onnx.ir import parse_ugraph, print_ugraph
from mirage_onnx.ir.ugraph import KernelParams, ugraph_extents
from mirage_onnx.lower.layouts import lay_out
from mirage_onnx.lower.tiled_layouts import lay_out_tiled
from mirage_onnx.superopt.numbers import solve
from mirage_onnx.superopt.tiled_numbers import solve_tiled, tiled_cost
from mirage_onnx.target import H200


def tensors(g):
  return {t.name: t for t in g.ugraph.tensors}


def laid_out(g, index=0):
  kernel = g.ugraph.kernels[index]
  return replace(kernel, ops=lay_out_tiled(kernel, tensors(g))[0])


def solved(name, extents, target=H200, **more):
  g = golden(name)
  return solve_tiled(laid_out(g), tensors(g), extents, target, **more)


def total_us(name, extents):
  g = golden(name)
  known, total, chosen = dict(extents), 0.0, []
  for i in range(len(g.ugraph.kernels)):
    (cost, params), *_ = solve_tiled(laid_out(g, i), tensors(g), known, H200)
    chosen.append(params)
    rest = g.ugraph.kernels[i + 1 :]
    known = ugraph_extents(replace(g.ugraph, kernels=g.ugraph.kernels[: i + 1]), chosen, extents)
    assert rest or len(chosen) == len(g.ugraph.kernels)
    total += cost.time_us
  return total


def heads(count, queries, keys, width):
  return {"a0": count, "a1": keys, "a2": width, "a3": queries, "a4": width}


def split_heads(count, queries, keys, width):
  return {"a0": count, "a1": queries, "a2": width, "a3": keys, "a4": width}


def linear(rows, depth=4096, columns=4096):
  return {"a0": depth, "a1": columns, "a2": rows}


EVERY = [pytest.param(g, i, id=f"{g.name}-{k.name}") for g in GOLDENS for i, k in enumerate(g.ugraph.kernels)]
CHANGES = {"as they are": lambda n: n, "ones": lambda n: 1, "odd": lambda n: 3 * n + 1}


@pytest.mark.parametrize(("g", "index"), EVERY)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_numbers_respect_the_limits(g, index, change):
  extents = {a: change(n) for a, n in g.region.extents.items()}
  kernel = laid_out(g, index)
  found = solve_tiled(kernel, tensors(g), extents, H200)
  assert found
  assert [c.time_us for c, _ in found] == sorted(c.time_us for c, _ in found)
  assert len({p for _, p in found}) == len(found)
  for cost, p in found:
    assert cost.registers <= 255
    assert cost.registers * 32 * p.warps <= H200.registers_per_sm
    assert 0 < cost.smem_bytes <= H200.smem_bytes
    assert p.cluster in ((1, 2, 4, 8) if kernel.cluster else (1,))
    assert p.warps in (1, 2, 4, 8)
    assert p.stages in ((1, 2, 3, 4) if kernel.loop else (1,))
    assert bool(p.loop_tile) == (kernel.loop is not None)
    assert len(p.tile) == len(kernel.grid)
    assert all(1 <= t <= extents.get(a, 16) for t, a in zip(p.tile, kernel.grid, strict=True))
    assert cost.time_us > H200.launch_us
  assert found == solve_tiled(kernel, tensors(g), extents, H200)


@pytest.mark.parametrize(("g", "index"), EVERY)
def test_one_point_costs_what_it_costs_among_all(g, index):
  kernel = laid_out(g, index)
  for cost, params in solve_tiled(kernel, tensors(g), g.region.extents, H200, keep=20):
    assert tiled_cost(kernel, tensors(g), g.region.extents, params, H200) == cost


@pytest.mark.parametrize(("g", "index"), EVERY)
def test_no_enumerated_point_is_cheaper(g, index):
  """Neighbours of the best point, evaluated alone, are no better."""
  kernel = laid_out(g, index)
  (best, params), *_ = solve_tiled(kernel, tensors(g), g.region.extents, H200)
  for other in (
    replace(params, warps=max(1, params.warps // 2)),
    replace(params, warps=min(8, params.warps * 2)),
    replace(params, stages=max(1, params.stages - 1)),
  ):
    cost = tiled_cost(kernel, tensors(g), g.region.extents, other, H200)
    assert cost is None or cost.time_us >= best.time_us


@pytest.mark.parametrize("axis", ["a0", "a1", "a2", "a3"])
@pytest.mark.parametrize("name", ["attention_online", "attention_cluster"])
def test_more_work_takes_longer(name, axis):
  times = []
  for factor in (1, 4, 16, 64):
    extents = heads(4, 64, 1024, 16)
    extents[axis] *= factor
    times.append(solved(name, extents)[0][0].time_us)
  assert times == sorted(times)
  assert times[-1] > times[0]


@pytest.mark.parametrize("name", ["softmax_rows", "residual_norm", "elementwise_chain", "lora"])
def test_more_of_everything_takes_longer(name):
  g = golden(name)
  times = []
  for factor in (1, 2, 4, 8):
    extents = {a: n * factor for a, n in g.region.extents.items()}
    times.append(solved(name, extents)[0][0].time_us)
  assert times == sorted(times)


def test_a_slower_memory_and_slower_tensor_cores():
  memory = replace(H200, stream_tbps=H200.stream_tbps / 2)
  cores = replace(H200, mma_tflops=H200.mma_tflops / 2)
  decode, prefill = heads(64, 1, 4096, 128), linear(8192)
  assert best_us("attention_cluster", decode, memory) > 1.5 * best_us("attention_cluster", decode)
  assert best_us("norm_linear", prefill, cores) > 1.5 * best_us("norm_linear", prefill)


def best_us(name, extents, target=H200):
  return solved(name, extents, target)[0][0].time_us


def test_special_functions_have_a_price(monkeypatch):
  prefill = heads(32, 2048, 2048, 64)
  before = best_us("attention_online", prefill)
  monkeypatch.setattr(model, "SPECIALS", model.SPECIALS / 4)
  assert best_us("attention_online", prefill) > 1.2 * before


def test_streaming_attention_fills_the_chip_or_is_slow():
  """64 heads of one query: 134 MB, whose streaming read takes 34.3 us, some of it launch."""
  extents = heads(64, 1, 4096, 128)
  (cost, params), *_ = solved("attention_cluster", extents)
  assert 134e6 / 4.6e6 < cost.time_us < 1.1 * 34.3
  grid = golden("attention_cluster").ugraph.kernels[0].grid
  blocks = prod(-(-extents[a] // n) for a, n in zip(grid, params.tile, strict=True))
  assert blocks * params.cluster >= 0.9 * H200.multiprocessors
  assert total_us("attention_split_kv", split_heads(64, 1, 4096, 128)) < 1.15 * 34.3
  # A block a head leaves half of the multiprocessors, and so half of the rate.
  assert best_us("attention_online", extents) > 1.6 * cost.time_us


@pytest.mark.parametrize("count", [2, 4, 8])
def test_few_heads_are_split(count):
  alone = best_us("attention_online", heads(count, 1, 8192, 128))
  cluster = best_us("attention_cluster", heads(count, 1, 8192, 128))
  split = total_us("attention_split_kv", split_heads(count, 1, 8192, 128))
  assert cluster < alone / 4
  assert split < alone / 4


def test_split_keys_cost_a_launch_more():
  """Where one block has hardly any keys, a second kernel is more than it saves."""
  alone = best_us("attention_online", heads(128, 1, 128, 64))
  assert total_us("attention_split_kv", split_heads(128, 1, 128, 64)) > alone


def test_little_attention_is_mostly_latency():
  """(2,256,64)x(2,64,4096): 0.5 GFLOP and 2.3 MB; peers take 18 us, a read of it 4.8."""
  time_us = best_us("attention_cluster", heads(2, 256, 4096, 64))
  assert 3.0 < time_us < 12.0


def test_a_long_prefill_is_bound_by_the_tensor_cores():
  (cost, params), *_ = solved("norm_linear", linear(4096))
  at_peak_us = 2 * 4096**3 / (H200.mma_tflops * 1e6)
  assert 2 * at_peak_us < cost.time_us < 3.5 * at_peak_us
  assert cost.dram_bytes / (H200.stream_tbps * 1e6) < 0.2 * cost.time_us
  assert params.tile[0] * params.tile[1] >= 64 * 64
  assert 3.0 < best_us("norm_linear", linear(16384)) / cost.time_us < 4.5


def test_fp32_is_contracted_by_lanes():
  """Three operations of 32 lanes where a tensor core takes 4096 at once; the bytes are twice as many."""
  text = print_ugraph(golden("attention_online").ugraph)
  graph = parse_ugraph(re.sub(r"\bf16\[", "f32[", text))
  kernel, of = graph.kernels[0], {t.name: t for t in graph.tensors}
  kernel = replace(kernel, ops=lay_out_tiled(kernel, of)[0])
  for queries, least in ((1, 1), (1024, 8)):
    extents = heads(32, queries, 1024, 64)
    (wide, _), *_ = solve_tiled(kernel, of, extents, H200)
    assert wide.time_us > least * best_us("attention_online", extents)


@pytest.mark.parametrize("rows", [1, 8, 16])
def test_as_a_streaming_kernel_where_both_are_possible(rows):
  """Of the same block graph the model of the streaming family, which was measured, says so."""
  g = golden("norm_linear")
  (kernel,) = g.ugraph.kernels
  of = tensors(g)
  in_memory_order = tuple(
    replace(op, axes=of[op.tensor].axes) if op.op == "load" else op for op in kernel.ops
  )
  kernel = replace(kernel, ops=in_memory_order)
  ops = lay_out(kernel, of).ops
  (measured, _), *_ = solve(replace(kernel, ops=ops), of, linear(rows), H200)
  assert best_us("norm_linear", linear(rows)) == pytest.approx(measured.time_us, rel=0.1)


def test_rows_are_padded_to_fragments():
  """One query takes the tensor cores as long as sixteen."""
  g = golden("attention_online")
  kernel, of = laid_out(g), tensors(g)
  params = KernelParams(tile=(16, 1), loop_tile=64, warps=1, stages=2)
  slow = replace(H200, mma_tflops=H200.mma_tflops / 1000)
  one, sixteen = (tiled_cost(kernel, of, heads(8, n, 1024, 64), params, slow) for n in (1, 16))
  assert one.time_us == pytest.approx(sixteen.time_us, rel=0.01)


def test_blocks_wait_one_wave_after_the_other(monkeypatch):
  monkeypatch.setattr(model, "WAVE_US", 0.0)
  g = golden("attention_online")
  kernel, of = laid_out(g), tensors(g)
  params = KernelParams(tile=(16, 1), loop_tile=64, warps=1, stages=2)
  one_block_each = replace(H200, stream_tbps=1000.0, smem_per_sm_bytes=40000)
  times = []
  for waves in (1, 20, 40):
    extents = heads(waves * H200.multiprocessors, 16, 1024, 64)
    cost = tiled_cost(kernel, of, extents, params, one_block_each)
    times.append(cost.time_us - H200.launch_us - H200.ramp_us)
  assert times[1] > 0.9 * 20 * times[0]
  assert 1.9 < times[2] / times[1] < 2.1


def test_one_stage_does_not_overlap(monkeypatch):
  """With nothing else to limit the rate, a second stage hides the shorter of the two times."""
  monkeypatch.setattr(chip, "LOADED_LATENCY_US", 1e-6)
  g = golden("attention_online")
  kernel, of = laid_out(g), tensors(g)
  one, two, three = (
    tiled_cost(
      kernel, of, heads(128, 16, 4096, 128),
      KernelParams(tile=(16, 1), loop_tile=64, warps=4, stages=n), H200,
    )
    for n in (1, 2, 3)
  )  # fmt: skip
  assert one.time_us > 1.1 * two.time_us
  assert two.time_us == pytest.approx(three.time_us, rel=0.02)


def test_points_that_do_not_fit_are_counted():
  extents = heads(64, 16, 4096, 128)
  dropped = Counter()
  assert solved("attention_online", extents, pruned=dropped)
  assert dropped["registers"] > 0
  assert dropped["shared memory"] > 0
  assert dropped["idle warps"] > 0
  tiny = replace(H200, smem_bytes=1000)
  assert solved("attention_online", extents, tiny, pruned=dropped) == ()
  assert tiled_cost(
    laid_out(golden("attention_online")),
    tensors(golden("attention_online")),
    extents,
    KernelParams(tile=(16, 1), loop_tile=64),
    tiny,
  ) is None  # fmt: skip


def test_no_clusters_where_the_target_has_none():
  extents = heads(8, 1, 8192, 128)
  assert any(p.cluster > 1 for _, p in solved("attention_cluster", extents))
  plain = replace(H200, has_clusters=False)
  assert all(p.cluster == 1 for _, p in solved("attention_cluster", extents, plain))


def test_every_rank_of_a_cluster_has_work():
  for _, p in solved("attention_cluster", heads(1, 1, 5, 16), keep=50):
    assert -(-5 // p.cluster) * (p.cluster - 1) < 5


def by_ranks(keys):
  """Numbers of 64 heads on transposed keys, by size of the cluster."""
  graph = transposed_keys()
  extents = {"a0": 64, "a1": keys, "a2": 128, "a3": 128}
  found = solve_tiled(graph.kernels[0], {t.name: t for t in graph.tensors}, extents, H200, keep=100_000)
  return {c: [p for _, p in found if p.cluster == c] for c in {p.cluster for _, p in found}}


def test_shares_of_an_operand_begin_between_its_chunks(monkeypatch):
  """On an H100 ranks of 375 keys took 346 us, which copied key by key; no cluster took 69."""
  assert set(by_ranks(3000)) == {1}
  assert set(by_ranks(3072)) == {1, 2, 4, 8}
  assert set(by_ranks(3008)) == {1, 2, 4, 8}  # of 376 keys
  assert set(by_ranks(3024)) == {1, 2}
  assert set(by_ranks(3001)) == {1, 2, 4, 8}  # which lie in no chunks anyway
  with_shares = by_ranks(3000)
  monkeypatch.setattr("mirage_onnx.superopt.tiled_numbers.LITTLE", 2.0)
  without = by_ranks(3000)
  assert set(without) == {1, 2, 4, 8}
  assert with_shares[1] == without[1]


def test_a_mask_may_be_copied_one_by_one():
  """Keys lie apart, and of the mask a block has one row: shares of 375."""
  assert any(p.cluster == 8 for _, p in solved("attention_cluster", heads(64, 1, 3000, 128)))


def test_parts_of_unknown_number_are_sixteen():
  g = golden("attention_split_kv")
  kernel, extents = laid_out(g, 1), split_heads(8, 1, 8192, 128)
  unknown = solve_tiled(kernel, tensors(g), extents, H200)
  assert unknown == solve_tiled(kernel, tensors(g), extents | {"a3/k0": 16}, H200)
  more = solve_tiled(kernel, tensors(g), extents | {"a3/k0": 4096}, H200)
  assert more[0][0].time_us > unknown[0][0].time_us
  assert more[0][0].dram_bytes > unknown[0][0].dram_bytes


def test_a_finer_split_writes_more():
  g = golden("attention_split_kv")
  kernel, extents = laid_out(g), split_heads(8, 1, 8192, 128)
  fine, coarse = (
    tiled_cost(kernel, tensors(g), extents, KernelParams((t, 1), 1, 64, 4, 2), H200) for t in (64, 1024)
  )
  assert fine.dram_bytes > coarse.dram_bytes


def test_keep():
  assert len(solved("attention_online", heads(64, 16, 4096, 128), keep=3)) == 3


def test_only_what_is_allowed():
  extents = heads(64, 16, 4096, 128)
  every = solved("attention_cluster", extents, keep=10_000)
  assert len(every) > 200

  def allow(params):
    return params.warps == 1 and params.stages == 4

  allowed = solved("attention_cluster", extents, keep=5, allow=allow)
  assert allowed == tuple(f for f in every if allow(f[1]))[:5]
  assert solved("attention_cluster", extents, keep=7) == every[:7]
