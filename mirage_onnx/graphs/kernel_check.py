"""Does a kernel with numbers keep to a restriction? Positional maps against named axes.

A search asks for thousands of numbers of one kernel, so what depends on the kernel is read off it
once, and what depends on its block counts only is remembered by these.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from mirage_onnx.graphs.restriction import Restriction, Triple
from mirage_onnx.ir import Candidate, Kernel, KernelParams, Region, ugraph_extents

#: Canonical tensor name -> the axes that each of its dimensions holds.
Dimensions = Mapping[str, tuple[tuple[str, ...], ...]]
#: Blocks of every grid dimension, then the ranks of a cluster; None where the number is not known.
Counts = tuple[int | None, ...]
#: What a split is of a tensor that is whole in every block: no name of an axis.
REPLICATED = ""


@dataclass(frozen=True, slots=True)
class _Split:
  """A grid dimension, or the cluster: the axis of every load and save that it splits."""

  loads: tuple[str, ...]
  saves: tuple[str, ...]


class KernelCheck:
  """The check of one kernel of a program for a region.

  ``extents``: of the axes, as far as they are known. The tiles of an earlier kernel (``a3/k0``)
  are not during a search, and what depends on them is allowed then: ``keeps_to`` decides when the
  program is whole.
  """

  def __init__(
    self, restriction: Restriction, region: Region, kernel: Kernel, extents: Mapping[str, int]
  ) -> None:
    self._restriction, self._kernel, self._extents = restriction, kernel, extents
    self._dims: Dimensions = {x.name: x.dims for x in (*region.inputs, *region.outputs)}
    self._splits = [
      _Split(
        tuple(o.imap[i] or REPLICATED for o in kernel.loads),
        tuple(s.omap[i] or REPLICATED for s in kernel.saves),
      )
      for i in range(len(kernel.grid))
    ]
    # All ranks of a cluster agree on what is saved, so they split nothing of it.
    ranks = tuple(o.cmap or REPLICATED for o in kernel.loads)
    self._splits.append(_Split(ranks, (REPLICATED,) * len(kernel.saves)))
    self._walks = self._walks_allowed()
    self._fitting: dict[Counts, bool] = {}

  def allows(self, params: KernelParams) -> bool:
    """Whether the kernel with these numbers keeps to the restriction."""
    wanted = self._restriction
    if wanted.blockdims is not None and (32 * params.warps, 1, 1) not in wanted.blockdims:
      return False
    iterations = self._iterations(params)
    if wanted.franges is not None and iterations not in (None, *wanted.franges):
      return False
    if iterations != 1 and not self._walks:
      return False
    counts = self._counts(params)
    if counts not in self._fitting:
      self._fitting[counts] = self._fits(counts)
    return self._fitting[counts]

  def _iterations(self, params: KernelParams) -> int | None:
    """The most iterations of the loop that a rank of a block makes."""
    kernel = self._kernel
    if kernel.loop is None:
      return 1
    size = self._extents.get(kernel.loop)
    if size is None:
      return None
    if kernel.loop in kernel.grid:
      size = min(size, params.tile[kernel.grid.index(kernel.loop)])
    if kernel.cluster == kernel.loop:
      size = -(-size // params.cluster)
    return -(-size // params.loop_tile)

  def _walks_allowed(self) -> bool:
    """Whether the loop, where it makes several iterations, walks allowed dimensions."""
    fmaps = self._restriction.fmaps
    return fmaps is None or all(
      any(_is_at(d, o.fmap or REPLICATED, self._dims[o.tensor]) for d in fmaps)
      for o in self._kernel.loads
      if o.tensor in self._dims
    )

  def _counts(self, params: KernelParams) -> Counts:
    pairs = zip(self._kernel.grid, params.tile, strict=True)
    sizes = ((self._extents.get(axis), tile) for axis, tile in pairs)
    blocks = (None if size is None else -(-size // tile) for size, tile in sizes)
    return (*blocks, params.cluster if self._kernel.cluster is not None else 1)

  def _fits(self, counts: Counts) -> bool:
    """Whether the splits, called x, y and z in some order, make an allowed grid and maps."""
    wanted = self._restriction
    if wanted.griddims is None and wanted.imaps is None and wanted.omaps is None:
      return True
    splits = [(n, s) for n, s in zip(counts, self._splits, strict=True) if n != 1]
    missing: list[tuple[int, None]] = [(1, None)] * (3 - len(splits))
    return len(splits) <= 3 and any(self._fits_as(placed) for placed in permutations([*splits, *missing]))

  def _fits_as(self, placed: Sequence[tuple[int | None, _Split | None]]) -> bool:
    wanted, kernel = self._restriction, self._kernel
    if wanted.griddims is not None and not any(
      all(mine in (None, n) for (mine, _), n in zip(placed, grid, strict=True)) for grid in wanted.griddims
    ):
      return False
    loads = (
      (o.tensor, [None if s is None else s.loads[i] for _, s in placed]) for i, o in enumerate(kernel.loads)
    )
    saves = (
      (t.tensor, [None if s is None else s.saves[i] for _, s in placed]) for i, t in enumerate(kernel.saves)
    )
    return self._are_among(wanted.imaps, loads) and self._are_among(wanted.omaps, saves)

  def _are_among(
    self, allowed: Sequence[Triple] | None, maps: Iterable[tuple[str, Sequence[str | None]]]
  ) -> bool:
    """Whether every map of an input or output is allowed; None is a place without a split."""
    return allowed is None or all(
      any(
        all(a is None or _is_at(d, a, held) for d, a in zip(triple, axes, strict=True)) for triple in allowed
      )
      for tensor, axes in maps
      if (held := self._dims.get(tensor)) is not None
    )


def _is_at(dimension: int, axis: str, held: Sequence[tuple[str, ...]]) -> bool:
  """Whether a positional map says what a named one does."""
  if axis == REPLICATED or dimension == -1:
    return axis == REPLICATED and dimension == -1
  return dimension < len(held) and axis in held[dimension]


class KernelFilter:
  """What a search asks about kernels and their numbers. It can be pickled.

  A search asks for all numbers of one kernel in a row, so the last check is kept.
  """

  def __init__(self, restriction: Restriction, region: Region) -> None:
    self._restriction, self._region = restriction, region
    self._last: tuple[Kernel, KernelCheck] | None = None

  def __call__(self, kernel: Kernel, params: KernelParams) -> bool:
    """Whether the kernel may be part of a result, as far as is known of it alone."""
    if self._last is None or self._last[0] is not kernel:
      region = self._region
      self._last = kernel, KernelCheck(self._restriction, region, kernel, region.extents)
    return self._last[1].allows(params)


def keeps_to(restriction: Restriction, region: Region, candidate: Candidate) -> bool:
  """Whether every kernel of a program for the region keeps to the restriction."""
  graph, numbers = candidate.ugraph, candidate.params
  extents = ugraph_extents(graph, numbers, region.extents)
  return all(
    KernelCheck(restriction, region, k, extents).allows(p)
    for k, p in zip(graph.kernels, numbers, strict=True)
  )
