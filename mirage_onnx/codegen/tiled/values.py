"""Values as text: register arrays, their elements, what is made or read where it is used."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from mirage_onnx.codegen.elementwise import evaluate, literal
from mirage_onnx.codegen.index_text import subscript, total
from mirage_onnx.codegen.loads import TensorText, rounded
from mirage_onnx.codegen.source import Writer, chosen
from mirage_onnx.codegen.tiled.pieces_text import PiecesText
from mirage_onnx.codegen.tiled.spot import Spot, walk
from mirage_onnx.codegen.tiled.tile_text import one_of_pair, tile_element
from mirage_onnx.ir.block_ops import Kind, kind_of, merge_of
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.ugraph import BlockOp, Phase, UGraph
from mirage_onnx.lower.constant import constant
from mirage_onnx.lower.forms import Form
from mirage_onnx.lower.lowered import Lowered
from mirage_onnx.lower.pieces import Piece
from mirage_onnx.lower.shared import SharedTile
from mirage_onnx.lower.steps import Held

if TYPE_CHECKING:
  from mirage_onnx.codegen.tiled.late_stores_text import LateStores
  from mirage_onnx.codegen.tiled.ring_feed_text import RingFeedText


def _folded(op: str, args: Sequence[str]) -> str | None:
  """What is left of an operation where a mask is a number, if that is less than the operation."""
  match op, args:
    case "add", ["0.0f", x] | [x, "0.0f"]:
      return x
    case "cast", [("0.0f" | "1.0f") as x]:
      return x
    case "mul", ["1.0f", x] | [x, "1.0f"]:
      return x
    case "select", [("0.0f" | "1.0f") as truth, yes, no]:
      return yes if truth == "1.0f" else no
  return None


def rule_of(op: str) -> str:
  """How parts of a value combine."""
  return merge_of(op).cuda


def nothing(op: str) -> str:
  """What no parts of a value are."""
  merge = merge_of(op)
  return f"{merge.cuda}::neutral()" if merge.neutral else "0.0f"


@dataclass(slots=True)
class ValueWriter:
  """``names``: the variable of a held value, if it is not its own. ``issued``: loads under way.

  ``fetched``: those of 16 bytes a lane, which quads exchange.
  ``zeroed``: operands whose elements that do not exist have been made zeros (``tails.py``). ``first``: the
  step with which the loop begins. ``feed``: what others copy for those that compute.
  ``whole``: of masks that are computed all elements are seen. ``apart``: tiles that a rank has of what is
  behind the sums of all ranks (``quads_text.py``); 0: each has all.
  ``late``: results are kept, and stored beside the next products; ``beside``: functions of what is kept are
  computed beside those that are written. ``changes``: a variable of that name says whose rows are stored.
  """

  graph: UGraph
  lowering: Lowered
  pieces: PiecesText
  writer: Writer
  names: dict[Held, str] = field(default_factory=dict)
  issued: set[Held] = field(default_factory=set)
  fetched: set[Held] = field(default_factory=set)
  zeroed: set[Held] = field(default_factory=set)
  first: str = "0"
  feed: RingFeedText | None = None
  whole: bool = False
  apart: int = 0
  late: LateStores | None = None
  beside: bool = False
  changes: bool = False

  @property
  def ops(self) -> tuple[BlockOp, ...]:
    return self.lowering.ops

  def own(self, index: int) -> Mapping[str, Piece]:
    """The pieces of a value by axis."""
    return self.pieces.cut.of_value[index]

  def name(self, held: Held) -> str:
    """The register array of a value in a form."""
    if held not in self.names:
      home = self.lowering.forms.get(held.index)
      stem = f"{'p' if held.packed else 'v'}{held.index}"
      others = [h for h in self.names if h.index == held.index and h.packed == held.packed]
      plain = held.form == home or (home is None and not others)
      if plain and stem not in {self.names[h] for h in others}:
        self.names[held] = stem
      else:
        self.names[held] = f"{stem}{'bcdefghijklmnop'[len(others)]}"
    return self.names[held]

  def packed(self, index: int, form: Form) -> str | None:
    """The registers that an operand is packed in ahead, if it is."""
    held = Held(index, form, packed=True)
    return self.name(held) if held in self.lowering.made else None

  def walk(
    self, form: Form, *, packed: bool = False, rolled: Collection[str] = ()
  ) -> AbstractContextManager[Spot]:
    """Loops over the elements of a form that a lane holds."""
    warps = self.lowering.warps
    return walk(self.writer, self.pieces, warps, form, packed=packed, rolled=rolled)

  def shape(self, form: Form, packed: bool = False) -> str:
    """The register array of a form, ``[2][4]``."""
    shape = self.lowering.warps.shape(form)
    if packed and form.t and form.lanes.pack > 1:
      shape = shape[:-1]
    return subscript([str(n) for n in shape])

  def declare(self, held: Held, value: str | None = None) -> str:
    """Declares the registers of a value; every element ``value``, if given."""
    name, shape = self.name(held), self.shape(held.form, held.packed)
    kind = "unsigned" if held.packed else "float"
    if value is None:
      self.writer.line(f"{kind} {name}{shape};")
    elif not shape or value == "0.0f":
      self.writer.line(f"{kind} {name}{shape} = {value if not shape else '{}'};")
    else:
      self.writer.line(f"{kind} {name}{shape};")
      with self.walk(held.form, packed=held.packed) as spot:
        self.writer.line(f"{name}{spot.subscript(held.form)} = {value};")
    return name

  def element(self, index: int, spot: Spot) -> str:
    """Value ``index`` at an element of a form; one that is made in place, is made here."""
    number = constant(self.ops[index], self.lowering.extents)
    if number is not None:
      return literal(number)
    form = spot.form.of(self.own(index).values())
    if not self.lowering.in_place(index, form):
      return self.name(Held(index, form)) + spot.subscript(form)
    if index not in spot.made:
      op = self.ops[index]
      if op.op == "load":
        value = self.loaded(index, spot)
      else:
        value = self.evaluated(index, [self.element(a, spot) for a in self.operands(index)])
      if self.whole and value in ("0.0f", "1.0f"):
        return value
      spot.made[index] = f"u{index}{spot.tag}"
      self.writer.line(f"const float {spot.made[index]} = {value};", index)
    return spot.made[index]

  def loaded(self, index: int, spot: Spot) -> str:
    """An element of a loaded tile; 0 where there is none."""
    own = self.own(index)
    if index in self.lowering.computed:
      return self._of_band(index, spot)
    spot.declare(own.values())
    home = self.lowering.homes.get(index)
    if home is None:
      view = self.view(self.ops[index].tensor)
      value = view.load(self.global_index(view, own, spot))
      return chosen(spot.exists(own.values()), value, "0.0f")
    return self.in_tile(self.lowering.tiles[home], own, spot)

  def _of_band(self, index: int, spot: Spot) -> str:
    """An element of a mask by its place; where a loop has only tiles that are seen, that is one number."""
    band, own = self.lowering.computed[index], self.own(index)
    truth = self.ops[index].dtype is DType.BOOL
    inside, outside = ("1.0f", "0.0f") if truth else ("0.0f", literal(band.outside))
    if self.whole:
      return inside
    spot.declare(own.values())
    column, row = (total(self.pieces.first(own[a]), spot.known[own[a]]) for a in (band.columns, band.rows))
    distance = f"{column} - ({row})"
    ends = [f"{distance} >= {band.least}"] if band.least is not None else []
    ends += [f"{distance} <= {band.most}"] if band.most is not None else []
    return chosen(ends, inside, outside)

  def in_tile(self, tile: SharedTile, own: Mapping[str, Piece], spot: Spot) -> str:
    """An element of a shared tile, widened.

    Lanes have pairs of columns: with wgmma, where those are neighbours in the tile, both are one load.
    """
    pairs = spot.form.lanes.pack == 2 and spot.form.t == tile.order[-1:] and tile.dtype.bits in (8, 16)
    if self.lowering.warpgroup and pairs and tile.order[-1].length % 2 == 0:
      value = one_of_pair(tile, spot.known, spot.at["e"])
    else:
      value = tile_element(tile, spot.known)
    return chosen(spot.held(own.values()), value, "0.0f")

  def view(self, tensor: str) -> TensorText:
    """How the kernel reaches a tensor."""
    return TensorText.of(self.graph.tensor(tensor), self.lowering.extents)

  def global_index(self, view: TensorText, own: Mapping[str, Piece], spot: Spot) -> dict[str, str]:
    """Where an element lies in its tensor, by axis."""
    return {a: total(self.pieces.first(own[a]), spot.known[own[a]]) for a in view.tensor.axes}

  def taken(self, op: BlockOp, text: str) -> str:
    """What a maximum takes of its argument: rounded before or after, it is the same one."""
    kept = self.ops[op.args[0]].dtype is op.dtype
    return text if kept else rounded(text, op.dtype)

  def _number(self, index: int) -> float | None:
    """What a value is where a mask that is computed hides nothing, if it is one number there."""
    op = self.ops[index]
    value = constant(op, self.lowering.extents)
    if isinstance(value, Fraction):
      return float(value)
    if index in self.lowering.computed:
      return float(op.dtype is DType.BOOL) if self.whole else None
    return self._number(op.args[0]) if op.op == "cast" else None

  def _same(self, index: int) -> int:
    """The value that this one is, too, where masks hide nothing."""
    op = self.ops[index]
    if op.op == "add" and self.whole and op.dtype is DType.F32:
      for zero, other in (op.args, op.args[::-1]):
        if self._number(zero) == 0.0:
          return self._same(other)
    return index

  def scaled(self, index: int) -> tuple[int, str] | None:
    """The value of which this one is a positive multiple, held as it lies itself, and how often."""
    index = self._same(index)
    op, lowering = self.ops[index], self.lowering
    if op.op != "mul" or op.dtype is not DType.F32 or not lowering.moderate or index not in lowering.forms:
      return None
    for factor, x in (op.args, op.args[::-1]):
      number = constant(self.ops[factor], lowering.extents)
      held = Held(x, lowering.forms[index]) in lowering.made
      if isinstance(number, Fraction) and number > 0 and held and self.ops[x].dtype is DType.F32:
        return x, literal(number)
    return None

  def operands(self, index: int) -> tuple[int, ...]:
    """The values that ``evaluated`` takes elements of."""
    shifted = self.shifted(index)
    if shifted is None:
      return self.ops[index].args
    x, y = shifted.args
    return (scaled[0] if (scaled := self.scaled(x)) else x), y

  def shifted(self, index: int) -> BlockOp | None:
    """The sum or difference that ``exp_by_two`` is of, if all of the loop share its second part.

    Then that is multiplied once, and not for every element, and has to be far from infinite.
    """
    op, loop = self.ops[index], self.lowering.kernel.loop
    inner = self.ops[op.args[0]] if op.op == "exp" and op.phase is Phase.LOOP else None
    if inner is None or inner.op not in ("add", "sub") or inner.dtype is not op.dtype:
      return None
    x, y = (self.ops[a] for a in inner.args)
    return inner if loop in x.axes and loop not in y.axes and self.lowering.moderate else None

  def _is_whole_sum(self, index: int) -> bool:
    """Whether a divisor is a sum that the loop rescales, and one for many elements."""
    op = self.ops[index]
    divisor = self.ops[op.args[1]]
    return kind_of(divisor.op) is Kind.RESCALED and set(divisor.axes) < set(op.axes)

  def evaluated(self, index: int, args: list[str]) -> str:
    """An elementwise operation of these expressions.

    In kernels with wgmma two functions are as near as 16 bits need (device/warpgroup.cuh): exponentials in
    the loop, which end in operands and sums of them, and ``erf`` where all results are of such a type. There
    many elements are divided by one sum as they are multiplied by its reciprocal.
    """
    op, lowering = self.ops[index], self.lowering
    if lowering.warpgroup and op.op == "exp" and op.phase is Phase.LOOP:
      if shifted := self.shifted(index):
        scaled = self.scaled(shifted.args[0])
        args = [args[0], *([scaled[1]] if scaled else []), f"-{args[1]}" if shifted.op == "sub" else args[1]]
        return rounded(f"exp_by_two({', '.join(args)})", op.dtype)
      return rounded(f"exp_by_two({args[0]})", op.dtype)
    if lowering.warpgroup and op.op == "erf" and lowering.saves_halves:
      return rounded(f"erf_near({args[0]})", op.dtype)
    if lowering.warpgroup and op.op == "div" and lowering.saves_halves and self._is_whole_sum(index):
      return rounded(f"{args[0]} * (1.0f / {args[1]})", op.dtype)
    if self.whole and (left := _folded(op.op, args)) is not None:
      return rounded(left, op.dtype)
    narrow = not self.lowering.is_packed_only(index)
    return evaluate(self.ops, op, args, self.lowering.extents, narrow=narrow)
