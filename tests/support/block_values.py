"""The numbers of block values by the letter of ``ir/ugraph.py``, for all blocks and iterations.

Each axis is two dimensions of an array, (which tile, where in the tile); what does not vary over a
dimension has extent 1 there. Nothing is shared with ``verify/interpret_ugraph.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mirage_onnx.ir.functions import ELEMENTWISE


@dataclass(frozen=True)
class Tiles:
  """``extents`` and how many tiles each axis is cut into; ``inputs``: values by axes, in order
  of the axes here."""

  extents: Mapping[str, int]
  counts: Mapping[str, int]
  loop: str | None
  inputs: Mapping[str, tuple[tuple[str, ...], np.ndarray]]

  @property
  def axes(self):
    return tuple(sorted(self.extents))

  def load(self, op):
    axes, data = self.inputs[op.tensor]
    return self.tiled(axes, data)

  def tiled(self, axes, data):
    data = np.transpose(data, np.argsort(axes))
    shape = []
    for a in self.axes:
      count = self.counts.get(a, 1) if a in axes else 1
      shape += [count, self.extents[a] // count] if a in axes else [1, 1]
    return data.reshape(shape)

  def place(self, axis):
    """The dimension "which tile" of an axis; the next is "where in the tile"."""
    return 2 * self.axes.index(axis)


def evaluate(op, args, tiles):
  inner = tuple(tiles.place(a) + 1 for a in op.reduced)
  loop = tiles.place(tiles.loop) if tiles.loop else 0
  with np.errstate(all="ignore"):
    match op.op:
      case "sum":
        return args[0].sum(axis=inner, keepdims=True)
      case "rmax":
        return args[0].max(axis=inner, keepdims=True)
      case "matmul":
        return (args[0] * args[1]).sum(axis=inner, keepdims=True)
      case "acc_sum":
        return _every(args[0], loop, tiles).sum(axis=loop, keepdims=True)
      case "acc_max":
        return _every(args[0], loop, tiles).max(axis=loop, keepdims=True)
      case "run_max":
        return np.maximum.accumulate(_every(args[0], loop, tiles), axis=loop)
      case "prev":
        x = np.moveaxis(_every(args[0], loop, tiles), loop, 0)
        first = np.full_like(x[:1], np.finfo(np.float32).min)
        return np.moveaxis(np.concatenate([first, x[:-1]]), 0, loop)
      case "acc_scaled":
        x, f = (np.moveaxis(_every(a, loop, tiles), loop, 0) for a in args)
        total = np.zeros(np.broadcast_shapes(x[0].shape, f[0].shape))
        for xi, fi in zip(x, f, strict=True):
          total = total * fi + xi
        return np.expand_dims(total, loop)
    result = ELEMENTWISE[op.op].reals(*args)
  return result


def _every(x, loop, tiles):
  """With one entry per iteration, also of a value that does not vary over them."""
  assert tiles.loop is not None
  shape = list(x.shape)
  shape[loop] = tiles.counts[tiles.loop]
  return np.broadcast_to(x, shape)
