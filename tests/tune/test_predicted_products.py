"""Products of many rows, predicted: fed by a warp of its own where they are long, or as they were found."""

import pytest
from small_models import Net, region_of, search_region

from mirage_onnx.target import H200, get_target
from mirage_onnx.tune.predict import as_expected, doubt, expected_us
from mirage_onnx.tune.predicted_products import LEAST_US, OFF, with_fed


def product(rows, depth, columns):
  net = Net(seed=1)
  x = net.input(rows, depth)
  return region_of(net.model(net.Tanh(net.Add(net.MatMul(x, net.weight(depth, columns)), net.weight(columns)))))


@pytest.fixture(scope="module")
def large():
  region = product(4096, 768, 3072)
  return region, search_region(region)


def test_long_products_are_fed(large):
  region, result = large
  expected = as_expected(region, result, H200)
  first = expected.candidates[0]
  assert any(p.teams for p in first.candidate.params)
  assert len(expected.candidates) > len(result.candidates)
  us = expected_us(region, first.candidate, H200)
  assert first.candidate.predicted_us == us
  assert 35 < us < 55, "bench/results/h200/fed_products.json: 45 with more behind it"
  without = min(expected_us(region, v.candidate, H200) for v in result.candidates)
  assert us < 0.5 * without
  assert doubt(region, first.candidate, H200) == pytest.approx(OFF)


def test_short_ones_are_not():
  region = product(256, 768, 768)
  result = search_region(region)
  assert with_fed(region, result.candidates, H200) == ()
  assert as_expected(region, result, H200).candidates
  assert LEAST_US > expected_us(region, result.candidates[0].candidate, H200)


def test_no_gpu_without_the_instruction(large):
  region, result = large
  assert with_fed(region, result.candidates, get_target("a100")) == ()
