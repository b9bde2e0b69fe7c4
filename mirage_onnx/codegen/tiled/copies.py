"""Tiles of tensors on their way to shared memory: by 16 bytes, asynchronously, where they lie so.

A copy in chunks needs rows of the tile that are contiguous in the tensor and begin at a multiple of
16 bytes, in every block, rank and step; the last chunk of a row may be short. Otherwise elements go
one by one. What does not exist is filled with zeros.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from mirage_onnx.codegen.index_text import parts_of, times, total
from mirage_onnx.codegen.loads import TensorText, storage
from mirage_onnx.codegen.source import Writer, chosen
from mirage_onnx.codegen.tiled.pieces_text import PiecesText
from mirage_onnx.codegen.tiled.tile_text import tile_offset
from mirage_onnx.codegen.tiled.values import ValueWriter
from mirage_onnx.instructions import WGMMA
from mirage_onnx.ir import DType
from mirage_onnx.ir.ugraph import Phase
from mirage_onnx.lower.lowered import Lowered
from mirage_onnx.lower.pieces import STEP, Piece
from mirage_onnx.lower.shared import SharedTile, in_chunks
from mirage_onnx.lower.sizes import count, is_runtime

#: Chunks of a thread that it copies without asking whether each is one: the compiler does not know which
#: thread it is, and 32 copies became 500 instructions.
MOST_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Copying:
  """So many threads copy, ``thread`` is the number of one of them.

  ``far``: the chunks of a thread are whole rows apart: addresses differ by numbers.
  ``at_once``: few chunks of a thread are copied without a loop also where the tile is not swizzled.
  """

  threads: int
  thread: str = "ptx::thread()"
  far: bool = False
  at_once: bool = False


def copying(lowering: Lowered, *, ring: bool = False) -> Copying:
  """All threads of a block copy.

  At once in a ring whose loop stands once in the text, and beside products of warpgroups. Copies that no loop
  moves gained nothing on an H100 (.97 to 1.20 of the time), of loops that stand there several times three of
  six spilled, and beside loads that are read where they are used ptxas no longer had all of those under way
  (168 registers became 104, 1.14 to 1.26: ``bench/results/h100/tiled_rules.json``).
  """
  at_once = bool(lowering.warpgroup) or (ring and not _reads_in_place(lowering))
  return Copying(32 * lowering.warps.total, at_once=at_once)


def _reads_in_place(lowering: Lowered) -> bool:
  """Whether the loop has loads that are neither tiles nor registers: read where they are used."""
  made = {held.index for held in lowering.made}
  elsewhere = {*lowering.homes, *lowering.computed, *lowering.widened, *made}
  loads = (i for i, op in enumerate(lowering.ops) if op.op == "load" and op.phase is Phase.LOOP)
  return any(i not in elsewhere for i in loads)


def copy_load(w: ValueWriter, index: int, to: str, by: Copying, step: str = "") -> None:
  """Writes the copy of a loaded tile to shared memory, of an iteration if the loop moves it."""
  own, pieces = w.own(index), w.pieces
  moving = {p for p in own.values() if step and p.levels.endswith(STEP)}
  firsts = {a: pieces.first_at(p, step) if p in moving else pieces.first(p) for a, p in own.items()}
  sizes = {p: pieces.left_at(p, step) if p in moving else pieces.size(p) for p in own.values()}
  view = TensorText.of(w.graph.tensor(w.ops[index].tensor), w.lowering.extents, packed=True)
  tile = w.lowering.tiles[w.lowering.homes[index]]
  _TileCopy(w.writer, pieces, view, tile, own, firsts, sizes, to, by).write()


@dataclass(frozen=True, slots=True)
class _TileCopy:
  """The copy of a tile whose pieces begin at ``firsts`` and have ``sizes``; chunks arrive later."""

  writer: Writer
  pieces: PiecesText
  view: TensorText
  tile: SharedTile
  own: Mapping[str, Piece]
  firsts: Mapping[str, str]
  sizes: Mapping[Piece, str]
  to: str
  by: Copying

  def write(self) -> None:
    """Where rows are as long as only a launch knows, it goes by chunks if that is a multiple of them."""
    view, tile, extents, wide = self.view, self.tile, self.pieces.extents, self.tile.chunk
    last = tile.order[-1].axis if tile.order else ""
    unknown = not in_chunks(view, tile) and is_runtime(extents, last)
    if unknown and in_chunks(TensorText.of(view.tensor, extents, {last: wide}), tile):
      with self.writer.block(f"if ({count(extents, last)} % {wide} == 0)"):
        self._copy(wide)
      with self.writer.block("else"):
        self._copy(1)
    else:
      self._copy(wide if in_chunks(view, tile) else 1)

  def _copy(self, chunk: int) -> None:
    counts = [p.length for p in self.tile.order]
    if counts:
      counts[-1] = -(-counts[-1] // chunk)
    every, threads, by = prod(counts), self.by.threads, self.by
    if by.far and self.tile.swizzled and every % threads == 0 and chunk > 1 and self._copy_far():
      return
    few = by.at_once and chunk > 1 and every // threads <= MOST_AT_ONCE
    at_once = (self.tile.swizzled or few) and every % threads == 0
    with self._chunks(every, at_once=at_once):
      self._copy_chunk(chunk, self._local(counts, chunk), at_once=at_once)

  @contextmanager
  def _chunks(self, every: int, *, at_once: bool) -> Iterator[None]:
    """A loop over the chunks ``e`` of a thread; ``at_once``: unrolled, so one address, and distances."""
    writer, by = self.writer, self.by
    if not at_once:
      with writer.block(f"for (int e = {by.thread}; e < {every}; e += {by.threads})"):
        yield
      return
    with writer.loop("n", every // by.threads) as n, writer.scope(n == "0"):
      writer.line(f"const int e = {total(by.thread, times(n, by.threads))};")
      yield

  def _local(self, counts: Sequence[int], chunk: int) -> dict[Piece, str]:
    """The indices in the tile with which chunk ``e`` begins."""
    tile, local = self.tile, dict[Piece, str]()
    for p, length, text in zip(tile.order, counts, parts_of("e", counts), strict=True):
      if length == 1:
        local[p] = "0"
        continue
      text = f"({text})" if "%" in text or "/" in text else text
      local[p] = f"x_{p.name}"
      self.writer.line(f"const int {local[p]} = {times(text, chunk if p == tile.order[-1] else 1)};")
    return local

  def _copy_chunk(self, chunk: int, local: Mapping[Piece, str], *, at_once: bool) -> None:
    """What is beyond the end becomes zeros."""
    writer, view, tile, size = self.writer, self.view, self.tile, self.sizes
    place = total(self.to, tile_offset(tile, local))
    index = {a: total(self.firsts[a], local[self.own[a]]) for a in view.tensor.axes}
    axis, end = self.pieces.ends.get(view.tensor.name, ("", ""))
    # Behind what matters nothing is read.
    ended = [f"{index[axis]} < {end}"] if axis and axis != tile.order[-1].axis else []
    bounds = {p: f"{local[p]} < {size[p]}" for p in tile.order if not p.exact}
    inside = [*bounds.values(), *ended]
    if chunk == 1:
      writer.line(f"*({place}) = {chosen(inside, view.load_bits(index), _zero(tile))};")
      return
    last = tile.order[-1]
    whole = last.exact and last.length % chunk == 0
    if whole and not inside:
      writer.line(f"ptx::cp_async_16({place}, {view.address(index)});")
      return
    others = [*(text for p, text in bounds.items() if p != last), *ended]
    counted = is_runtime(self.pieces.extents, last.axis)
    picked = any(view.is_picked(a) for a in view.tensor.axes)  # rows that a table names: it has an end
    even = not counted and self.pieces.extents[last.axis] % chunk == 0
    if even and (tile.swizzled or (at_once and not picked)):
      # Of what is not there no byte is read. (Rows beyond the end as those of the last one were 26 % slower
      # on an H100: every block reads one line of L2, again and again.)
      inside = others if whole else [*others, f"{local[last]} < {size[last]}"]
      writer.line(f"ptx::cp_async_16_zfill({place}, {view.address(index)}, {chosen(inside, '16', '0')});")
      return
    left = "16"
    if not whole:  # no packed ones: they are there for whole steps
      width = tile.dtype.size_bytes
      left = f"at_most(16, at_least(0, ({size[last]} - {local[last]}) * {width}))"
    writer.line(f"const int bytes = {chosen(others, left, '0')};")
    source = f"bytes > 0 ? {view.address(index)} : {view.pointer}"
    writer.line(f"ptx::cp_async_16_zfill({place}, {source}, bytes);")

  def _copy_far(self) -> bool:
    """As ``_copy``, of whole chunks; False if a thread's are not some rows apart, here and there."""
    writer, view, tile, by, own = self.writer, self.view, self.tile, self.by, self.own
    last, long = tile.order[-1], [p for p in tile.order[:-1] if p.length > 1]
    chunks = last.length // tile.chunk
    if len(long) != 1 or by.threads % (8 * chunks) or is_runtime(self.pieces.extents, last.axis):
      return False
    (rows,) = long
    apart, axis = by.threads // chunks, next(a for a in view.tensor.axes if own[a] == rows)
    stride = view.stride(axis)
    if not isinstance(stride, int) or view.is_picked(axis) or self.pieces.extents[last.axis] % tile.chunk:
      return False
    ending, end = self.pieces.ends.get(view.tensor.name, ("", ""))
    if ending not in ("", axis):
      return False
    with writer.block():
      writer.line(f"const int row = {by.thread} / {chunks};")
      writer.line(f"const int column = {by.thread} % {chunks} * {tile.chunk};")
      local = {p: "row" if p == rows else "column" if p == last else "0" for p in tile.order}
      index = {a: total(self.firsts[a], local[own[a]]) for a in view.tensor.axes}
      kind = storage(tile.dtype)
      # Pinned, or the compiler keeps the addresses of all copies.
      writer.line(f"const {kind}* from = ptx::pinned({view.address(index)});")
      writer.line(f"{kind}* into = ptx::pinned({total(self.to, tile_offset(tile, local))});")
      whole = last.exact or last.length == self.pieces.extents[last.axis]
      with writer.loop("n", rows.length // apart) as n:
        row = total("row", times(n, apart))
        there = [] if rows.exact else [f"{row} < {self.sizes[rows]}"]
        there += [f"{total(self.firsts[axis], row)} < {end}"] if ending else []
        there += [] if whole else [f"column < {self.sizes[last]}"]
        place, source = (
          total(x, times(n, apart * each)) for x, each in (("into", WGMMA.step), ("from", stride))
        )
        if there:
          writer.line(f"ptx::cp_async_16_zfill({place}, {source}, {chosen(there, '16', '0')});")
        else:
          writer.line(f"ptx::cp_async_16({place}, {source});")
    return True


def _zero(tile: SharedTile) -> str:
  return "0.0f" if tile.dtype is DType.F32 else f"static_cast<{storage(tile.dtype)}>(0)"
