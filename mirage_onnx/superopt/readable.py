"""Which values are worth writing to memory between the kernels of a program."""

from collections.abc import Iterator, Mapping
from math import prod

from mirage_onnx.ir.term import CONST, EXTENT, MAXR, MUL
from mirage_onnx.superopt.axioms import groupings
from mirage_onnx.superopt.choices import TILE
from mirage_onnx.superopt.egraph import (
  HEAVY,
  PMAX,
  PSCALED,
  RUN,
  SCALED,
  EGraph,
  ENode,
  depths,
  is_part,
  part_of,
)

_MAXIMUM = (MAXR, PMAX)
#: A shorter axis is not reduced in parts: its tile fits into a block, and parts only cost a kernel.
SPLIT = 256


def readable_classes(
  g: EGraph, extents: Mapping[str, int], operands: set[int], outputs: tuple[int, ...], most: int
) -> Iterator[int]:
  """Results of heavy nodes, operands of contractions, and outputs, of at most ``most`` elements.

  Nothing that is elementwise in the inputs, which any kernel computes as fast as it reads it, and
  nothing that only exists inside a loop. The parts of an axis are not counted as elements.
  """
  light, free = depths(g, _elementwise), depths(g, _without_running_maximum)
  for c in g.classes():
    ops = {n.op for n in g.nodes(c)}
    if not g.axes(c) or ops & {CONST, EXTENT} or c in light or c not in free:
      continue
    if not (ops & HEAVY or c in operands or c in outputs):
      continue
    if any(part_of(a) in g.axes(c) for a in g.axes(c)):
      continue
    if any(is_part(a) and extents[a[:-1]] < SPLIT for a in g.axes(c)):
      continue
    if prod(extents[a] for a in g.axes(c) if not is_part(a)) <= most:
      yield c


def contraction_operands(g: EGraph, extents: Mapping[str, int], *, batched: bool) -> set[int]:
  """Classes that are an operand of a contraction, with its factors where they cost least."""

  def work(operand: int) -> int:
    products = [len(n.children) for n in g.nodes(operand) if n.op == MUL]
    size = prod(min(extents.get(a, TILE), TILE) for a in g.axes(operand))
    return size * (min(products) - 1) if products else 0

  found: set[int] = set()
  for c in list(g.classes()):
    for n in g.nodes(c):
      if n.op in HEAVY and n.op not in _MAXIMUM and len(n.over) == 1:
        for m in g.nodes(n.children[0]):
          if m.op == MUL:
            pairs = groupings(g, m.children, n.over[0], batched=batched)
            best = min(pairs, key=lambda p: (work(p[0]) + work(p[1]), p), default=())
            found.update(best)
  return found


def _elementwise(n: ENode) -> tuple[int, ...] | None:
  return None if n.op in HEAVY else n.children


def _without_running_maximum(n: ENode) -> tuple[int, ...] | None:
  # A rescaled sum ends its loop: the running maxima of its terms are its own.
  return None if n.op == RUN else n.children[n.op in (SCALED, PSCALED) :]
