"""The table of block operators against what the other tables of the IR say."""

import re

import numpy as np
import pytest

from mirage_onnx.compiler.compile import DEVICE_HEADERS
from mirage_onnx.ir import block_ops as b
from mirage_onnx.ir import term as t
from mirage_onnx.ir import ugraph
from mirage_onnx.ir.block_ops import MERGES, OPERATORS, Kind
from mirage_onnx.ir.functions import ELEMENTWISE

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("merge", MERGES, ids=lambda m: m.name)
def test_a_merge_is_associative_and_has_its_neutral_element(merge):
  merged = ELEMENTWISE[merge.function].reals
  x, y, z = RNG.integers(-9, 9, (3, 100)).astype(float)
  assert (merged(x, merged(y, z)) == merged(merged(x, y), z)).all() and (merged(x, y) == merged(y, x)).all()
  assert (merged(x, merge.neutral) == x).all()
  assert merge.reduction in t.REDUCTIONS


@pytest.mark.parametrize("merge", MERGES, ids=lambda m: m.name)
def test_the_device_has_it(merge):
  (body,) = re.findall(
    rf"struct {merge.cuda} {{(.*?)\n}};", (DEVICE_HEADERS / "numeric.cuh").read_text(), re.S
  )
  assert "neutral()" in body and "combine(" in body


def test_what_goes_over_something_merges():
  for op, row in OPERATORS.items():
    assert (row.merge is not None) == (row.kind in b.OVER), op
    assert (row.arity == 0) == (op in b.LEAVES)
    assert row.arity == 2 if row.kind in (Kind.CONTRACTION, Kind.RESCALED) else row.arity < 2
  assert not {*OPERATORS} & {*ELEMENTWISE}


def test_names_by_what_they_do():
  assert {"sum", "rmax"} == b.REDUCTIONS and {"sum", "rmax", "matmul"} == b.OVER_AXES
  assert {"acc_sum", "acc_max", "acc_scaled"} == b.ACCUMULATORS
  assert {"red_sum", "red_max"} == b.CLUSTER
  assert {"run_max", "prev"} <= b.RUNNING
  assert {"rmax", "acc_max", "run_max", "red_max"} == b.MAXIMA
  assert {"sum", "acc_sum", "red_sum"} <= b.SUMS and not b.SUMS & {"matmul", "acc_scaled"}
  assert b.kind_of("exp") is None and b.kind_of("load") is Kind.LOAD
  assert b.merge_of("acc_scaled") is b.SUM
  with pytest.raises(AssertionError, match="load"):
    b.merge_of("load")


def test_each_operator_is_explained():
  """Where block operators are: ``ir/ugraph.py``."""
  told = ugraph.BlockOp.__doc__
  for op in {*OPERATORS} - {"rmax", "run_sum"}:
    assert re.search(rf"\b{op}\b", told), op
