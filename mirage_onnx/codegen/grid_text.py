"""The part of each axis that a block has, as text: its first element, the rows that a run picks."""

from collections.abc import Mapping

from mirage_onnx.codegen.index_text import parts_of
from mirage_onnx.codegen.loads import held_at, named_at
from mirage_onnx.codegen.source import Writer
from mirage_onnx.ir.ugraph import Kernel, UGraph
from mirage_onnx.lower.grid import AxisTile, Grid
from mirage_onnx.lower.sizes import axis_variable
from mirage_onnx.lower.tensor_view import TensorView


def last_of(at: AxisTile) -> str:
  """The index of the last element, as an expression."""
  return str(at.extent - 1) if isinstance(at.extent, int) else f"{at.extent} - 1"


def first_of(at: AxisTile) -> str:
  """The block's first element of the axis, as an expression."""
  return f"first_{axis_variable(at.axis)}" if at.split else "0"


def block_index(grid: Grid, dim: int) -> str:
  index = f"ptx::block_{'xyz'[dim]}()"
  return f"{index} / {grid.cluster}" if dim == 0 and grid.cluster > 1 else index


def declare_firsts(grid: Grid, writer: Writer, tile: str = "", backwards: str = "") -> None:
  """``const int first_a2 = ptx::block_x() * 16;`` for each axis that is split.

  ``tile``: the number of a block, if this one does the work of several; ``backwards``: an axis of which
  the first block has the last tile.
  """
  for at in grid.axes:
    if at.split and at.dim is not None:
      index = _shared_x(grid, at, writer) or block_index(grid, at.dim)
      if tile:
        index = parts_of(tile, grid.launch[::-1])[2 - at.dim]
        index += f" / {grid.cluster}" if at.dim == 0 and grid.cluster > 1 else ""
      index = f"({at.blocks - 1} - {index})" if at.axis == backwards else index
      scaled = index if at.tile == 1 else f"{index} * {at.tile}"
      writer.line(f"const int {first_of(at)} = {scaled};")


def declare_rows(
  grid: Grid, writer: Writer, graph: UGraph, kernel: Kernel, extents: Mapping[str, int]
) -> None:
  """``const int row_r0_8_first_a1 = ...;`` for the rows that a run picks and all of a block shares.

  They are read where this stands: behind the wait for those that write what picks them.
  """
  declared: dict[str, str] = {}
  for t in graph.tensors_of(kernel):
    for p in TensorView.of(t, extents, packed=True).picked:
      places = [first_of(at) for at in grid.axes if p.axes == (at.axis,) and at.split]
      for place in places if p.axes else ["0"]:
        declared[held_at(p, place)] = named_at(p, place)
  for name, row in declared.items():
    writer.line(f"const int {name} = {row};")


def _shared_x(grid: Grid, at: AxisTile, writer: Writer) -> str:
  """The index of a block along one of several axes that share x; "" for other axes."""
  along = [a for a in grid.axes if a.is_runtime]
  if len(along) < 2 or not at.is_runtime:
    return ""
  left = block_index(grid, 0)
  if at is not along[0]:
    left = f"left_{axis_variable(along[along.index(at) - 1].axis)}"
  if at is along[-1]:
    return left
  name = axis_variable(at.axis)
  writer.line(f"const int blocks_{name} = ({at.extent} + {at.tile - 1}) / {at.tile};")
  writer.line(f"const int left_{name} = {left} / blocks_{name};")
  return f"{left} % blocks_{name}"


def first_replica(grid: Grid, axes: tuple[str, ...]) -> list[str]:
  """Conditions that pick one of the blocks that hold the same elements of a value; ``axes``: the value's."""
  return [f"{first_of(a)} == 0" for a in grid.axes if a.split and a.axis not in axes]
