"""The part of an axis that a block value has in one block, rank and iteration.

``ir/ugraph.py`` says how: the grid cuts an axis into tiles, the cluster what remains into ranks'
shares, the loop those into steps. Values that meet have an axis cut alike, so an axis with the
levels that cut it is a *piece*, and a value is over pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd

from mirage_onnx.codegen.index_text import times, total
from mirage_onnx.codegen.loads import TensorView, axis_variable, count, identifier
from mirage_onnx.codegen.source import Writer
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import BlockOp, Kernel, KernelParams, UGraph
from mirage_onnx.lower.grid import Grid
from mirage_onnx.lower.sizes import MOST_AT_RUNTIME, is_runtime

GRID, RANK, STEP = "b", "r", "s"


@dataclass(frozen=True, slots=True, order=True)
class Piece:
  """``levels`` has a letter per level that cuts the axis, outermost first.

  ``length``: the most elements; ``exact``: there are always so many. ``aligned``: a number that
  divides the index of the first element, whatever the block, rank and step.
  """

  axis: str
  levels: str
  length: int
  exact: bool
  aligned: int

  @property
  def name(self) -> str:
    """The tail of the variables of the piece."""
    return "_".join(filter(None, (axis_variable(self.axis), self.levels)))


@dataclass(slots=True)
class Pieces:
  """The pieces of every value of a kernel, and the variables that say where they lie."""

  kernel: Kernel
  params: KernelParams
  extents: Mapping[str, int]
  grid: Grid
  of_value: tuple[dict[str, Piece], ...] = ()
  used: dict[tuple[str, str], Piece] = field(default_factory=dict)
  #: Tensor -> the axis along which it ends early, and the variable that says where.
  ends: dict[str, tuple[str, str]] = field(default_factory=dict)

  @classmethod
  def of(cls, kernel: Kernel, params: KernelParams, extents: Mapping[str, int], grid: Grid) -> Pieces:
    """The pieces of a well-formed kernel.

    Raises:
        RejectionError: LAYOUT, two values that meet have an axis cut differently.
    """
    result = cls(kernel, params, extents, grid)
    found: list[dict[str, Piece]] = []
    for number, op in enumerate(kernel.ops):
      own = result._of_load(op) if op.op == "load" else {}
      for arg in op.args:
        for axis, piece in found[arg].items():
          if own.setdefault(axis, piece) != piece:
            raise RejectionError("LAYOUT", f"%{number} meets two cuts of {axis}")
      found.append({a: p for a, p in own.items() if a in op.axes})
    result.of_value = tuple(found)
    return result

  def _of_load(self, op: BlockOp) -> dict[str, Piece]:
    found = {}
    for a in op.axes:
      levels = (GRID if a in op.imap else "") + (RANK if op.cmap == a else "")
      levels += STEP if op.fmap == a else ""
      if levels in ("", RANK):
        _ = self.extents[a]  # refuses what only a launch counts: no tile holds all of it
      found[a] = self.piece(a, levels)
    return found

  def piece(self, axis: str, levels: str) -> Piece:
    """The piece that these levels cut."""
    key = axis, levels
    if key not in self.used:
      if not levels:
        unknown = is_runtime(self.extents, axis)
        length = MOST_AT_RUNTIME if unknown else self.extents[axis]
        self.used[key] = Piece(axis, "", length, not unknown, 1 << 30)
        return self.used[key]
      whole, level = self.piece(axis, levels[:-1]), levels[-1]
      if level == GRID:
        at = self.grid.tile(axis, self.extents)
        self.used[key] = Piece(axis, levels, at.tile, not at.short, at.tile)
      elif level == RANK:
        ranks = self.params.cluster
        share = -(-whole.length // ranks)
        exact = whole.exact and whole.length % ranks == 0
        aligned = whole.aligned if ranks == 1 else gcd(whole.aligned, share)
        if self._by_steps(whole):
          aligned = whole.aligned if ranks == 1 else gcd(whole.aligned, self.params.loop_tile)
        elif not whole.exact:
          aligned = 1
        self.used[key] = Piece(axis, levels, share, exact, aligned)
      else:
        step = min(whole.length, self.params.loop_tile)
        exact = whole.exact and whole.length % step == 0
        aligned = whole.aligned if step == whole.length else gcd(whole.aligned, step)
        self.used[key] = Piece(axis, levels, step, exact, aligned)
    return self.used[key]

  # ---- the text

  def first(self, piece: Piece) -> str:
    """The index in the axis of the piece's first element."""
    if not piece.levels:
      return "0"
    if piece.levels == GRID:
      return self.grid.tile(piece.axis, self.extents).first
    if piece.levels[-1] == RANK and self.params.cluster == 1:
      return self.first(self._outer(piece))
    return f"first_{piece.name}"

  def size(self, piece: Piece) -> str:
    """How many elements the piece has."""
    if not piece.levels:
      return str(count(self.extents, piece.axis))
    return str(piece.length) if piece.exact else f"size_{piece.name}"

  def _by_steps(self, whole: Piece) -> bool:
    """Whether ranks share out whole steps of the loop: of an axis that only a launch counts.

    Their shares begin where a step may begin, whatever the size is.
    """
    return whole.axis == self.kernel.loop and is_runtime(self.extents, whole.axis)

  def _outer(self, piece: Piece) -> Piece:
    return self.piece(piece.axis, piece.levels[:-1])

  @property
  def _step(self) -> Piece | None:
    """What the loop takes in one iteration of what it walks."""
    for (axis, levels), piece in self.used.items():
      if axis == self.kernel.loop and levels.endswith(STEP):
        return piece
    return None

  @property
  def steps(self) -> str:
    """The iterations of this rank, as an expression."""
    if self._step is None:
      return "1"
    walked, tile = self._outer(self._step), self._step.length
    if walked.exact:
      return str(-(-walked.length // tile))
    return f"({self.size(walked)} + {tile - 1}) / {tile}"

  @property
  def most_steps(self) -> int:
    """The iterations of the rank that has most."""
    step = self._step
    return 1 if step is None else -(-self._outer(step).length // step.length)

  def declare(self, writer: Writer, tile: str = "") -> None:
    """``first_`` and ``size_`` of what does not move with the loop; ``tile``: see ``Grid.declare``."""
    self.grid.declare(writer, tile)
    for (axis, levels), piece in sorted(self.used.items()):
      if levels == GRID and not piece.exact:
        left = total(str(count(self.extents, axis)), f"-{self.first(piece)}").replace("+ -", "- ")
        writer.line(f"const int {self.size(piece)} = at_most({left}, {piece.length});")
      elif levels.endswith(RANK):
        self._declare_share(writer, piece)

  def declare_ends(self, writer: Writer, graph: UGraph) -> None:
    """``const int end_i4 = ...;`` for tensors with a limit, where it is one number for all of a block."""
    cut = {a.axis: a for a in self.grid.axes if a.tile == 1}
    for t in (graph.tensor(name) for name in dict.fromkeys(o.tensor for o in self.kernel.loads)):
      by = graph.tensor(t.limit[1]) if t.limit else None
      if t.limit and by and cut.keys() >= {*by.axes}:
        index = {a: cut[a].first for a in by.axes}
        self.ends[t.name] = t.limit[0], f"end_{identifier(t.name)}"
        end = TensorView.of(by, self.extents).load_bits(index)
        more = f" + {t.limit[2]}" if t.limit[2] else ""
        writer.line(f"const int {self.ends[t.name][1]} = static_cast<int>({end}){more};")

  def _declare_share(self, writer: Writer, piece: Piece) -> None:
    whole, ranks = self._outer(piece), self.params.cluster
    size, first = self.size(whole), self.first(whole)
    rank = "static_cast<int>(ptx::cluster_rank())"
    if ranks == 1:
      if not piece.exact:
        writer.line(f"const int {self.size(piece)} = {size};")
      return
    share = str(piece.length) if whole.exact else f"share_{piece.name}"
    if self._by_steps(whole):
      step = self.params.loop_tile
      writer.line(f"const int {share} = ({size} + {step * ranks - 1}) / {step * ranks} * {step};")
    elif not whole.exact:
      writer.line(f"const int {share} = ({size} + {ranks - 1}) / {ranks};")
    if piece.exact:
      writer.line(f"const int first_{piece.name} = {total(first, f'{rank} * {share}')};")
      return
    begin = f"begin_{piece.name}"
    writer.line(f"const int {begin} = at_most({rank} * {share}, {size});")
    writer.line(f"const int first_{piece.name} = {total(first, begin)};")
    writer.line(f"const int {self.size(piece)} = at_most({size} - {begin}, {share});")

  def declare_step(self, writer: Writer, step: str) -> None:
    """``first_`` and ``size_`` of the pieces of iteration ``step``."""
    for (_, levels), piece in sorted(self.used.items()):
      if not levels.endswith(STEP):
        continue
      writer.line(f"const int first_{piece.name} = {self.first_at(piece, step)};")
      if not piece.exact:
        left = f"{self.size(self._outer(piece))} - {times(step, piece.length)}"
        writer.line(f"const int {self.size(piece)} = at_most({left}, {piece.length});")

  def first_at(self, piece: Piece, step: str) -> str:
    """``first`` in iteration ``step``."""
    return total(self.first(self._outer(piece)), times(step, piece.length))

  def left_at(self, piece: Piece, step: str) -> str:
    """The elements from the first of iteration ``step`` to the end of what is walked."""
    return f"({self.size(self._outer(piece))} - {times(f'({step})', piece.length)})"
