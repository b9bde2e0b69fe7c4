"""Tiles in shared memory as text: the places of their elements."""

from collections.abc import Mapping

from mirage_onnx.codegen.index_text import times, total
from mirage_onnx.codegen.loads import tag
from mirage_onnx.ir.dtype import DType
from mirage_onnx.lower.pieces import Piece
from mirage_onnx.lower.shared import SharedTile


def tile_offset(tile: SharedTile, local: Mapping[Piece, str]) -> str:
  """The place of an element, indices by piece."""
  strides = tile.strides()
  if tile.swizzled:
    width = tile.order[-1].length
    row = total(*(times(_atom(local[p]), strides[p] // width) for p in tile.order[:-1]))
    return f"swizzled<{tile.rows}, {width}>({row}, {local[tile.order[-1]]})"
  whole = total(*(times(_atom(local[p]), strides[p]) for p in tile.order))
  if tile.dtype.bits < 8 and whole != "0":  # of the first of a byte
    return f"({whole}) / {8 // tile.dtype.bits}"
  return whole


def tile_element(tile: SharedTile, local: Mapping[Piece, str]) -> str:
  """An element in fp32, indices by piece."""
  text = f"{tile.name}[{tile_offset(tile, local)}]"
  return text if tile.dtype is DType.F32 else f"{tag(tile.dtype)}::widen({text})"


def one_of_pair(tile: SharedTile, local: Mapping[Piece, str], e: str) -> str:
  """``tile_element``, read with its neighbour along the last piece; ``e``: 0 or 1, which of the two it is."""
  last = tile.order[-1]
  first = local if e == "0" else {**local, last: f"{local[last]} - {e}"}
  return f"{tag(tile.dtype)}::widen(one_of_pair({total(tile.name, tile_offset(tile, first))}, {e}))"


def _atom(text: str) -> str:
  return text if text.replace("_", "").isalnum() else f"({text})"
