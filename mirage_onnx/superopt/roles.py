"""The roles of the dimensions in one kernel, and what they let a value be.

A dimension is split by the grid, walked by the loop (and shared out over a cluster with it), or
whole in every tile. A grid dimension that a target sums or takes the maximum over is *parted*:
each block writes the partial result of its tile, along the part axis ``a/``.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from mirage_onnx.ir.ugraph import Phase
from mirage_onnx.superopt.egraph import PARTS, RUN, EGraph, is_part, part_of, reduced_axes
from mirage_onnx.superopt.space import Space

#: A streaming kernel's tile has 8 rows and 16 columns at least.
SMALL = 8


@dataclass(frozen=True, slots=True, order=True)
class KernelRoles:
  """What a kernel does with the dimensions; ``parts`` are grid axes whose reduction is split."""

  loop: str | None
  grid: tuple[str, ...]
  parts: tuple[str, ...] = ()

  def axes_in_block(self, axes: Iterable[str]) -> tuple[str, ...]:
    """The axes of a value inside a block: one that this kernel parts is a place of the grid."""
    if not self.parts:
      return tuple(axes)
    return tuple(a for a in axes if not (is_part(a) and a[:-1] in self.parts))


def enumerate_roles(
  g: EGraph,
  targets: tuple[int, ...],
  extents: Mapping[str, int],
  space: Space,
  runtime: Iterable[str] = (),
) -> Iterator[KernelRoles]:
  """All roles of a kernel that computes ``targets``, in a canonical order.

  An axis that nothing below the targets reduces is always split: a tile of its whole extent is
  a number, not a role. So is a ``runtime`` axis of any target, and every target has it: else its
  blocks would not cover whatever size it has, or leave a target unwritten where it has none.
  One that is reduced is walked by the loop, no tile has all of it and no blocks share it out: a
  target that varies over what is reduced below it needs another kernel to reduce it.
  """
  parts = tuple(sorted({a[:-1] for t in targets for a in g.axes(t) if _is_parted(g, t, a)}))
  common: set[str] | None = None
  for t in targets:
    own = {a[:-1] if is_part(a) and a[:-1] in parts else a for a in g.axes(t)}
    common = own if common is None else common & own
  axes = sorted(common or (), key=lambda a: (-extents.get(a, 1), a))
  if not set(parts) <= set(axes):
    return
  reduced = reduced_axes(g, targets)
  split = {a for t in targets for a in g.axes(t)}.intersection(runtime)
  if not split <= set(axes) or set(parts).intersection(runtime):
    return
  if not space.general:
    yield from _emitted_roles(axes, reduced.difference(runtime), extents, split)
    return
  loops = sorted(a for a in reduced - split if not is_part(a))
  must = [a for a in axes if a not in reduced or a in split]
  may = [a for a in axes if a in reduced - split and a not in parts]
  for loop in (None, *loops):
    fixed = [*parts, *(a for a in must if a != loop)]
    free = [a for a in may if a != loop]
    for count in range(len(free), -1, -1):
      for more in combinations(free, count):
        chosen = [a for a in axes if a in fixed or a in more]
        for grid in _three_of(chosen, (*parts, *split)):
          yield KernelRoles(loop, grid, parts)


def _is_parted(g: EGraph, c: int, axis: str) -> bool:
  """Whether a part reduction of this class makes its part axis."""
  return is_part(axis) and any(n.op in PARTS and part_of(n.over[0]) == axis for n in g.nodes(c))


def _three_of(axes: list[str], parts: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
  """A grid has three dimensions; of more axes, every choice that keeps the parted ones."""
  if len(axes) <= 3:
    yield tuple(axes)
    return
  for grid in combinations(axes, 3):
    if set(parts) <= set(grid):
      yield grid


def _emitted_roles(
  axes: list[str], reduced: set[str], extents: Mapping[str, int], split: set[str]
) -> Iterator[KernelRoles]:
  for loop in (None, *sorted(reduced)):
    free = [a for a in axes if a != loop]
    if loop is not None:
      free = [a for a in free if extents[a] > SMALL or a in split]
    for count in range(min(3, len(free)), -1, -1):
      for grid in combinations(free, count):
        if split <= set(grid):
          yield KernelRoles(loop, grid)


def unplaceable(
  g: EGraph, c: int, phase: Phase, roles: KernelRoles, space: Space, runtime: Collection[str] = ()
) -> str | None:
  """Why no value of this class can be at this phase of a kernel, or None if one can.

  ``runtime``: axes that only a run counts.
  Outside of ``tiled`` spaces: a streaming kernel keeps tiles over the loop's axis and one other
  in the loop, and over two axes after it; a row kernel spreads one axis over the threads.
  """
  axes = roles.axes_in_block(g.axes(c))
  if phase is Phase.POST and roles.loop in axes:
    return "a value that varies over the loop is needed after it"
  if phase is Phase.POST and any(n.op == RUN for n in g.nodes(c)):
    return "a running maximum is needed after its loop"
  if runtime and any(a in runtime and a != roles.loop and a not in roles.grid for a in axes):
    return "a tile with all of an axis that only a run counts"
  if space.general:
    return None
  if roles.loop is None:
    free = sum(a not in roles.grid for a in axes)
    return "a row kernel's value over two axes that the grid does not split" if free > 1 else None
  if phase is Phase.POST:
    return "a value over three axes after the loop" if len(axes) > 2 else None
  limit = 2 if roles.loop in axes else 1
  return "a value in the loop over rows and columns" if len(axes) > limit else None
