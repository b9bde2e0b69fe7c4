"""The cost model's order of things, and that chosen numbers respect the target."""

from collections import Counter
from dataclasses import replace

import pytest
from golden_texts import PROGRAMS

from mirage_onnx.cost.model import (
  LATENCY_US,
  SECTOR_BYTES,
  element_bytes,
  features,
  kernel_cost,
  moved_bytes,
)
from mirage_onnx.ir import KernelParams, parse_ugraph
from mirage_onnx.superopt.numbers import MAX_PER_THREAD, MAX_REGISTERS, solve
from mirage_onnx.target import H100, H200

STREAM = parse_ugraph(PROGRAMS["stream_over_a_cluster"])
ROW = parse_ugraph(PROGRAMS["exponentials"])
NUMBERS = KernelParams(tile=(32, 8), cluster=1, loop_tile=128, warps=4, stages=2)


def extents(*sizes):
  return {f"a{i}": n for i, n in enumerate(sizes)}


def cost(graph, sizes, params, target=H200):
  tensors = {t.name: t for t in graph.tensors}
  return kernel_cost(features(graph.kernels[0], tensors, sizes), params, target)


def best(graph, sizes, target=H200):
  tensors = {t.name: t for t in graph.tensors}
  return solve(graph.kernels[0], tensors, sizes, target)


@pytest.mark.parametrize("axis", ["a1", "a2"])
def test_more_bytes_cost_more(axis):
  times = []
  for n in (256, 1024, 4096, 16384, 65536):
    sizes = {**extents(8, 1024, 1024), axis: n}
    times.append(best(STREAM, sizes)[0][0].time_us)
  assert times == sorted(times)
  assert times[-1] > 2 * times[0]


def test_a_tile_of_runtime_rows_is_whole():
  numbers, tensors = replace(NUMBERS, tile=(32, 32)), {t.name: t for t in STREAM.tensors}
  one = features(STREAM.kernels[0], tensors, extents(1, 1024, 1024))
  fixed, free = (kernel_cost(one, numbers, H200, axes) for axes in ((), {"a0"}))
  full = cost(STREAM, extents(32, 1024, 1024), numbers)
  assert (free.registers, free.smem_bytes) == (full.registers, full.smem_bytes)
  assert fixed.time_us < free.time_us <= full.time_us


def test_a_row_kernel_grows_with_its_rows():
  times = [best(ROW, extents(n, 1024))[0][0].time_us for n in (1, 64, 4096, 262144)]
  assert times == sorted(times)


def test_never_faster_than_the_memory():
  sizes = extents(8, 16384, 16384)
  found = best(STREAM, sizes)[0][0]
  assert found.dram_bytes == 2 * (8 * 16384 * 2 + 16384 * 16384)
  assert found.time_us >= found.dram_bytes / (H200.stream_tbps * 1e6)
  assert found.time_us >= H200.launch_us + LATENCY_US


def test_bytes_are_counted_once_from_dram():
  sizes = extents(16, 1024, 1024)
  one, two = (cost(STREAM, sizes, replace(NUMBERS, tile=(32, n))) for n in (16, 8))
  assert one.dram_bytes == two.dram_bytes


def test_a_slower_memory_is_slower():
  sizes = extents(8, 8192, 8192)
  half = replace(H200, stream_tbps=H200.stream_tbps / 2)
  assert cost(STREAM, sizes, NUMBERS, half).time_us > cost(STREAM, sizes, NUMBERS).time_us


@pytest.mark.parametrize("sizes", [(1, 64, 16), (8, 4096, 4096), (11, 1000, 24), (16, 512, 50257)])
def test_numbers_respect_the_limits(sizes):
  found = best(STREAM, extents(*sizes))
  assert found
  times = [c.time_us for c, _ in found]
  assert times == sorted(times)
  for c, p in found:
    assert c.registers <= MAX_REGISTERS
    assert c.smem_bytes <= H200.smem_bytes
    assert 1 <= p.cluster <= H200.max_cluster
    assert len(p.tile) == 2
    assert p.loop_tile == 32 * p.warps
    assert sizes[1] % p.cluster == 0
  assert found == best(STREAM, extents(*sizes))


def test_no_clusters_where_the_target_has_none():
  plain = replace(H200, has_clusters=False)
  sizes = extents(8, 16384, 64)
  assert any(p.cluster > 1 for _, p in best(STREAM, sizes))
  assert all(p.cluster == 1 for _, p in best(STREAM, sizes, plain))


