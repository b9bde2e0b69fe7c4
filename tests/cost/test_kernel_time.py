"""The formula that reads thread graphs: what it has to say anyway, and times of an H200."""

import math
from dataclasses import fields, replace

import pytest
from golden_graphs import golden_graph
from search_programs import PROGRAMS
from transposed_keys import transposed_keys

from mirage_onnx.cost.counts import BlockCounts, counts_of
from mirage_onnx.cost.kernel_time import CostWeights, lowered_us, time_us
from mirage_onnx.ir.ugraph import KernelParams, UGraph, ugraph_extents
from mirage_onnx.lower.choice import lowered
from mirage_onnx.superopt.tiled_numbers import solve_tiled, tiled_cost
from mirage_onnx.target import H200

#: First kernels at full size, cold and alone: bench/results/h200/tiled_sweep.json.
MEASURED_US = [
  ("attention_additive_mask", "tile=128,32,1 cluster=2 loop_tile=64 warps=8 stages=4", 67.8),
  ("batchnorm_linear", "tile=64,64 cluster=8 loop_tile=16 warps=2 stages=3", 64.5),
  ("codebook_distances", "tile=64,32 cluster=1 loop_tile=0 warps=4 stages=1", 14.5),
  ("expert_mlp", "tile=256,1,8 cluster=2 loop_tile=64 warps=4 stages=3", 73.1),
  ("gated_mlp_silu", "tile=8,8 cluster=1 loop_tile=0 warps=8 stages=1", 36.4),
  ("grouped_query", "tile=256,1,4 cluster=1 loop_tile=64 warps=4 stages=2", 16.5),
  ("vocabulary_log_partition", "tile=64,8 cluster=1 loop_tile=0 warps=8 stages=1", 121.9),
]

#: Attention over 3000 keys by ranks of 375, on an H200 (bench/streaming_rows.py, 2026-11-26).
SHARES_US = [
  ("tile=128,1 cluster=8 loop_tile=32 warps=1 stages=2", 347.0),
  ("tile=128,1 cluster=8 loop_tile=16 warps=1 stages=4", 340.7),
  ("tile=128,1 cluster=8 loop_tile=32 warps=2 stages=2", 129.0),
]


def numbers(name):
  graph = golden_graph(name)
  return graph.kernels[0], {t.name: t for t in graph.tensors}, PROGRAMS[name]().extents


def expected(name, params):
  graph = golden_graph(name)
  kernel, tensors, extents = numbers(name)
  every = ugraph_extents(UGraph(tuple(tensors.values()), (kernel,)), [params], extents)
  return lowered_us(graph, kernel, every, params, H200)


@pytest.mark.parametrize(("name", "params", "time_us"), MEASURED_US)
def test_expected_is_near_what_was_measured(name, params, time_us):
  found = expected(name, KernelParams.from_text(params))
  assert time_us / 1.5 < found < 1.5 * time_us


@pytest.mark.parametrize(("params", "time_us"), SHARES_US)
def test_elements_that_are_copied_one_by_one_are_waited_for(params, time_us):
  graph, params = transposed_keys(), KernelParams.from_text(params)
  extents = {"a0": 64, "a1": 3000, "a2": 128, "a3": 128}
  found = lowered_us(graph, graph.kernels[0], extents, params, H200)
  assert time_us / 1.4 < found < 1.4 * time_us
  whole = lowered_us(graph, graph.kernels[0], extents | {"a1": 3072}, params, H200)
  assert whole < 0.6 * found


@pytest.mark.parametrize("name", [n for n, _, _ in MEASURED_US])
def test_code_takes_longer_than_what_it_has_to_do(name):
  for cost, params in solve_tiled(*numbers(name), H200, keep=12):
    assert expected(name, params) > cost.time_us


def test_what_ranks_read_of_each_other_is_waited_for():
  """Of 8 ranks 7 are others. (Attention by ranks of 128x64, an H200: 90 us where 54 were said.)"""
  graph = golden_graph("attention_additive_mask")
  kernel, tensors, extents = numbers("attention_additive_mask")
  found = {}
  for ranks in (1, 2, 8):
    params = KernelParams((128, 32, 1), cluster=ranks, loop_tile=64, warps=8, stages=2)
    every = ugraph_extents(UGraph(tuple(tensors.values()), (kernel,)), [params], extents)
    found[ranks] = counts_of(lowered(graph, kernel, params, every, H200)).remote_bytes
  assert found[1] == 0 < found[2]
  assert found[8] == 7 * found[2]


def test_numbers_that_do_not_fit():
  params = KernelParams((256, 64, 1), cluster=8, loop_tile=256, warps=1, stages=4)
  assert tiled_cost(*numbers("attention_additive_mask"), params, H200) is None
  assert math.isinf(expected("attention_additive_mask", params))


COUNTS = BlockCounts(
  blocks=1056, warps=4, iterations=16, stages=3, smem_bytes=32768, held=64, loaded_bytes=1 << 17,
  stored_bytes=1 << 12, shared_bytes=1 << 18, requests=1 << 13, shared_requests=1 << 14, trips=8, mma=4096,
  lanes=1 << 15, special=1 << 12, barriers=20, cluster_barriers=1, remote_bytes=1 << 16,
)  # fmt: skip
MOVED = 64 << 20


@pytest.mark.parametrize("name", [f.name for f in fields(BlockCounts) if f.name not in ("warps", "stages")])
def test_more_of_anything_takes_no_less(name):
  less = time_us(COUNTS, MOVED, 0.5, H200, CostWeights())
  more = replace(COUNTS, **{name: 2 * getattr(COUNTS, name)})
  assert time_us(more, MOVED, 0.5, H200, CostWeights()) >= less


@pytest.mark.parametrize("name", ["stages"])
def test_what_is_in_flight_hides_waiting(name):
  deeper = replace(COUNTS, **{name: 2 * getattr(COUNTS, name)})
  assert time_us(deeper, MOVED, 0.5, H200, CostWeights()) < time_us(COUNTS, MOVED, 0.5, H200, CostWeights())


def test_half_a_gpu_takes_longer():
  half = replace(H200, multiprocessors=66, stream_tbps=2.3, l2_tbps=2.75, mma_tflops=390.0)
  whole = time_us(COUNTS, MOVED, 0.5, H200, CostWeights())
  assert 1.3 * whole < time_us(COUNTS, MOVED, 0.5, half, CostWeights()) < 2.5 * whole


def test_nothing_takes_less_than_a_launch():
  none = BlockCounts(blocks=1, warps=1)
  assert time_us(none, 0, 0.5, H200, CostWeights()) >= H200.launch_us * CostWeights().start
