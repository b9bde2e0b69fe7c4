"""What a streaming kernel loads before its loop for what stands behind it, and where totals are read."""

import pytest
from golden_graphs import golden_graph

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.ir import KernelParams
from mirage_onnx.target import H200


def _text(rank):
  """Of x W^T + (x A^T) B^T: B is read behind the loop, ``rank`` elements of a row."""
  graph = golden_graph("lora")
  (kernel,) = graph.kernels
  (low,) = {a for op in kernel.ops if op.op == "matmul" and op.phase == "post" for a in op.reduced}
  columns, _ = kernel.grid
  extents = {a: 8 for t in graph.tensors for a in t.axes} | {columns: 4096, kernel.loop: 4096, low: rank}
  params = KernelParams((32, 8), cluster=4, loop_tile=128, warps=4, stages=1)
  return emit_kernel(graph, kernel, params, extents, H200).text


def test_vectors_of_a_contraction_are_on_their_way_through_the_loop():
  before, _, behind = _text(16).partition("for (int round")
  assert before.count("Eight<F16> e") == 1
  assert "load8" not in behind.partition("ptx::sync_block")[2]


@pytest.mark.parametrize("rank", [12, 128])
def test_vectors_that_are_none_or_too_many_are_not(rank):
  """12 elements are no whole vectors; 128 are more registers than there are for them."""
  assert "Eight<F16> e" not in _text(rank)


def test_a_total_that_is_read_once_is_read_from_the_ranks():
  """It is summed over the cluster where it becomes a tile, without a tile and a barrier of its own."""
  meeting = _text(16).partition("ptx::cluster_sync")[2].partition("Output elements")[0]
  assert meeting.count("cluster_reduce<Sum, 4>") == meeting.count("sync_block") == 1
