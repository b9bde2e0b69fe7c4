"""Attention by wgmma: the cases that are timed have numbers, grouped heads among them."""

import pytest
from warpgroup_attention import CASES

from mirage_onnx.ir import parse_ugraph
from mirage_onnx.superopt.warpgroup_chains import chained_points
from mirage_onnx.target import H100


@pytest.mark.parametrize("name", CASES)
def test_numbers(name):
  """Heads of a group are the queries' alone: one a block, and no columns (then there were no numbers)."""
  case = CASES[name]
  graph = parse_ugraph(case.text)
  (kernel,), tensors = graph.kernels, {t.name: t for t in graph.tensors}
  found = chained_points(kernel, tensors, case.extents, H100, 4)
  assert found and kernel.grid[0] == "a3"
  for _, p in found:
    assert p.tile[0] in (64, 128, 192) and {*p.tile[1:]} <= {1}
