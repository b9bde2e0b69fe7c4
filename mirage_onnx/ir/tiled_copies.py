"""Large arrays copied into another order of memory: in tiles that a cache holds, some side by side.

Numpy goes through all of one dimension for each element of the other, and nothing that a cache has read is
still there: five times as long.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from mirage_onnx.cores import available_cores

#: Elements of a tile: along what is innermost in the copy, and in the source. Lines of the source are as far
#: apart as its rows, often a power of two: a cache of 8 or 12 ways holds no more than 16 of those.
TILE = 16, 1024
#: Smaller arrays are copied by numpy; bytes of a part of a larger one, and parts that are copied at a time.
LEAST_BYTES, PART_BYTES, THREADS = 1 << 20, 1 << 24, 4


def contiguous(x: np.ndarray) -> np.ndarray:
  """``x`` in C order: itself, or a copy."""
  if x.flags.c_contiguous or x.nbytes < LEAST_BYTES or not x.ndim:
    return np.ascontiguousarray(x)
  made = np.empty(x.shape, x.dtype)
  rows = max(1, PART_BYTES // max(1, x.nbytes // x.shape[0]))
  parts = [slice(at, at + rows) for at in range(0, x.shape[0], rows)]
  with ThreadPoolExecutor(min(THREADS, available_cores(), len(parts)), thread_name_prefix="order") as pool:
    for _ in pool.map(lambda at: copy_tiles(x[at], made[at]), parts):
      pass
  return made


def copy_tiles(x: np.ndarray, made: np.ndarray) -> None:
  """Copy elements. ``made`` is in C order, ``x`` a transposed one."""
  last, inner = x.ndim - 1, int(np.argmin(np.abs(x.strides)))
  if inner == last:
    made[...] = x
    return
  for i in range(0, x.shape[inner], TILE[1]):
    for j in range(0, x.shape[last], TILE[0]):
      at = [slice(None)] * x.ndim
      at[inner], at[last] = slice(i, i + TILE[1]), slice(j, j + TILE[0])
      made[tuple(at)] = x[tuple(at)]