def test_points_that_do_not_fit_are_counted():
  dropped = Counter()
  tensors = {t.name: t for t in ROW.tensors}
  long = 16 * 32 * MAX_PER_THREAD + 1
  assert solve(ROW.kernels[0], tensors, extents(4, long), H200, pruned=dropped) == ()
  assert sum(dropped.values()) == 5
  assert solve(ROW.kernels[0], tensors, extents(4, 4096), H200)
  tensors = {t.name: t for t in STREAM.tensors}
  tiny = replace(H200, smem_bytes=100)
  assert solve(STREAM.kernels[0], tensors, extents(8, 512, 64), tiny, pruned=dropped) == ()
  assert dropped["shared memory"] > 0


def test_keep():
  tensors = {t.name: t for t in STREAM.tensors}
  sizes = extents(8, 1024, 1024)
  assert len(solve(STREAM.kernels[0], tensors, sizes, H200, keep=2)) == 2


def test_a_row_that_is_stored_across_memory_moves_sectors():
  text = PROGRAMS["exponentials_stored_across"]
  sizes, params = extents(4096, 128), KernelParams(tile=(1,))
  across, along = (cost(g, sizes, params) for g in (parse_ugraph(text), ROW))
  elements = 4096 * 128
  assert along.dram_bytes == 4 * elements
  assert across.dram_bytes == (2 + 2 * SECTOR_BYTES) * elements
  assert across.time_us > along.time_us


@pytest.mark.parametrize(("rows", "length", "times"), [(131072, 128, 8), (8192, 16, 6), (64, 64, 1)])
def test_many_short_rows_share_blocks(rows, length, times):
  sizes = extents(rows, length)
  (first, params), *_ = best(ROW, sizes)
  alone = cost(ROW, sizes, KernelParams((1,), warps=params.warps))
  assert (params.tile[0] > 1) == (times > 1)
  assert alone.time_us >= times * first.time_us
  assert 32 * params.warps // params.tile[0] <= 32 or times == 1


@pytest.mark.parametrize(
  ("places", "size"), [("in a0 a1@2/64", 2), ("in a0 a1 @2/3", 6), ("in a0 a1 @0/3 @1/9", 32)]
)
def test_a_part_that_is_one_element_of_every_row_costs_more(places, size):
  tensor = parse_ugraph(f"ugraph 1\ntensor i0 f16[a0,a1] input {places}\n").tensors[0]
  assert element_bytes(tensor) == moved_bytes(ROW.kernels[0], tensor) == size


#: A row times weights of four bits with a scale for 128 of them.
PACKED = """ugraph 1
tensor i0 f16[a0] input
tensor i1 q4[a1,a0] weight
tensor i2 f16[a1,a0] weight in a1 a0*128
tensor o0 f16[a1] output
kernel k0 grid=a1 cluster=a0 loop=a0
  %0 = load i0 imap=- cmap=a0 fmap=a0 : f16[a0] loop B_frag
  %1 = load i1 imap=a1 cmap=a0 fmap=a0 : q4[a1,a0] loop A_frag
  %2 = load i2 imap=a1 cmap=a0 fmap=a0 : f16[a1,a0] loop A_frag
  %3 = cast %1 : f32[a0,a1] loop A_frag
  %4 = cast %2 : f32[a0,a1] loop A_frag
  %5 = mul %3 %4 : f32[a0,a1] loop A_frag
  %6 = cast %5 : f16[a0,a1] loop A_frag
  %7 = matmul[a0] %6 %0 : f32[a1] loop C_frag
  %8 = acc_sum %7 : f32[a1] post column
  %9 = red_sum %8 : f32[a1] post column
  %10 = cast %9 : f16[a1] post column
  save o0 = %10 omap=a1
"""


def test_packed_weights_like_warps_more_than_stages():
  """In the order in which they were measured (bench/results/h100/packed_deep.json)."""
  graph, sizes = parse_ugraph(PACKED), extents(14336, 4096)
  points = [KernelParams((16,), 1, 128 * warps, warps, 16 // warps) for warps in (16, 8, 4, 2)]
  times = [cost(graph, sizes, p, H100).time_us for p in points]
  assert times == sorted(times) and times[0] + 2 < times[-1]
