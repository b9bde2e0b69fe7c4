"""Walks over the elements of a tile: which thread has which, where it lies, whether it exists."""

from collections.abc import Iterator
from contextlib import contextmanager

from mirage_onnx.codegen.grid_text import first_of
from mirage_onnx.codegen.index_text import parts_of, times, total
from mirage_onnx.codegen.source import Writer
from mirage_onnx.lower.sizes import axis_variable
from mirage_onnx.lower.stream_behind import TileSpace

#: The position in the tile of every axis that is wider than one element there.
Place = dict[str, str]


def offset_in(space: TileSpace, at: Place) -> str:
  """The number of the element at a place."""
  terms, step = [], 1
  for tile in reversed(space.axes):
    terms.append(times(at[tile.axis], step))
    step *= tile.tile
  return total(*terms[::-1])


def _bounds(space: TileSpace) -> list[str]:
  return [f"{axis_variable(a.axis)} < {a.extent}" for a in space.axes if a.short]


def _declare(space: TileSpace, writer: Writer, element: str) -> Place:
  """Position in the tile (``t_a0``) and index in the axis (``a0``) of an element."""
  at: Place = {}
  positions = parts_of(element, [t.tile for t in space.axes])
  for tile, position in zip(space.axes, positions, strict=True):
    name = f"t_{axis_variable(tile.axis)}"
    writer.line(f"const int {name} = {position};")
    writer.line(f"const int {axis_variable(tile.axis)} = {total(first_of(tile), name)};")
    at[tile.axis] = name
  return at


@contextmanager
def element_of(space: TileSpace, writer: Writer, q: str) -> Iterator[Place]:
  """A scope with the thread's element number ``q``, entered if it exists."""
  number = total("ptx::thread()", times(q, space.threads))
  conditions = []
  if space.share < space.per_thread * space.threads:
    conditions.append(f"{number} < {space.share}")
  if space.ranks > 1:
    number = total(f"static_cast<int>(ptx::cluster_rank()) * {space.share}", number)
    if space.share * space.ranks > space.elements:
      conditions.append(f"e < {space.elements}")
  with writer.block():
    if space.axes or conditions:
      writer.line(f"const int e = {number};")
    at = _declare(space, writer, "e")
    conditions += _bounds(space)
    with writer.where(conditions):
      yield at


@contextmanager
def walk_over(space: TileSpace, writer: Writer, first: str, step: int) -> Iterator[Place]:
  """A loop over all elements from ``first`` in steps, entered for those that exist."""
  with writer.block(f"for (int e = {first}; e < {space.elements}; e += {step})"):
    at = _declare(space, writer, "e")
    with writer.where(_bounds(space)):
      yield at
