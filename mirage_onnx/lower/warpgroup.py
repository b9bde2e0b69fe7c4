"""Contractions by wgmma: where they can be, and their text.

The rows of a block's tile are shared out by 16 over its warps, so 64 to each warpgroup, whose four
warps have the same columns and the same depth; other warpgroups may have others of both. Operand B,
and operand A unless it is computed, are tiles in shared memory in rows of 128 bytes, swizzled
(``SharedTile.swizzled``); a computed A is fragments in registers. Everything else about a kernel is
as with ``mma``.

Products run beside the threads. One iteration's are left under way while the next one's tiles are
waited for, if nothing but the accumulators takes them: then the ring frees a tile one step later.
"""

from collections.abc import Mapping
from dataclasses import replace

from mirage_onnx.instructions import WGMMA
from mirage_onnx.ir import Kernel, KTensor
from mirage_onnx.lower.assign import Assignment, ProductForms
from mirage_onnx.lower.dataflow import made_of
from mirage_onnx.lower.forms import Side, Warps
from mirage_onnx.lower.lanes import Contraction
from mirage_onnx.lower.pieces import Piece

#: Where the tiles that descriptors name begin.
TILE_ALIGNMENT = 1024


def oriented(kernel: Kernel, tensors: Mapping[str, KTensor]) -> Kernel:
  """The kernel with the columns of its contractions along the last axis of what is saved.

  Which argument of a contraction is operand A is free, but results are written by columns.
  """
  lasts = [tensors[s.tensor].axes[-1] for s in kernel.saves if tensors[s.tensor].axes]
  ops = []
  for op in kernel.ops:
    if op.op == "matmul":
      last = next((a for a in lasts if a in op.axes), None)
      if last in Contraction.of(kernel, op).first:
        op = replace(op, args=op.args[::-1])
    ops.append(op)
  return replace(kernel, ops=tuple(ops))


def fitting_products(assignment: Assignment, warps: Warps, tensors: Mapping[str, KTensor]) -> frozenset[int]:
  """The contractions that wgmma does with this split of the warps."""
  found = (i for i, p in assignment.products.items() if _fits(assignment, warps, i, p))
  return frozenset(i for i in found if _is_tile(assignment, i, tensors))


def _is_tile(assignment: Assignment, index: int, tensors: Mapping[str, KTensor]) -> bool:
  """Whether operand B of a contraction is a load in rows along the depth, or along the columns."""
  op = assignment.kernel.ops[assignment.kernel.ops[index].args[1]]
  if op.op != "load":
    return False
  own = assignment.own(assignment.kernel.ops[index].args[1])
  order = tuple(own[a] for a in tensors[op.tensor].axes)
  product = assignment.products[index]
  return _along_depth(order, product, product.b.g) or is_turned(order, product)


def _along_depth(order: tuple[Piece, ...], product: ProductForms, rows: Side) -> bool:
  return order[-1:] == (product.depth,) and _rows(order) == rows


def is_turned(order: tuple[Piece, ...], product: ProductForms) -> bool:
  """Whether a tile holds operand B with a row for each depth, in panels of 64 columns."""
  columns = order[-1:] == product.c.t and order[-1].length % WGMMA.step == 0
  return columns and _rows(order) == (product.depth,)


def _fits(assignment: Assignment, warps: Warps, index: int, product: ProductForms) -> bool:
  ops, c = assignment.kernel.ops, product.c
  first, second = (ops[a] for a in ops[index].args)
  if first.dtype not in WGMMA.operands or first.dtype is not second.dtype:
    return False
  if not c.g or not c.t or any(p.length > 1 for p in c.rest) or warps.spare > 1:
    return False
  digits = [side for side, count in warps.digits if count > 1]
  rows = digits[:1] == [c.g] and warps.count(c.g) % WGMMA.warps == 0
  rows = rows and warps.tiles(c.g, 8) == 2 and warps.covers(c.g, 8)
  columns = 8 * warps.tiles(c.t, 8) in WGMMA.columns and warps.covers(c.t, 8)
  deep = product.depth.length % (WGMMA.step * warps.count((product.depth,))) == 0
  return rows and columns and deep


def is_operand(assignment: Assignment, products: frozenset[int], index: int) -> bool:
  """Whether a load is an operand of these contractions, or what an operand is computed of."""
  ops = assignment.kernel.ops
  own = [p for p in assignment.own(index).values() if p.length > 1]
  if len(own) < 2 or not ops[index].dtype.is_half:
    return False
  roots = (a for i in products for a in ops[i].args)
  return index in made_of(ops, roots, lambda a: a in assignment.products or bool(ops[a].reduced))


def is_swizzled(
  assignment: Assignment, products: frozenset[int], index: int, order: tuple[Piece, ...]
) -> bool:
  """Whether a load's tile in shared memory has the rows of an operand of these contractions."""
  for i in products:
    p = assignment.products[i]
    for a, form in zip(assignment.kernel.ops[i].args, (p.a, p.b), strict=True):
      source = made_of(assignment.kernel.ops, (a,), assignment.products.__contains__)
      if index in source and _along_depth(order, p, form.g):
        return True
      if a == index and form == p.b and is_turned(order, p):
        return True
  return False


def _rows(order: tuple[Piece, ...]) -> Side:
  """The rows of a tile with the depth last; one that is only a piece long is none."""
  return tuple(p for p in order[:-1] if p.length > 1)
