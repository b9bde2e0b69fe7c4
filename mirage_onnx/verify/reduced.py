"""Small extents and numbers at which every split of a µGraph does something.

A µGraph is verified for all numbers at once, so it is run where a mistake has no place to hide:

uneven  Extents are different odd primes. A grid dimension makes 2 blocks, the second shorter; a
        cluster has 3 ranks, none empty in the first block and the last with fewer elements; a loop
        makes an odd number of iterations, at least 3, the last one short; a rank with less of the
        loop axis makes fewer.
even    Extents are different even numbers. Every split is exact: 3 equal blocks, 2 equal
        iterations, an even number of ranks, at least 4, with equal pieces but for the last ranks,
        which have *nothing*.
whole   The extents of ``uneven``, but one block, one rank and one iteration with tiles longer than
        their axes.

A part axis has 2 and 3 elements, or as many (an odd and an even number) as the kernels that split
it again need. No axis has one extent in ``uneven`` and ``even``, so a literal passes for it in one
at most; the same holds of one count (blocks, ranks, iterations) passing for another. So programs
fail that are right only for some tails, parities, counts, for no empty rank, or where nothing is
split. Not shown: one that is right in all three and wrong elsewhere, for 5 ranks, say. A µGraph can
know the number of its ranks, iterations or blocks only by adding up ones, and a formula in that
number needs a degree of at least 3 to vanish in all three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import Kernel, KernelParams, UGraph, part_axis

PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61)
EVENS = tuple(range(4, 65, 2))


@dataclass(frozen=True, slots=True)
class Instantiation:
  """Extents of a region's axes and numbers of kernels."""

  extents: Mapping[str, int]
  params: tuple[KernelParams, ...]

  def to_text(self) -> str:
    sizes = " ".join(f"{a}={n}" for a, n in sorted(self.extents.items()))
    return "; ".join([sizes, *(p.to_text() for p in self.params)])


@dataclass(frozen=True, slots=True)
class Split:
  """How a kernel splits one axis: elements per block, ranks, elements per iteration."""

  tile: int
  ranks: int = 1
  step: int = 0


@dataclass(frozen=True, slots=True)
class Roles:
  """Which levels of a kernel split an axis."""

  grid: bool
  cluster: bool
  loop: bool

  @classmethod
  def of(cls, kernel: Kernel, axis: str) -> Roles:
    return cls(axis in kernel.grid, axis == kernel.cluster, axis == kernel.loop)


