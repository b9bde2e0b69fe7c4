"""Walks over the elements that a lane holds: loop indices, places in the tile, what exists."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from mirage_onnx.codegen.index_text import parts_of, subscript, times, total
from mirage_onnx.codegen.source import Writer
from mirage_onnx.codegen.tiled.pieces_text import PiecesText
from mirage_onnx.lower.forms import MMA, Form, Side, Warps, length
from mirage_onnx.lower.pieces import Piece

#: Iterations that a loop over the elements of a lane is unrolled by where it need not be whole.
UNROLLED = 4


@dataclass(slots=True)
class Spot:
  """One element (or pair) of a form; ``at`` has the index of every loop around it.

  ``tag`` ends the names of the variables that it declares; ``made``: values made in place.
  """

  writer: Writer
  pieces: PiecesText
  warps: Warps
  form: Form
  at: Mapping[str, str]
  tag: str = ""
  known: dict[Piece, str] = field(default_factory=dict)
  made: dict[int, str] = field(default_factory=dict)

  def subscript(self, form: Form, *, packed: bool = False) -> str:
    """Of the register array of a value that lies as this form, or as a part of it, does."""
    found = [self.at[f"q_{p.name}"] for p in form.rest]
    if form.g:
      found.append(self.at["i"])
    if form.t:
      found.append(self.at["j"])
      if form.lanes.pack > 1 and not packed:
        found.append(self.at["e"])
    return subscript(found)

  def _flat(self, side: Side, inner: bool) -> str:
    lanes = self.form.lanes
    tile = lanes.inner if inner else lanes.groups
    element = self.at["e"] if inner and lanes.pack > 1 else "0"
    if self.warps.in_rows:
      own = "lane" if self.pieces.rows else "ptx::thread()"
      vector = total(times(self.at["j"], lanes.lanes * self.warps.count(side)), own)
      alone = vector == own or lanes.pack == 1
      return total(times(vector if alone else f"({vector})", lanes.pack), element)
    each = self.warps.tiles(side, tile) * tile
    lane = "0"
    if inner:
      number = "t" if lanes == MMA else "ptx::lane()"
      lane = times(number, lanes.pack)
    elif lanes.groups > 1:
      lane = "g"
    step = times(self.at["j" if inner else "i"], tile)
    return total(times(digit(self.warps, side), each), step, lane, element)

  def half(self, e: int) -> Spot:
    """An element of the pair at this place."""
    at = {**self.at, "e": str(e)}
    return Spot(self.writer, self.pieces, self.warps, self.form, at, f"{self.tag}{e}")

  def declare(self, pieces: Iterable[Piece]) -> None:
    """Variables with the place in the tile of these pieces, where an index is not enough."""
    wanted = set(pieces) - set(self.known)
    for p in self.form.rest:
      if p in wanted:
        self.known[p] = self.at[f"q_{p.name}"]
    for side, inner in ((self.form.g, False), (self.form.t, True)):
      if not wanted & set(side):
        continue
      if self.warps.in_rows:  # of one piece each, that of a thread's one row
        self.known[side[0]] = self._flat(side, inner) if inner else "0"
        continue
      flat = f"{'c' if inner else 'r'}{self.tag}"
      if all(p not in self.known for p in side):
        self.writer.line(f"const int {flat} = {self._flat(side, inner)};")
      for p, text in zip(side, parts_of(flat, [p.length for p in side]), strict=True):
        if p not in wanted:
          continue
        if len(side) == 1:
          self.known[p] = flat
          continue
        self.known[p] = f"x_{p.name}{self.tag}"
        self.writer.line(f"const int {self.known[p]} = {text};")

  def held(self, pieces: Iterable[Piece]) -> list[str]:
    """Conditions that the tile has a place for the element (declared before)."""
    own = set(pieces)
    found = []
    for side, inner in ((self.form.g, False), (self.form.t, True)):
      tile = self.form.lanes.inner if inner else self.form.lanes.groups
      if own & set(side) and not self.warps.covers(side, tile):
        # The outermost piece is not cut off by a remainder, so it alone can be too large.
        first = side[0]
        if self.warps.in_rows:
          found.append(f"{self.half(0)._flat(side, inner)} < {length(side)}")
        elif first in self.known:
          found.append(f"{self.known[first]} < {first.length}")
        else:
          found.append(f"{self._flat(side, inner)} < {length(side)}")
    return found

  def exists(self, pieces: Iterable[Piece]) -> list[str]:
    """Conditions that the element exists (declared before)."""
    own = sorted(set(pieces))
    found = [] if not own else self.held(own)
    for p in own:
      if not p.exact:
        bound = f"{self.known[p]} < {self.pieces.size(p)}"
        weaker = f"{self.known[p]} < {p.length}"
        found = [f for f in found if f != weaker]
        found.append(bound)
    return found

  def first_copy(self, pieces: Iterable[Piece]) -> list[str]:
    """Conditions that pick one element where the value lacks pieces of a side."""
    own = set(pieces)
    absent = [p for side in (self.form.g, self.form.t) if own & set(side) for p in side if p not in own]
    self.declare(absent)
    return [f"{self.known[p]} == 0" for p in absent if p.length > 1]


@contextmanager
def walk(
  writer: Writer,
  pieces: PiecesText,
  warps: Warps,
  form: Form,
  *,
  packed: bool = False,
  rolled: Collection[str] = (),
) -> Iterator[Spot]:
  """Nested loops over the elements of a form that a lane holds, unrolled but for ``rolled``."""
  ranges = [(f"q_{p.name}", p.length) for p in form.rest]
  if form.g:
    ranges.append(("i", warps.tiles(form.g, form.lanes.groups)))
  if form.t:
    ranges.append(("j", warps.tiles(form.t, form.lanes.inner)))
    if form.lanes.pack > 1 and not packed:
      ranges.append(("e", form.lanes.pack))
  ranges.sort(key=lambda r: r[0] not in rolled)
  at: dict[str, str] = {}
  with ExitStack() as stack:
    for name, count in ranges:
      if name in rolled and count > UNROLLED:
        writer.line(f"#pragma unroll {UNROLLED}")
        at[name] = stack.enter_context(writer.counted(name, count))
      else:
        at[name] = stack.enter_context(writer.loop(name, count))
    if all(n == 1 for _, n in ranges):
      stack.enter_context(writer.block())
    yield Spot(writer, pieces, warps, form, at)


def owner(form: Form, warps: Warps) -> list[str]:
  """Conditions that pick one of the lanes and warps that hold the same element."""
  found = []
  for side, count in warps.digits:
    if count > 1 and side not in (form.g, form.t):
      found.append(f"{digit(warps, side)} == 0")
  if warps.spare > 1:
    found.append("spare == 0")
  if not form.g and not form.t:
    found.append("ptx::lane() == 0")
  elif form.lanes == MMA:
    found += [] if form.g else ["g == 0"]
    found += [] if form.t else ["t == 0"]
  elif not form.t:
    found.append("ptx::lane() == 0")
  return found


def digit(warps: Warps, side: Side) -> str:
  """The part of a side that this warp has."""
  for number, (own, count) in enumerate(warps.digits):
    if own == side and count > 1:
      return f"w{number}"
  return "0"


def digits(writer: Writer, warps: Warps, teams: int = 1) -> None:
  """The variables that say which parts of the sides a warp has, of ``teams`` that each have all of them."""
  divisor = 1
  counted = [(s, n) for s, n in warps.digits if n > 1]
  last = warps.total * teams
  for side, count in counted:
    text = "ptx::warp()" if divisor == 1 else f"ptx::warp() / {divisor}"
    if divisor * count != last:
      text += f" % {count}"
    writer.line(f"const int {digit(warps, side)} = {text};")
    divisor *= count
  if warps.spare > 1:
    text = "ptx::warp()" if divisor == 1 else f"ptx::warp() / {divisor}"
    writer.line(f"const int spare = {text};")
