"""Outputs in the memory of an input: what keeps its value is neither read nor written.

A run may bind an input and an output of a model to one buffer (a cache, of which a step makes one
row). Where each output of a kernel is ``select(c, new, old)``, the old one an element of an input in the
same place, nothing is to be done where c is 0 and the addresses are equal; elsewhere all is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from mirage_onnx.ir import BlockOp, Kernel, KTensor, UGraph
from mirage_onnx.ir.functions import is_elementwise
from mirage_onnx.lower.dataflow import behind_casts, made_of
from mirage_onnx.lower.grid import Grid
from mirage_onnx.lower.sizes import LaunchSizes
from mirage_onnx.target import Target

#: Blocks of an update on a multiprocessor: mostly they have nothing to do; where they have,
#: so many have bytes enough under way.
UPDATING = 4


@dataclass(frozen=True, slots=True)
class InPlace:
  """``condition``: the value that says whether an element is new; ``early``: it, and all it is made of.

  ``pairs``: every output, and the input that it replaces parts of.
  """

  condition: int
  early: frozenset[int]
  pairs: tuple[tuple[str, str], ...]

  @property
  def tensors(self) -> frozenset[str]:
    """Whose addresses may be equal."""
    return frozenset(name for pair in self.pairs for name in pair)


def turns_of(grid: Grid, axis: str, extents: Mapping[str, int], target: Target) -> int:
  """How many tiles of its rows a block of an update looks at: mostly there is nothing to be done in them.

  Of a cache with room for 8192 rows the two kernels that write one took 9 us on an H100, a tile a block.
  """
  sizes = extents.extents if isinstance(extents, LaunchSizes) else extents
  tiles = {a.axis: -(-sizes[a.axis] // a.tile) for a in grid.axes}
  return max(1, min(prod(tiles.values()) // (UPDATING * target.multiprocessors), tiles[axis]))


def update_of(graph: UGraph, kernel: Kernel) -> InPlace | None:
  """What a kernel updates, where that is all it does and what is new follows from the grid alone."""
  return update_in({t.name: t for t in graph.tensors}, kernel)


def rows_of(tensors: Mapping[str, KTensor], kernel: Kernel, update: InPlace) -> frozenset[str]:
  """The axes of an update along which a run says which one is new: it names no number for each of them."""
  given = {a for i in update.early for a in _own_axes(kernel, tensors, i)}
  return frozenset(kernel.ops[update.condition].axes) - given


def _own_axes(kernel: Kernel, tensors: Mapping[str, KTensor], index: int) -> tuple[str, ...]:
  op = kernel.ops[index]
  return op.axes if op.op == "load" and tensors[op.tensor].role == "input" else ()


def update_in(tensors: Mapping[str, KTensor], kernel: Kernel) -> InPlace | None:
  """The same, of a kernel of these tensors."""
  if kernel.loop:
    return None
  conditions, pairs = set[int](), []
  for save in kernel.saves:
    chosen = kernel.ops[behind_casts(kernel.ops, save.arg)]
    if chosen.op != "select":
      return None
    old = kernel.ops[behind_casts(kernel.ops, chosen.args[2])]
    if old.op != "load" or not _same_place(tensors, old, save.tensor, save.omap):
      return None
    conditions.add(chosen.args[0])
    pairs.append((save.tensor, old.tensor))
  if len(conditions) != 1:
    return None
  (condition,) = conditions
  early = made_of(kernel.ops, (condition,))
  plain = all(kernel.ops[i].op in ("load", "const") or is_elementwise(kernel.ops[i].op) for i in early)
  if not plain or any(set(kernel.ops[i].axes) - set(kernel.grid) for i in early):
    return None
  return InPlace(condition, early, tuple(pairs))


def _same_place(
  tensors: Mapping[str, KTensor], old: BlockOp, saved: str, omap: tuple[str | None, ...]
) -> bool:
  a, b = tensors[old.tensor], tensors[saved]
  alike = a.dtype is b.dtype and a.axes == b.axes and a.windows == b.windows
  return alike and b.role == "output" and old.imap == omap and not any(w.picks for w in a.windows)
