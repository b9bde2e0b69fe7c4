"""A tensor in device memory as the copy engine is told of it: rows of which boxes are copied."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorMap:
  """``rows`` of ``columns`` elements of two bytes, ``pitch`` elements apart, from element ``first`` on.

  A copy is a box of ``box`` rows and 64 columns, 128 bytes a row, swizzled as tensor cores read them;
  what of it lies beyond the rows or the columns is zero and is not read.
  """

  tensor: str
  rows: int
  columns: int
  pitch: int
  box: int
  first: int = 0

  @property
  def words(self) -> tuple[int, int, int, int, int]:
    """All but the tensor, as a plan and the emulator have them."""
    return self.first, self.rows, self.columns, self.pitch, self.box


#: Columns of a box.
BOX_COLUMNS = 64
