"""Which space the pipeline searches for a region, and in which bound."""

from dataclasses import replace

import numpy as np
import pytest
from search_programs import PROGRAMS
from small_models import Net, region_of, search_region

from mirage_onnx.superopt.result import SearchBound, widened
from mirage_onnx.superopt.space import ALL, EMITTED, space_of


@pytest.mark.parametrize(
  ("program", "space"),
  [("rmsnorm_linear", EMITTED), ("softmax_rows", EMITTED), ("gated_mlp_silu", EMITTED),
   ("attention", ALL), ("decode", ALL), ("linear_attention", ALL)],
)  # fmt: skip
def test_all_is_searched_where_activations_meet(program, space):
  assert space_of(PROGRAMS[program]()) == space


@pytest.mark.parametrize(("batch", "rows"), [(1, 128), (2, 512)])
def test_all_is_searched_where_heads_are_written_apart(batch, rows):
  """x W + b as (batch, heads, rows, 64): one tiled kernel, and no streaming one."""
  net = Net()
  y = net.Add(net.MatMul(net.input(batch, rows, 512), net.weight(512, 512)), net.weight(512))
  y = net.Transpose(net.Reshape(y, [0, 0, 8, 64]), perm=[0, 2, 1, 3])
  region = region_of(net.model(net.Mul(y, 0.125)))
  assert space_of(region) == ALL
  found = search_region(region, space=ALL)
  assert found.candidates
  (kernel,) = found.candidates[0].candidate.ugraph.kernels
  assert any(op.op == "matmul" for op in kernel.ops)
  narrow = search_region(region, space=EMITTED).candidates
  assert all(k.loop is None for c in narrow for k in c.candidate.ugraph.kernels)


def test_streaming_kernels_contract_no_fp32():
  net = Net(np.float32)
  region = region_of(net.model(net.MatMul(net.rms(net.input(8, 64)), net.weight(64, 32))))
  report = search_region(region, space=EMITTED).report
  assert "DTYPE: a contraction needs operands of one 16-bit type" in map(str, report.refused)


def test_the_bound_of_a_wider_space_is_no_narrower():
  own = replace(SearchBound(), kernels=4, states=100)
  assert widened(own, EMITTED) == own
  assert widened(own, ALL) == replace(own, kernels=4, reads=3, states=60_000)
