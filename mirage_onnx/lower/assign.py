"""Which form every register value of a kernel has: few conversions, then few registers.

A contraction says how its operands and its result lie. Everything between them may lie as any of
these *frames* does; pieces that no contraction has get a frame of their own, along all lanes. The
choice is a ``MinSum``: a use that wants another form goes through shared memory and costs
``MOVE``, inside the loop ``LOOP_WEIGHT`` times; registers are the tie-break.

Without contractions there is one frame for the whole kernel, the best of all that have one piece
along the lanes and some of the others over rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import prod

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.block_ops import ACCUMULATORS, CLUSTER, LEAVES, REDUCTIONS, RUNNING
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.functions import is_elementwise
from mirage_onnx.ir.ugraph import BlockOp, Kernel, Phase
from mirage_onnx.lower.forms import MMA, Form, Geometry, Side, Warps, vector
from mirage_onnx.lower.in_place import InPlace
from mirage_onnx.lower.min_sum import MinSum, minimise
from mirage_onnx.lower.pieces import Piece, Pieces

#: Lanes that may have a row, and neighbours of it in a lane, the best first; elements of a row in a lane.
LANES, WIDTHS, _MOST_OF_ROW = (1, 2, 4, 8, 16, 32), (8, 4, 2, 1), 64
MOVE, LOOP_WEIGHT, _NEVER = 10_000, 8, 1_000_000_000
#: Ops that leave a value where it lies.
KEEPS = ACCUMULATORS | RUNNING | CLUSTER


@dataclass(frozen=True, slots=True)
class ProductForms:
  """The forms of a contraction: first operand, second operand, result."""

  a: Form
  b: Form
  c: Form
  depth: Piece

  @classmethod
  def of(cls, op: BlockOp, pieces: tuple[dict[str, Piece], ...]) -> ProductForms:
    """The forms that a ``matmul`` takes its arguments in, and leaves its result in."""
    first, second = (pieces[i] for i in op.args)
    depth = first[op.reduced[0]]
    rows = _side(p for a, p in first.items() if a not in second)
    columns = _side(p for a, p in second.items() if a not in first)
    frames = Form(MMA, rows, (depth,), ()), Form(MMA, columns, (depth,), ())
    result = {**first, **second}
    c = Form(MMA, rows, columns, ()).of(p for a, p in result.items() if a in op.axes)
    return cls(frames[0].of(first.values()), frames[1].of(second.values()), c, depth)


def _side(pieces: Iterator[Piece]) -> Side:
  """What is one element wide is repeated once instead."""
  return tuple(sorted(p for p in pieces if p.length > 1))


def folded(form: Form, gone: set[Piece]) -> Form | None:
  """What a reduction over ``gone`` leaves of a form; None if a side goes only in part."""
  g, t = set(form.g), set(form.t)
  if (g & gone and not g <= gone) or (t & gone and not t <= gone):
    return None
  left = Form(
    form.lanes,
    () if g & gone else form.g,
    () if t & gone else form.t,
    tuple(p for p in form.rest if p not in gone),
  )
  return left if left.g or left.t else Form(MMA, (), (), left.rest)


@dataclass(slots=True)
class Assignment:
  """Forms of values and products by index. A load has none: it is read as it is needed.

  ``update``: outputs in the memory of inputs, then what says whether anything changes comes first.
  """

  kernel: Kernel
  pieces: Pieces
  needed: frozenset[int]
  products: dict[int, ProductForms]
  frames: tuple[Form, ...] = ()
  update: InPlace | None = None

  @classmethod
  def of(cls, kernel: Kernel, pieces: Pieces, needed: frozenset[int]) -> Assignment:
    """What the contractions of a kernel want."""
    products = {
      i: ProductForms.of(op, pieces.of_value)
      for i, op in enumerate(kernel.ops)
      if op.op == "matmul" and i in needed
    }
    return cls(kernel, pieces, needed, products)

  @property
  def even(self) -> frozenset[Side]:
    """Sides that tensor-core contractions take 16 elements of at a time."""
    found: set[Side] = set()
    for i, p in self.products.items():
      if self.kernel.ops[self.kernel.ops[i].args[0]].dtype.is_half:
        found |= {p.c.g, (p.depth,)}
    return frozenset(found - {()})

  def values(self) -> list[int]:
    """The values that have a form."""
    return [i for i in sorted(self.needed) if self.kernel.ops[i].op not in LEAVES]

  def own(self, index: int) -> dict[str, Piece]:
    """The pieces of a value by axis."""
    return self.pieces.of_value[index]

  def forms(self) -> dict[int, Form]:
    """The forms of a kernel with contractions."""
    frames = [f for p in self.products.values() for f in (p.c, p.a, p.b)]
    covered = {p for f in frames for p in f.g + f.t}
    every = {p for i in self.needed for p in self.own(i).values()}
    lone = sorted(p for p in every - covered if p.length > 1)
    frames += [Form(vector(1), (), (p,), ()) for p in lone]
    self.frames = tuple(dict.fromkeys(Form(f.lanes, f.g, f.t, ()) for f in frames))
    values = self.values()
    at = {i: n for n, i in enumerate(values)}
    domains = [self._domain(i) for i in values]
    plain = Warps((), 1, self.even)
    single = tuple(tuple(min(plain.registers(f), MOVE - 1) for f in d) for d in domains)
    tables = (
      (at[arg], at[i], self._uses(i, n, domains[at[arg]], domains[at[i]]))
      for i in values for n, arg in enumerate(self.kernel.ops[i].args) if arg in at
    )  # fmt: skip
    problem = MinSum.of(single, tables)
    chosen = minimise(problem)
    if problem.cost(chosen) >= _NEVER:
      raise RejectionError("LAYOUT", f"{self.kernel.name}: no layout holds its values")
    return {i: domains[n][chosen[n]] for n, i in enumerate(values)}

  def _domain(self, index: int) -> tuple[Form, ...]:
    if index in self.products:
      return (self.products[index].c,)
    own = self.own(index).values()
    return tuple(dict.fromkeys(f.of(own) for f in self.frames)) or (Form(MMA, (), (), ()).of(own),)

  def _uses(self, user: int, n: int, haves: tuple[Form, ...], owns: tuple[Form, ...]) -> list[list[int]]:
    """Costs of argument ``n`` of a value: it lies like each of ``haves``, the value like each of ``owns``."""
    op = self.kernel.ops[user]
    arg = op.args[n]
    inside = self.kernel.ops[arg].phase is Phase.LOOP and op.phase is Phase.LOOP
    move = MOVE * (LOOP_WEIGHT if inside else 1)
    if op.op in KEEPS and n == 0:
      return [[0 if have == own else _NEVER for own in owns] for have in haves]
    if op.op in REDUCTIONS:
      gone = {self.own(arg)[a] for a in op.reduced}
      left = [folded(have, gone) for have in haves]
      return [[0 if form == own else 2 * move for own in owns] for form in left]
    if op.op == "matmul":
      half, product = self.kernel.ops[arg].dtype.is_half, self.products[user]
      want = (product.a, product.b)[n]
      return [[0 if half and have == want else move] * len(owns) for have in haves]
    pieces = self.own(arg).values()
    wants = [own.of(pieces) for own in owns]
    return [[0 if have == want else move for want in wants] for have in haves]


def vector_frames(kernel: Kernel, pieces: Pieces, needed: frozenset[int]) -> Iterator[Form]:
  """The frames that a kernel without contractions may have, likely ones first."""
  own = pieces.of_value
  every = sorted({p for i in needed for p in own[i].values() if p.length > 1})
  gone = {
    own[op.args[0]][a]
    for i, op in enumerate(kernel.ops)
    if i in needed and op.op in REDUCTIONS
    for a in op.reduced
  }
  for t in every:
    others = [p for p in every if p != t]
    kept = tuple(p for p in others if p not in gone)
    sides: dict[Side, None] = {kept: None, (): None}
    sides.update(((p,), None) for p in others)
    sides.update((pair, None) for pair in combinations(others, 2))
    for g in sides:
      yield Form(vector(1), g, (t,), ())
  if not every:
    yield Form(MMA, (), (), ())


def row_frame(kernel: Kernel, pieces: Pieces, needed: frozenset[int], warps: int) -> Form | None:
  """The frame of a kernel whose block has rows of one axis, if the warps share them out; else None.

  A thread has vectors of up to eight neighbours; short rows share a warp.
  """
  inside = {a for op in kernel.ops for a in op.axes if a not in kernel.grid}
  every = {p for i in needed for p in pieces.of_value[i].values()}
  rows = tuple(p for p in every if p.axis not in inside and p.length > 1)
  (row, *others) = [p for p in every if p.axis in inside] or (None,)
  threads, rest = divmod(32 * warps, prod(p.length for p in rows))
  sums = all(o.dtype is DType.F32 for o in kernel.ops if o.op in REDUCTIONS)
  plain = all(o.op in LEAVES | REDUCTIONS or is_elementwise(o.op) for o in kernel.ops)
  shorter = any(a.tile < t for a, t in zip(pieces.grid.axes, pieces.params.tile, strict=True))
  if kernel.loop is not None or pieces.params.cluster > 1 or shorter or not (sums and plain):
    return None
  if row is None or others or len(rows) > 1 or rest or (rows and threads not in LANES):
    return None
  width = next(w for w in WIDTHS if row.length % w == 0 and (w == 1 or 2 * row.length >= w * threads))
  if -(-row.length // (threads * width)) * width > _MOST_OF_ROW:
    return None
  lanes = min(32, threads)
  return Form(Geometry(32 // lanes, lanes, width), rows, (row,), ())


def partial_folds(
  kernel: Kernel, pieces: Pieces, forms: Mapping[int, Form], frame: Form, needed: frozenset[int]
) -> int:
  """Reductions that have to go through shared memory with this frame."""
  count = 0
  for i, op in enumerate(kernel.ops):
    if i in needed and op.op in REDUCTIONS:
      own = pieces.of_value[op.args[0]]
      have = frame.of(own.values())
      count += folded(have, {own[a] for a in op.reduced}) != forms[i]
  return count
