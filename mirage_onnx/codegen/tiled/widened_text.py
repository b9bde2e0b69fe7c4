"""Packed weights on their way to wgmma as text: fragments of a step, and the next scales under way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage_onnx.codegen.index_text import times, total
from mirage_onnx.codegen.loads import TensorText, tag
from mirage_onnx.codegen.packed_operands import one
from mirage_onnx.codegen.source import Writer
from mirage_onnx.codegen.tiled.pieces_text import PiecesText
from mirage_onnx.codegen.tiled.spot import digit
from mirage_onnx.instructions import WGMMA
from mirage_onnx.ir import KTensor
from mirage_onnx.lower.assign import ProductForms
from mirage_onnx.lower.forms import Warps
from mirage_onnx.lower.shared import SharedTile
from mirage_onnx.lower.widened import Widened


@dataclass(frozen=True, slots=True)
class WidenedText:
  """One widened operand of a kernel as text."""

  index: int
  of: Widened
  product: ProductForms
  pieces: PiecesText
  warps: Warps
  extents: Mapping[str, int]

  @property
  def _each(self) -> int:
    """The depth of a step that a warp has."""
    return self.product.depth.length // self.warps.count((self.product.depth,))

  @property
  def _blocks(self) -> int:
    """Blocks of the depth that it meets in a step."""
    return max(1, self._each // self.of.repeat)

  def begin(self, w: Writer) -> None:
    """The first scales and zero points."""
    i = self.index
    w.line(f"unsigned short c{i}[2][{self._blocks}];", i)
    if self.of.zeros is not None:
      w.line(f"unsigned char z{i}[2][{self._blocks}];", i)
    if self.of.scales is None:
      with w.loop("b", self._blocks) as b:
        w.line(f"c{i}[0][{b}] = c{i}[1][{b}] = {one(self.of.half)};")
    self._fetch(w, "0")

  def fragments(self, w: Writer, tile: SharedTile, half: str) -> None:
    """``a[k]``: the four registers of operand A of every depth step; the next scales are under way."""
    i, steps = self.index, self._each // WGMMA.depth
    in_byte = 8 // tile.dtype.bits
    pitch = tile.pitch // in_byte
    first = total(times(self._row_digit, 16), "g")
    deep = times(digit(self.warps, (self.product.depth,)), self._each // in_byte)
    w.line(f"unsigned a[{steps}][4];")
    kind = f"{half}, {tag(tile.dtype)}, {self.of.repeat}"
    zeros = f", z{i}" if self.of.zeros is not None else ""
    at = total(tile.name, f"({first}) * {pitch}", deep)
    w.line(f"widen_tile<{kind}>(a, {at}, {8 * pitch}, t, c{i}{zeros});", i)
    self._fetch(w, "next")

  @property
  def _row_digit(self) -> str:
    return digit(self.warps, self.product.c.g)

  def _fetch(self, w: Writer, step: str) -> None:
    """Loads scales and zero points of a step: of rows g and g + 8 of the warp's, one for each block."""
    i, of = self.index, self.of
    loads = [(t, to) for t, to in ((of.scales, f"c{i}"), (of.zeros, f"z{i}")) if t]
    if not loads:
      return
    with w.block():
      if step == "next":
        w.line("const int next = at_most(step + 1, steps - 1);")
      self._fetch_all(w, step, loads)

  def _fetch_all(self, w: Writer, step: str, loads: Sequence[tuple[KTensor, str]]) -> None:
    i, of = self.index, self.of
    own = self.pieces.cut.of_value[i]
    deep = self.product.depth
    (rows,) = self.product.c.g
    start = total(self.pieces.first_at(deep, step), times(digit(self.warps, (deep,)), self._each))
    w.line(f"const int block = ({start}) / {of.repeat};")
    with w.loop("h", 2) as h:
      row = total(self.pieces.first(rows), times(self._row_digit, 16), times(h, 8), "g")
      if not rows.exact:
        row = f"at_most({row}, {self.extents[rows.axis] - 1})"
      w.line(f"const int row = {row};")
      with w.loop("b", self._blocks) as b:
        for tensor, to in loads:
          view = TensorText.of(tensor, self.extents, packed=True)
          index = {a: self.pieces.first(p) for a, p in own.items()}
          index |= {rows.axis: "row", deep.axis: total("block", b)}
          offset = view.offset(index)
          if tensor.dtype.is_packed:
            load = f"load_packed<{view.tag}, Path::kConst>({view.pointer}, {offset})"
          else:
            load = f"load_bits<{view.tag}, Path::kConst>({view.pointer} + {offset})"
          w.line(f"{to}[{h}][{b}] = {load};", i)
