"""The pieces of a kernel's values as text: where they begin, and how many elements they have."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirage_onnx.codegen.grid_text import declare_firsts, first_of, last_of
from mirage_onnx.codegen.index_text import times, total
from mirage_onnx.codegen.loads import TensorText
from mirage_onnx.codegen.source import Writer
from mirage_onnx.ir.ugraph import UGraph
from mirage_onnx.lower.grid import Grid
from mirage_onnx.lower.pieces import GRID, RANK, STEP, Piece, Pieces
from mirage_onnx.lower.sizes import count, identifier
from mirage_onnx.lower.unseen import early_end


@dataclass(slots=True)
class PiecesText:
  """The variables that say where the pieces of ``cut`` lie."""

  cut: Pieces
  #: Of the launch, whose blocks may have several tiles of an axis, in turns.
  grid: Grid
  #: Tensor -> the axis along which it ends early, and the variable that says where.
  ends: dict[str, tuple[str, str]] = field(default_factory=dict)
  #: The axis of which the first block has the last tile.
  backwards: str = ""
  #: The variable that says where the loop's axis ends for this kernel, where that is sooner than it does.
  upto: str = ""
  #: The rows of a block that takes one axis in rows; a thread has one of them.
  rows: Piece | None = None

  @property
  def extents(self) -> Mapping[str, int]:
    return self.cut.extents

  def first(self, piece: Piece) -> str:
    """The index in the axis of the piece's first element."""
    if not piece.levels:
      return "0"
    if piece == self.rows:
      return "row"
    if piece.levels == GRID:
      return first_of(self.cut.grid.tile(piece.axis, self.extents))
    if piece.levels[-1] == RANK and self.cut.params.cluster == 1:
      return self.first(self.cut.outer(piece))
    return f"first_{piece.name}"

  def size(self, piece: Piece) -> str:
    """How many elements the piece has."""
    if not piece.levels:
      return str(count(self.extents, piece.axis))
    return str(piece.length) if piece.exact else f"size_{piece.name}"

  @property
  def steps(self) -> str:
    """The iterations of this rank, as an expression."""
    step = self.cut.step
    if step is None:
      return "1"
    walked, tile = self.cut.outer(step), step.length
    if walked.exact:
      return str(-(-walked.length // tile))
    return f"({self.size(walked)} + {tile - 1}) / {tile}"

  def declare_all(self, writer: Writer, graph: UGraph, tile: str = "") -> None:
    """As ``declare``, and the ends of tensors; a loop that may end there does."""
    name, walked = early_end(graph, self.cut.kernel), self.cut.step
    while walked and walked.levels:
      walked = self.cut.outer(walked)
    limit = graph.tensor(name).limit if name else None
    declare_firsts(self.cut.grid, writer, tile, self.backwards)
    if walked and limit and not walked.exact and (end := self._end(graph, limit[1])):
      self.upto = f"upto_{identifier(walked.axis)}"
      at = end[0].address(end[1])
      writer.line(f"const int {self.upto} = ended({at}, {limit[2]}, {self.size(walked)});")
    self._declare_sizes(writer)
    self.declare_ends(writer, graph)

  def declare(self, writer: Writer, tile: str = "") -> None:
    """``first_`` and ``size_`` of what does not move with the loop; ``tile``: see ``declare_firsts``."""
    declare_firsts(self.grid, writer, tile, self.backwards)
    self._declare_sizes(writer)

  @property
  def rows_are_whole(self) -> bool:
    """Whether every thread has a row of its own; else those behind the last have that one, too."""
    return not self.rows or not next(a for a in self.grid.axes if a.axis == self.rows.axis).short

  def declare_row(self, writer: Writer, lanes: int, turn: str = "0") -> None:
    """``row``: of this thread, of which a row has ``lanes``, and whether there ``exists`` one for it."""
    if not self.rows:
      return
    at = next(a for a in self.grid.axes if a.axis == self.rows.axis)
    place = total(first_of(at), times(turn, self.rows.length), f"ptx::thread() / {lanes}")
    if not self.rows_are_whole:
      writer.line(f"const bool exists = {place} <= {last_of(at)};")
      place = f"exists ? {place} : {last_of(at)}"
    writer.line(f"const int row = {place};")

  def _declare_sizes(self, writer: Writer) -> None:
    for (axis, levels), piece in sorted(self.cut.used.items()):
      if levels == GRID and not piece.exact and piece != self.rows:
        left = total(str(count(self.extents, axis)), f"-{self.first(piece)}").replace("+ -", "- ")
        writer.line(f"const int {self.size(piece)} = at_most({left}, {piece.length});")
      elif levels.endswith(RANK):
        self._declare_share(writer, piece)

  def _end(self, graph: UGraph, by: str) -> tuple[TensorText, dict[str, str]] | None:
    """The tensor with the ends, and which of them is a block's, where it is one number for all of a block."""
    single = {a.axis: a for a in self.cut.grid.axes if a.tile == 1}
    tensor = graph.tensor(by)
    if not single.keys() >= {*tensor.axes}:
      return None
    return TensorText.of(tensor, self.extents), {a: first_of(single[a]) for a in tensor.axes}

  def declare_ends(self, writer: Writer, graph: UGraph) -> None:
    """``const int end_i4 = ...;`` for tensors with a limit, where it is one number for all of a block."""
    for t in (graph.tensor(name) for name in dict.fromkeys(o.tensor for o in self.cut.kernel.loads)):
      if t.limit and (at := self._end(graph, t.limit[1])):
        self.ends[t.name] = t.limit[0], f"end_{identifier(t.name)}"
        end = at[0].load_bits(at[1])
        more = f" + {t.limit[2]}" if t.limit[2] else ""
        writer.line(f"const int {self.ends[t.name][1]} = static_cast<int>({end}){more};")

  def _declare_share(self, writer: Writer, piece: Piece) -> None:
    whole, ranks = self.cut.outer(piece), self.cut.params.cluster
    size, first = self.size(whole), self.first(whole)
    if self.upto and not whole.levels and whole.axis == self.cut.kernel.loop:
      size = self.upto
    rank = "static_cast<int>(ptx::cluster_rank())"
    if ranks == 1:
      if not piece.exact:
        writer.line(f"const int {self.size(piece)} = {size};")
      return
    share = str(piece.length) if whole.exact else f"share_{piece.name}"
    if self.cut.by_steps(whole):
      step = self.cut.params.loop_tile
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
    for (_, levels), piece in sorted(self.cut.used.items()):
      if not levels.endswith(STEP):
        continue
      writer.line(f"const int first_{piece.name} = {self.first_at(piece, step)};")
      if not piece.exact:
        left = f"{self.size(self.cut.outer(piece))} - {times(step, piece.length)}"
        writer.line(f"const int {self.size(piece)} = at_most({left}, {piece.length});")

  def first_at(self, piece: Piece, step: str) -> str:
    """``first`` in iteration ``step``."""
    return total(self.first(self.cut.outer(piece)), times(step, piece.length))

  def left_at(self, piece: Piece, step: str) -> str:
    """The elements from the first of iteration ``step`` to the end of what is walked."""
    return f"({self.size(self.cut.outer(piece))} - {times(f'({step})', piece.length)})"
