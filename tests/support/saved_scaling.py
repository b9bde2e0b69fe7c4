"""A published graph at small shapes: the same program with every number scaled down.

Grid dimensions, loops, chunks and input dimensions are replaced together; all other shapes follow.
"""

import copy

from saved_writer import recorded

#: Input dimension -> what it becomes; others stay.
SIZES = {4096: 32, 6144: 32, 1024: 16, 256: 16, 64: 4, 32: 4, 16: 8}
MOST_BLOCKS, MOST_ITERATIONS, CHUNK = 4, 2, 4


def scaled_shape(shape):
  return tuple(SIZES.get(n, n) for n in shape)


def scaled_down(graph):
  """``graph`` with at most ``MOST_BLOCKS`` blocks per grid dimension, and so on."""
  small = copy.deepcopy(graph)
  for op in small:
    if op["op_type"] == "kn_input_op":
      t = op["output_tensors"][0]
      rank = t["num_dims"]
      t["dim"][:rank] = scaled_shape(tuple(t["dim"][:rank]))
    elif "bgraph" in op:
      block = op["bgraph"]
      block["grid_dim"] = {g: min(n, MOST_BLOCKS) for g, n in block["grid_dim"].items()}
      block["forloop_range"] = min(block["forloop_range"], MOST_ITERATIONS)
      block["reduction_dimx"] = CHUNK
  return recorded(small)