def _uneven(size: int, roles: Roles, blocks: int) -> Iterator[Split]:
  """Splits of ``size`` elements with a short last block, rank and iteration."""
  for tile in range(2, size) if roles.grid else (size,):
    if roles.grid and (-(-size // tile) != blocks or size % tile == 0):
      continue
    ranks = 3 if roles.cluster else 1
    piece = -(-tile // ranks)
    last = tile - (ranks - 1) * piece
    if roles.cluster and not 0 < last < piece:
      continue
    for step in range(piece - 1, 1, -1) if roles.loop else (0,):
      if roles.loop:
        count = -(-piece // step)
        fewer = not roles.cluster or -(-last // step) < count
        if count < 3 or count % 2 == 0 or piece % step == 0 or not fewer:
          continue
      yield Split(tile, ranks, step)


def _even(size: int, roles: Roles, blocks: int) -> Iterator[Split]:
  """Splits of ``size`` elements into equal parts, the last rank without any."""
  if roles.grid and (size % blocks or size == blocks):
    return
  tile = size // blocks if roles.grid else size
  for ranks in range(4, 17, 2) if roles.cluster else (1,):
    piece = -(-tile // ranks)
    if roles.cluster and (tile % piece or tile // piece == ranks):
      continue
    for count in range(2, piece + 1, 2) if roles.loop else (0,):
      if count and piece % count == 0:
        yield Split(tile, ranks, piece // count)
      elif not count:
        yield Split(tile, ranks)


@dataclass(frozen=True, slots=True)
class SizeRule:
  """``uneven`` or ``even``: extents and numbers of blocks to choose from, splits of an axis."""

  sizes: tuple[int, ...]
  blocks: tuple[int, ...]
  splits: Callable[[int, Roles, int], Iterator[Split]]


#: The first number of blocks is the usual one.
UNEVEN = SizeRule(PRIMES, (2, *range(3, 24, 2)), _uneven)
EVEN = SizeRule(EVENS, (3, *range(4, 24, 2)), _even)


def small_extents(
  axes: Iterable[str],
  fits: Callable[[str, int], bool] | None = None,
  sizes: Iterable[int] = PRIMES,
) -> dict[str, int]:
  """Axis -> the smallest of ``sizes`` that fits and that no more demanding axis has.

  Raises:
      RejectionError: INCONCLUSIVE, there is no size left for an axis.
  """
  free = sorted(sizes)

  def first(axis: str) -> int:
    """The smallest of the free sizes that fits."""
    for size in free:
      if not fits or fits(axis, size):
        return size
    raise RejectionError("INCONCLUSIVE", f"no small extent is left for axis {axis}")

  extents: dict[str, int] = {}
  for _, axis in sorted((-first(a), a) for a in axes):
    extents[axis] = first(axis)
    free.remove(extents[axis])
  return extents


def reduced_instantiations(graph: UGraph, axes: Iterable[str]) -> tuple[Instantiation, ...]:
  """``uneven``, ``even`` and ``whole`` for a µGraph over ``axes`` (without its part axes).

  Raises:
      RejectionError: INCONCLUSIVE, there are too many axes or splits of one axis.
  """
  axes = tuple(axes)
  uneven = _Solver(UNEVEN, graph).instantiation(axes)
  even = _Solver(EVEN, graph).instantiation(axes)
  return uneven, even, Instantiation(uneven.extents, _whole(graph, uneven.extents))


def reduced_instantiation(graph: UGraph, axes: Iterable[str]) -> Instantiation:
  """``uneven`` alone."""
  return _Solver(UNEVEN, graph).instantiation(tuple(axes))


def _whole(graph: UGraph, extents: Mapping[str, int]) -> tuple[KernelParams, ...]:
  # A part axis has one element here.
  def longer(axis: str) -> int:
    return extents.get(axis, 1) + 1

  return tuple(
    KernelParams(tuple(map(longer, k.grid)), loop_tile=longer(k.loop) if k.loop else 0) for k in graph.kernels
  )


class _Solver:
  """One rule applied to one µGraph."""

  def __init__(self, rule: SizeRule, graph: UGraph) -> None:
    self._rule, self._kernels = rule, graph.kernels
    self._axes = {a for t in graph.tensors for a in t.axes}
    self._roles: dict[str, list[tuple[Kernel, Roles]]] = {}
    for kernel in graph.kernels:
      cut = (a for a in (*kernel.grid, kernel.cluster, kernel.loop) if a is not None)
      for axis in dict.fromkeys(cut):
        self._roles.setdefault(axis, []).append((kernel, Roles.of(kernel, axis)))

  def instantiation(self, axes: tuple[str, ...]) -> Instantiation:
    extents = small_extents(axes, self._fits, self._rule.sizes)
    sizes = dict(extents)
    for kernel in self._kernels:
      sizes |= {part_axis(a, kernel.name): self._blocks(kernel, a) for a in kernel.grid}
    return Instantiation(extents, tuple(self._numbers(k, sizes) for k in self._kernels))

  def _numbers(self, kernel: Kernel, sizes: Mapping[str, int]) -> KernelParams:
    splits: dict[str, Split] = {}
    for axis, users in self._roles.items():
      for roles in (r for k, r in users if k is kernel):
        split = self._split(kernel, roles, axis, sizes[axis])
        assert split is not None
        splits[axis] = split
    return KernelParams(
      tile=tuple(splits[a].tile for a in kernel.grid),
      cluster=splits[kernel.cluster].ranks if kernel.cluster else 1,
      loop_tile=splits[kernel.loop].step if kernel.loop else 0,
    )

  def _split(self, kernel: Kernel, roles: Roles, axis: str, size: int) -> Split | None:
    blocks = self._blocks(kernel, axis) if roles.grid else 1
    return next(self._rule.splits(size, roles, blocks), None)

  def _fits(self, axis: str, size: int) -> bool:
    """Can every kernel split ``size`` elements of ``axis`` as the rule wants?"""
    splits = (self._split(k, roles, axis, size) for k, roles in self._roles.get(axis, ()))
    return all(s is not None for s in splits)

  def _blocks(self, kernel: Kernel, axis: str) -> int:
    """Blocks along a grid axis: more than usual where other kernels split the parts again."""
    part = part_axis(axis, kernel.name)
    if part not in self._axes:
      return self._rule.blocks[0]
    fitting = next((n for n in self._rule.blocks if self._fits(part, n)), None)
    if fitting is None:
      raise RejectionError("INCONCLUSIVE", f"no small number of parts fits {part}")
    return fitting
