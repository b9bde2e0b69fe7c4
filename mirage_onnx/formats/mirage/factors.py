"""Dimensions as products of factors, found by splitting them only where something splits them.

A dimension of extent 4096 that a grid cuts in 8, a loop in 4 and a consumer reads in chunks of 64
is 8 x 4 x 2 x 64. AxisFactors are found as they are needed: a dimension starts as one factor; ``take``
splits off the outer part of a given size; ``tie`` says that two dimensions are one and splits both
until they agree. What was said about a factor before a split holds for its parts after it.
"""

from math import prod

from mirage_onnx.errors import RejectionError

#: A dimension: factors from the slowest to the fastest; () has extent 1. A factor that was split
#: or tied since stands for others: ``AxisFactors.leaves`` gives the present ones.
Dim = tuple[int, ...]


class AxisFactors:
  """AxisFactors, each of a known extent >= 2; some stand for a sequence of others."""

  def __init__(self) -> None:
    self._extent: list[int] = []
    self._stands_for: list[Dim | None] = []

  def new(self, extent: int) -> Dim:
    """A dimension of this extent that nothing is known about."""
    if extent == 1:
      return ()
    self._extent.append(extent)
    self._stands_for.append(None)
    return (len(self._extent) - 1,)

  def extent(self, factor: int) -> int:
    return self._extent[factor]

  def size(self, dim: Dim) -> int:
    return prod(self._extent[f] for f in dim)

  def leaves(self, dim: Dim) -> Dim:
    """The factors of ``dim`` as they are now."""
    result: list[int] = []
    for factor in dim:
      parts = self._stands_for[factor]
      result += [factor] if parts is None else self.leaves(parts)
    return tuple(result)

  def take(self, dim: Dim, outer: int) -> tuple[Dim, Dim]:
    """``dim`` as (outer part of extent ``outer``, rest).

    Raises:
        RejectionError: SAVED_INVALID where ``outer`` does not divide the extent,
            SAVED_UNSUPPORTED where it cuts across factors.
    """
    if self.size(dim) % outer:
      raise RejectionError("SAVED_INVALID", f"a dimension of {self.size(dim)} is cut into {outer} pieces")
    leaves, taken, left = self.leaves(dim), 0, outer
    while left > 1:
      extent = self._extent[leaves[taken]]
      if extent > left:
        self._split(leaves[taken], left)
        leaves = self.leaves(leaves)
        extent = left
      if left % extent:
        raise self._across(extent, left)
      left //= extent
      taken += 1
    return leaves[:taken], leaves[taken:]

  def tie(self, a: Dim, b: Dim) -> None:
    """From now on ``a`` and ``b``, of equal extent, are one dimension.

    Raises:
        RejectionError: SAVED_UNSUPPORTED where their factors have no common refinement.
    """
    assert self.size(a) == self.size(b)
    while (pair := self._first_difference(a, b)) is not None:
      x, y = pair
      m, n = self._extent[x], self._extent[y]
      if m == n:
        self._stands_for[y] = (x,)
      elif m > n:
        self._split(x, n)
      else:
        self._split(y, m)

  def _first_difference(self, a: Dim, b: Dim) -> tuple[int, int] | None:
    pairs = zip(self.leaves(a), self.leaves(b), strict=False)
    return next(((x, y) for x, y in pairs if x != y), None)

  def _split(self, factor: int, outer: int) -> None:
    if self._extent[factor] % outer:
      raise self._across(self._extent[factor], outer)
    inner = self._extent[factor] // outer
    self._stands_for[factor] = (*self.new(outer), *self.new(inner))

  def _across(self, extent: int, wanted: int) -> RejectionError:
    return RejectionError(
      "SAVED_UNSUPPORTED", f"pieces of {extent} and of {wanted} cut one dimension crosswise"
    )
