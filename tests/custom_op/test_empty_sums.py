"""Runs in which a kernel would sum over nothing: right, or refused by the kernel's argument."""

import pytest

from mirage_onnx.custom_op.expr import ExprError, dim
from mirage_onnx.custom_op.runtime_sizes import RuntimeSizes, needs_elements, product
from mirage_onnx.ir import parse_ugraph

TEXT = """ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f16[a1,a2] input
tensor o0 f32[a0,a2] output
kernel k0 grid=a2,a0 cluster=- loop=a1
  %0 = load i0 imap=-,a0 cmap=- fmap=a1 : f16[a0,a1] loop shared
  %1 = load i1 imap=a2,- cmap=- fmap=a1 : f16[a1,a2] loop shared
  %2 = matmul[a1] %0 %1 : f32[a0,a2] loop C_frag
  %3 = acc_sum %2 : f32[a0,a2] post C_frag
  %4 = const[1/8] : f32[] post uniform
  %5 = mul %3 %4 : f32[a0,a2] post C_frag
  save o0 = %5 omap=a2,a0
"""


def needs(text, axis="a1"):
  graph = parse_ugraph(text)
  return needs_elements(graph, graph.kernels[0], axis)


def test_sums_are_zero_and_their_quotients_are_not():
  assert not needs(TEXT)
  assert not needs(TEXT, "a0")  # without rows there are no blocks
  assert needs(TEXT.replace("mul %3 %4", "div %3 %4"))
  assert needs(TEXT.replace("mul %3 %4", "mul %3 %3"))
  assert needs(TEXT.replace("acc_sum", "acc_max").replace("matmul[a1] %0 %1", "rmax[a1] %0"))
  temp = TEXT.replace("tensor o0 f32[a0,a2] output", "tensor o0 f32[a0,a2] temp")
  assert needs(temp)  # who reads it may divide by it


@pytest.mark.parametrize("divides", [False, True])
def test_arguments(divides):
  graph = parse_ugraph(TEXT.replace("mul %3 %4", "div %3 %4") if divides else TEXT)
  sizes = RuntimeSizes({"a2": 8}, {"a0": dim(0, 0), "a1": dim(0, 1)})
  results = product([dim(0, 0), 8])
  argument = sizes.argument("a1", graph, graph.kernels[0], results).value
  assert argument.eval([(3, 5), (5, 8)]) == 5
  assert argument.eval([(0, 0), (0, 8)]) == 0  # nothing is computed
  with pytest.raises(ExprError, match="divisor below 1"):
    argument.eval([(3, 2**28 + 1), (2**28 + 1, 8)])
  if not divides:
    assert argument.eval([(3, 0), (0, 8)]) == 0
  else:
    with pytest.raises(ExprError, match="divisor below 1"):
      argument.eval([(3, 0), (0, 8)])
