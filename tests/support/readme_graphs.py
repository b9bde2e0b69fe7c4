"""The kernel graphs of the original's README, and µGraphs of its attention written by hand."""

from golden_texts import PROGRAMS

import mirage_onnx as mi

#: One kernel: a block has some rows of a head and walks the positions.
ONE_KERNEL = PROGRAMS["one_kernel"]

#: Two kernels: the positions are split over blocks, whose partial results the second adds.
SPLIT = PROGRAMS["split"]

ONE_KERNEL_NUMBERS = ["tile=16,1 cluster=1 loop_tile=64 warps=4 stages=1"]
SPLIT_NUMBERS = [
  "tile=256,64,1 cluster=1 loop_tile=64 warps=4 stages=1",
  "tile=4,1 cluster=1 loop_tile=0 warps=4 stages=1",
]


def attention(heads=2, rows=256, depth=64, positions=4096):
  """Group-query attention of the README: no maximum, no scale."""
  graph = mi.new_kernel_graph()
  q = graph.new_input(dims=(heads, rows, depth), dtype=mi.float16)
  k = graph.new_input(dims=(heads, depth, positions), dtype=mi.float16)
  v = graph.new_input(dims=(heads, positions, depth), dtype=mi.float16)
  e = graph.exp(graph.matmul(q, k))
  graph.matmul(graph.div(e, graph.reduction(e, 2)), v)
  return graph
