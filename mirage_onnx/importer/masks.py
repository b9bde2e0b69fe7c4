"""Constants that hide all but a band of the columns of each row: causal masks, windows.

Only what the data say counts, not where a model uses them: a matrix of truth values, or of floats that is
added to something, of which each row shows the columns near its place (``ir/band.py``).
"""

from collections.abc import Callable, Iterable, Mapping
from math import prod

import numpy as np

from mirage_onnx.importer.causal import implied
from mirage_onnx.ir import DType, Node, Tensor
from mirage_onnx.ir.band import Band, band_of

#: Columns from which on iterations are worth leaving out, and the most elements that are looked at.
LEAST_COLUMNS, MOST_ELEMENTS = 128, 1 << 24
#: What hides a float when it is added (``lower/unseen.py``).
HIDES = -65504.0


def bands(
  nodes: Iterable[Node], tensors: Mapping[str, Tensor], weights: frozenset[str],
  read: Callable[[str], np.ndarray | None],
) -> dict[str, Band]:  # fmt: skip
  """Of weights that have one; its axes are the numbers of two dimensions."""
  found = {}
  for name in sorted(_masks(nodes, tensors, weights)):
    shape = tensors[name].shape or ()
    rows, columns = (d for d, n in enumerate(shape) if n != 1)
    stored = implied(name)
    data = np.frombuffer(stored.raw_data, bool).reshape(tuple(stored.dims)) if stored else read(name)
    if data is None:
      continue
    matrix = np.asarray(data).reshape(int(shape[rows]), int(shape[columns]))
    if band := band_of(matrix, str(rows), str(columns), HIDES):
      found[name] = band
  return found


def _masks(nodes: Iterable[Node], tensors: Mapping[str, Tensor], weights: frozenset[str]) -> set[str]:
  """Weights that are matrices of truth values, or added to something; a product's are not read."""
  found = set()
  for step in (s for n in nodes for s in n.steps):
    for i in step.inputs:
      if not isinstance(i, str) or i not in weights or i in found or i not in tensors:
        continue
      x = tensors[i]
      if x.shape is None or not all(isinstance(d, int) for d in x.shape) or x.dtype is None:
        continue
      size = [int(d) for d in x.shape if d != 1]
      matrix = len(size) == 2 and size[1] >= LEAST_COLUMNS and prod(size) <= MOST_ELEMENTS
      if matrix and (x.dtype is DType.BOOL or (x.dtype.is_float and step.op == "add")):
        found.add(i)
  return found
