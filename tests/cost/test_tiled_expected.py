"""The expected times of tiled kernels against times of an H200."""

import math

import pytest
from golden_graphs import golden_graph
from search_programs import PROGRAMS

from mirage_onnx.cost.tiled_expected import expected_tiled_us
from mirage_onnx.ir.ugraph import KernelParams
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


def numbers(name):
  graph = golden_graph(name)
  return graph.kernels[0], {t.name: t for t in graph.tensors}, PROGRAMS[name]().extents


@pytest.mark.parametrize(("name", "params", "time_us"), MEASURED_US)
def test_expected_is_near_what_was_measured(name, params, time_us):
  found = expected_tiled_us(*numbers(name), KernelParams.from_text(params), H200)
  assert time_us / 1.5 < found < 1.5 * time_us


@pytest.mark.parametrize("name", [n for n, _, _ in MEASURED_US])
def test_code_takes_longer_than_what_it_has_to_do(name):
  for cost, params in solve_tiled(*numbers(name), H200, keep=12):
    assert expected_tiled_us(*numbers(name), params, H200) > cost.time_us


def test_numbers_that_do_not_fit():
  params = KernelParams((256, 64, 1), cluster=8, loop_tile=256, warps=1, stages=4)
  assert tiled_cost(*numbers("attention_additive_mask"), params, H200) is None
  assert math.isinf(expected_tiled_us(*numbers("attention_additive_mask"), params, H200))
