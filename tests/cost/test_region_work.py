"""Operations, bytes and the floor, against figures worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from golden_models import MODELS
from goldens import region as golden_region
from small_models import Net, region_of, search_region

from mirage_onnx.cost.region_work import Flops, region_work
from mirage_onnx.target import H200


def test_a_contraction_with_a_norm(net):
  """x (8x64), squared, averaged, +eps, root, divided; times gamma; times a 64x32 weight."""
  y = net.MatMul(net.rms(net.input(8, 64), net.weight(64)), net.weight(64, 32))
  work = region_work(region_of(net.model(y)))
  rows, wide = 8, 8 * 64
  assert work.flops == Flops(2 * 8 * 64 * 32, wide + wide + 2 * rows + 2 * wide)
  assert work.weight_bytes == 2 * (64 + 64 * 32)
  assert work.activation_bytes == 2 * (8 * 64 + 8 * 32)
  assert work.total_bytes == work.weight_bytes + work.activation_bytes


def test_casts_and_moves_are_no_operations_and_wide_types_have_more_bytes(net):
  x = net.cast(net.input(4, 32), np.float32)
  y = net.Transpose(net.Abs(net.Exp(x)), perm=[1, 0])
  work = region_work(region_of(net.model(y)))
  assert work.flops == Flops(0, 2 * 4 * 32)
  assert (work.weight_bytes, work.activation_bytes) == (0, 4 * 32 * (2 + 4))


def test_floor_is_the_slower_of_memory_and_tensor_cores():
  net = Net()
  thin = region_work(region_of(net.model(net.Abs(net.MatMul(net.input(8, 512), net.weight(512, 512))))))
  assert thin.floor_us(H200) == pytest.approx(
    H200.launch_us + (2 * (512 * 512 + 2 * 8 * 512)) / (H200.stream_tbps * 1e6)
  )
  net = Net()
  y = net.Abs(net.MatMul(net.input(4096, 512), net.weight(512, 2048)))
  thick = region_work(region_of(net.model(y)))
  operations = 2 * 4096 * 512 * 2048
  assert thick.flops.contraction == operations
  assert thick.floor_us(H200) == pytest.approx(H200.launch_us + operations / (H200.mma_tflops * 1e6))


@pytest.mark.parametrize("rows", [1, 16])
def test_no_candidate_is_predicted_below_the_floor(net, rows):
  """The cost model and the floor speak of the same bytes and operations."""
  y = net.rms(net.input(rows, 1024), net.weight(1024))
  region = region_of(net.model(net.MatMul(y, net.weight(1024, 1024))))
  floor_us = region_work(region).floor_us(H200)
  found = search_region(region).candidates
  assert found and all(v.candidate.predicted_us >= floor_us for v in found)


def test_every_golden_region_has_work():
  for name in MODELS:
    work = region_work(golden_region(name))
    assert work.flops.total > 0 and work.activation_bytes > 0


def test_a_name_that_no_axis_of_the_region_has_is_unknown(net):
  """An output that the model declares with a name of its own (model_fuzz, seed 63453)."""
  region = region_of(net.model(net.Tanh(net.Mul(net.input(4, 8), 0.5))))
  (out, *rest) = region.outputs
  named = replace(out, tensor=replace(out.tensor, shape=("n", 8)))
  work = region_work(replace(region, outputs=(named, *rest)))
  assert 0 < work.activation_bytes < region_work(region).activation_bytes
