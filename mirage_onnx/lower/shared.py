"""Tiles in shared memory: what lies in them, and where they lie.

A tile of a loaded tensor has the tensor's axis order and type, with rows padded to an odd number of
16 bytes, so that the eight rows of a matrix load lie in different banks. What warps or ranks
exchange is a float slot per register and thread.
"""

from dataclasses import dataclass
from math import prod

from mirage_onnx.ir.dtype import DType
from mirage_onnx.lower.pieces import Piece
from mirage_onnx.lower.tensor_view import TensorView

#: The element types that tiles have; of truth values only loads have some (``lowering.py``).
STORED = frozenset({DType.F16, DType.BF16, DType.F32, DType.I32})


@dataclass(frozen=True, slots=True)
class SharedTile:
  """``order``: pieces, slowest first; the last is contiguous. ``copies``: stages of the ring.

  ``zeroed``: elements that do not exist hold zeros. ``swizzled``: the last piece, a multiple of 64, lies
  in rows of 128 bytes as ``wgmma`` reads them (``swizzled`` of device/warpgroup.cuh).
  """

  name: str
  dtype: DType
  order: tuple[Piece, ...]
  copies: int = 1
  slots: int = 0
  zeroed: bool = False
  swizzled: bool = False

  @property
  def rows(self) -> int:
    """All that the last piece is repeated for."""
    return prod(p.length for p in self.order[:-1])

  @property
  def pitch(self) -> int:
    """Elements from one row to the next: an odd number of chunks of 16 bytes."""
    if not self.order:
      return 1
    if len(self.order) == 1 or self.swizzled:
      return self.order[-1].length
    return (-(-self.order[-1].length // self.chunk) | 1) * self.chunk

  @property
  def chunk(self) -> int:
    """Elements of 16 bytes."""
    return 128 // self.dtype.bits

  @property
  def elements(self) -> int:
    """Of one copy, a multiple of 16 bytes."""
    count = self.slots or prod(p.length for p in self.order[:-1]) * self.pitch
    return -(-count // self.chunk) * self.chunk

  @property
  def size_bytes(self) -> int:
    return self.elements * self.copies * self.dtype.bits // 8

  @property
  def unit_bytes(self) -> int:
    """Of what its pointer counts: an element, or a byte of packed ones."""
    return 1 if self.dtype.is_packed else self.dtype.size_bytes

  @property
  def units(self) -> int:
    """From one copy to the next."""
    return self.elements * self.dtype.bits // (8 * self.unit_bytes)

  def strides(self) -> dict[Piece, int]:
    """Elements from one index of a piece to the next."""
    found, step = {}, 1
    for number, p in enumerate(reversed(self.order)):
      found[p] = step
      step *= self.pitch if number == 0 else p.length
    return found


def in_chunks(view: TensorView, tile: SharedTile) -> bool:
  """Whether rows of the tile begin with chunks of 16 bytes of the tensor."""
  if not tile.order:
    return False
  chunk, last = tile.chunk, tile.order[-1]
  in_memory = view.rows_begin_with(last.axis, chunk) and view.together(last.axis, chunk)
  return in_memory and last.aligned % chunk == 0 and tile.pitch % chunk == 0
