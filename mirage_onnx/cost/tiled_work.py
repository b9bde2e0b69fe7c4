"""What a tiled kernel does, read off its block graph once, before there are numbers.

A size is a product over *cut axes*: an axis with the levels that cut it (grid, cluster, loop). The
warps of a block share out the rows of its tile first; those that are left share out either the
columns or the depth (``tiled.py``). ``Share`` says which of them divide a value and which have a
copy of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from mirage_onnx.instructions import Instruction, fastest_of_warps
from mirage_onnx.ir.block_ops import ACCUMULATORS, REDUCTIONS, Kind, kind_of
from mirage_onnx.ir.ugraph import BlockOp, Kernel, KTensor, Layout, Phase
from mirage_onnx.lower.dataflow import users_of, varying
from mirage_onnx.lower.lanes import Contraction, Lanes
from mirage_onnx.lower.pieces import LEVELS, STEP, load_levels
from mirage_onnx.lower.tiled_layouts import Chosen, Conversion, after_matmul, conversions, is_wide, lanes_of
from mirage_onnx.target import Target


class Share:
  """Bits of the warps that divide a value: those with other rows, other columns, other depth.

  (An ``enum.Flag`` takes ten times as long.)
  """

  NONE, ROWS, COLUMNS, DEPTH = 0, 1, 2, 4


#: Axes with the levels that cut them (``lower/pieces.py``).
CutAxes = tuple[tuple[str, str], ...]
#: Layout: rows, columns or depth of one fragment, lanes with the same element, warps that share.
_FRAGMENT: dict[Layout, tuple[int, int, int, int]] = {
  Layout.C_FRAG: (16, 8, 1, Share.ROWS | Share.COLUMNS),
  Layout.A_FRAG: (16, 16, 1, Share.ROWS),
  Layout.B_FRAG: (8, 16, 1, Share.COLUMNS),
  Layout.ROW: (16, 1, 4, Share.ROWS),
  Layout.COLUMN: (1, 8, 8, Share.COLUMNS),
  Layout.DEPTH: (1, 16, 8, Share.NONE),
  Layout.UNIFORM: (1, 1, 32, Share.NONE),
  Layout.VECTOR: (1, 1, 1, Share.ROWS),
  Layout.SHARED: (1, 1, 1, Share.ROWS | Share.COLUMNS),
  Layout.ELEMENT: (1, 1, 1, Share.ROWS | Share.COLUMNS),
}


@dataclass(frozen=True, slots=True)
class Extent:
  """The size of a value: axes over the groups, inside the quads, and repeated ones."""

  g: CutAxes
  t: CutAxes
  rest: CutAxes

  @property
  def axes(self) -> CutAxes:
    """All axes of the value."""
    return self.g + self.t + self.rest


@dataclass(frozen=True, slots=True)
class BlockValue:
  """A block value as the cost sees it; ``repeats``: computed in every iteration."""

  index: int
  op: BlockOp
  extent: Extent
  pad: tuple[int, int]
  copies: int
  share: int
  repeats: bool
  after_matmul: bool


@dataclass(frozen=True, slots=True)
class ProductWork:
  """A contraction, value ``index``: its sides with their cuts; ``wide``: in fp32."""

  index: int
  wide: bool
  rows: CutAxes
  columns: CutAxes
  depth: CutAxes
  batch: CutAxes
  repeats: bool
  chained: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TiledWork:
  """A kernel with tiled layouts, taken apart."""

  kernel: Kernel
  tensors: Mapping[str, KTensor]
  values: tuple[BlockValue, ...]
  products: tuple[ProductWork, ...]
  moves: tuple[Conversion, ...]
  live: tuple[tuple[tuple[int, int], ...], ...]
  """Sets of (value, count) in registers at once; none is part of another."""

  @property
  def last(self) -> ProductWork | None:
    """The contraction whose rows and columns the warps share out."""
    inside = [p for p in self.products if p.repeats] or self.products
    return inside[-1] if inside else None

  def instruction(self, target: Target) -> Instruction:
    """By which a warp contracts the operands, on a GPU."""
    ops = self.kernel.ops
    operands = {ops[a].dtype for p in self.products if not p.wide for a in ops[p.index].args}
    return fastest_of_warps(operands, target)

  def parted(self, tensor: str) -> dict[str, str]:
    """The part axes that the kernel makes of a tensor, and the axes of its grid they are of."""
    kernel = self.kernel
    omaps = [zip(s.omap, kernel.grid, strict=True) for s in kernel.saves if s.tensor == tensor]
    return {p: a for omap in omaps for p, a in omap if p is not None and p != a}

  @classmethod
  def of(cls, kernel: Kernel, tensors: Mapping[str, KTensor], known: Chosen | None = None) -> TiledWork:
    """The work of a kernel whose layouts ``tiled_layouts`` chose; ``known``: its lanes, if they are."""
    ops = kernel.ops
    with_mma = any(op.op == "matmul" for op in ops)
    lanes, uses = lanes_of(kernel, known) if with_mma else ((Lanes(),) * len(ops), ())
    cuts = _cuts(kernel)
    repeats = varying(kernel)
    after = after_matmul(kernel)
    products = [_product(kernel, i, cuts, repeats[i], after) for i, op in enumerate(ops) if op.op == "matmul"]
    deep = set(products[-1].depth) if products else set()
    deep |= {(a, c) for own in cuts for a, c in own.items() if STEP in c}
    values = tuple(
      _value(i, op, cuts[i], lanes[i], repeats[i], after[i], deep, with_mma) for i, op in enumerate(ops)
    )
    moves = conversions(kernel, lanes, uses)
    return cls(kernel, tensors, values, tuple(products), moves, _live(kernel, values))


def _cuts(kernel: Kernel) -> list[dict[str, str]]:
  """For each value, the levels that cut each of its axes: all that do in one of its arguments."""
  found: list[dict[str, str]] = []
  for op in kernel.ops:
    own = load_levels(op) if op.op == "load" else dict.fromkeys(op.axes, "")
    for a in op.args:
      for axis, cut in found[a].items():
        if cut and axis in own:
          own[axis] = cut if not own[axis] else "".join(x for x in LEVELS if x in cut + own[axis])
    found.append(own)
  return found


def _product(
  kernel: Kernel, index: int, cuts: list[dict[str, str]], repeats: bool, after: list[bool]
) -> ProductWork:
  op = kernel.ops[index]
  sides = Contraction.of(kernel, op)
  both = {**cuts[op.args[0]], **cuts[op.args[1]]}

  def cut(axes: tuple[str, ...]) -> CutAxes:
    return tuple((a, both[a]) for a in axes)

  batch = tuple(a for a in op.axes if a not in sides.first + sides.second)
  chained = tuple(a for a in op.args if after[a])
  wide = is_wide(kernel, op)
  sizes = cut(sides.first), cut(sides.second), cut(sides.depth), cut(batch)
  return ProductWork(index, wide, *sizes, repeats, chained)


def _value(
  i: int,
  op: BlockOp,
  cuts: Mapping[str, str],
  lanes: Lanes,
  repeats: bool,
  after: bool,
  deep: set[tuple[str, str]],
  with_mma: bool,
) -> BlockValue:
  g = tuple((a, cuts[a]) for a in lanes.g)
  t = tuple((a, cuts[a]) for a in lanes.t)
  rest = tuple((a, cuts[a]) for a in op.axes if a not in lanes.g + lanes.t)
  rows, columns, copies, share = _FRAGMENT[op.layout]
  if not with_mma and op.layout is Layout.ROW:
    copies = 32
  if deep & set(g + t + rest):
    share |= Share.DEPTH
  return BlockValue(i, op, Extent(g, t, rest), (rows, columns), copies, share, repeats, after)


def _live(kernel: Kernel, values: tuple[BlockValue, ...]) -> tuple[tuple[tuple[int, int], ...], ...]:
  """The sets of values that registers hold at once, as counts of values of equal size.

  What lies beside an operand is made fragment by fragment, and without contractions everything
  is, except what has to wait for a reduction; a result that only accumulates does so in place.
  """
  ops = kernel.ops
  end = len(ops)
  users = users_of(kernel)
  saved = {s.arg for s in kernel.saves}
  with_mma = any(op.op == "matmul" for op in ops)
  held: dict[int, tuple[int, int]] = {}
  for v in values:
    op = v.op
    if op.layout in (Layout.SHARED, Layout.ELEMENT, Layout.UNIFORM):
      continue
    accumulates = op.op in ACCUMULATORS or kind_of(op.op) is Kind.RUNNING
    steady_load = op.op == "load" and op.phase is Phase.LOOP and with_mma
    if with_mma and not (v.after_matmul or accumulates or steady_load):
      continue
    if users[v.index] and all(ops[u].op in ACCUMULATORS for u in users[v.index]):
      continue
    last = end if v.index in saved else max(users[v.index], default=v.index)
    first = v.index
    if op.op == "load":
      first = min(users[v.index], default=first)
    if accumulates or steady_load:
      first = -1
    held[v.index] = (first, end if kind_of(op.op) is Kind.RUNNING else last)
  same: dict[tuple[object, ...], int] = {}
  kind = {v.index: same.setdefault((v.extent, v.op.layout, v.op.dtype, v.repeats), v.index) for v in values}
  points = [i for i, op in enumerate(ops) if with_mma or op.op in REDUCTIONS]
  sets = [
    Counter(kind[i] for i, (first, last) in held.items() if first <= p < last) for p in points or [end - 1]
  ]
  distinct = list({tuple(sorted(s.items())): s for s in sets}.values())
  largest = [s for s in distinct if not any(s < other for other in distinct)]
  return tuple(tuple(sorted(s.items())) for s in largest)
