"""Where the elements of a value lie in the registers of a block: the layouts of the thread level.

A *form* lays one *side*, a tuple of pieces taken flat (the last fastest), over the lane groups of a
warp, another inside the groups; the pieces that are left are repeated in the registers of a lane.
The lanes of a warp are ``groups`` x ``lanes``, and a lane holds ``pack`` neighbours of the inner
side. With 8 x 4 lanes and pairs this is how mma.m16n8k16 holds all its operands (PTX ISA, matrix
fragments): with g = lane / 4, t = lane % 4, tile (i, j) of 8 x 8 elements has row 8i + g and
columns 8j + 2t, 8j + 2t + 1 in lane (g, t). So the result of one contraction *is* an operand of the
next.

The warps of a block share out sides: warp digit w of a side has its tiles w*n .. (w+1)*n - 1. What
does not vary over a side is the same in its lanes and warps; a side of which a value has some
pieces is kept whole, with copies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import prod

from mirage_onnx.lower.pieces import Piece

Side = tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Geometry:
  """How a warp's lanes are dealt: ``groups`` rows, ``lanes`` inside each, ``pack`` elements."""

  groups: int
  lanes: int
  pack: int

  @property
  def inner(self) -> int:
    """Elements of the inner side in one tile."""
    return self.lanes * self.pack


MMA = Geometry(8, 4, 2)


def vector(pack: int) -> Geometry:
  """All lanes along the inner side."""
  return Geometry(1, 32, pack)


@dataclass(frozen=True, slots=True)
class Form:
  """``g``: the side over the groups, ``t``: the side inside them, ``rest``: repeated pieces."""

  lanes: Geometry
  g: Side
  t: Side
  rest: Side

  def of(self, pieces: Iterable[Piece]) -> Form:
    """The form of a value over ``pieces`` that lies as this form does."""
    own = set(pieces)
    g = () if own.isdisjoint(self.g) else self.g
    t = () if own.isdisjoint(self.t) else self.t
    rest = tuple(sorted(own.difference(g, t)))
    return Form(self.lanes if g or t else MMA, g, t, rest)

  def lane_bits(self, sides: Collection[Side]) -> tuple[int, ...]:
    """The bits of the lane number in which lanes with other elements of these sides differ."""
    found: list[int] = []
    bit = 1
    for side, lanes in ((self.t, self.lanes.lanes), (self.g, self.lanes.groups)):
      while lanes > 1:
        found += [bit] if side and side in sides else []
        bit, lanes = bit * 2, lanes // 2
    return tuple(found)

  @property
  def text(self) -> str:
    """``g(a0 a3) t(a1) rest(a2)``, an absent side left out."""
    sides = (("g", self.g), ("t", self.t), ("rest", self.rest))
    named = [f"{n}({' '.join(p.name for p in side)})" for n, side in sides if side]
    kind = "" if self.lanes == MMA else f"v{self.lanes.pack} "
    return kind + (" ".join(named) or "scalar")


def length(side: Side) -> int:
  """Elements of a side, those that may not exist included."""
  return prod(p.length for p in side)


@dataclass(frozen=True, slots=True)
class Warps:
  """How the warps of a block share out sides: a digit of the warp number per side.

  ``even``: sides that a contraction takes 16 elements of at a time, rows or depth. ``in_rows``: threads have
  vectors of one axis, in few rows or one, and load them before all else; warps take turns at a side's tiles.
  """

  digits: tuple[tuple[Side, int], ...]
  total: int
  even: frozenset[Side] = frozenset()
  in_rows: bool = False

  def count(self, side: Side) -> int:
    """Into how many parts the warps cut a side."""
    return dict(self.digits).get(side, 1) if side else 1

  @property
  def spare(self) -> int:
    """Warps that do the same as others."""
    return self.total // prod(count for _, count in self.digits)

  @property
  def slots(self) -> int:
    """Of a warp in shared memory, for a part of a sum: one a lane, where lanes may have other parts."""
    return 1 if self.in_rows else 32

  def tiles(self, side: Side, tile: int) -> int:
    """Tiles of ``tile`` elements that one warp has of a side."""
    each = -(-length(side) // (tile * self.count(side)))
    return each + each % 2 if side in self.even and tile == 8 and self._wide(side) else each

  def _wide(self, side: Side) -> bool:
    return length(side) > 8

  def shape(self, form: Form) -> tuple[int, ...]:
    """The register array of one lane: repeated pieces, tiles of g, tiles of t, elements."""
    shape = [p.length for p in form.rest]
    if form.g:
      shape.append(self.tiles(form.g, form.lanes.groups))
    if form.t:
      shape.append(self.tiles(form.t, form.lanes.inner))
      if form.lanes.pack > 1:
        shape.append(form.lanes.pack)
    return tuple(shape)

  def registers(self, form: Form) -> int:
    """Elements that one lane holds."""
    return prod(self.shape(form))

  def covers(self, side: Side, tile: int) -> bool:
    """Whether the tiles of all warps hold exactly the elements of a side."""
    return self.tiles(side, tile) * tile * self.count(side) == length(side)


@dataclass(frozen=True, slots=True)
class Parts:
  """Who has other parts of a value: lanes that differ in these bits, warps of these sides."""

  masks: tuple[int, ...] = ()
  sides: tuple[Side, ...] = ()

  def __bool__(self) -> bool:
    return bool(self.masks or self.sides)
