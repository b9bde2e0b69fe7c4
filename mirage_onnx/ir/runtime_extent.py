"""Sizes that only a run knows: products of dimensions of a region's inputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class Monomial:
  """``coefficient`` times the product of ``dims``, each (index of an input, its dimension).

  The indices count ``Region.given``; without dims it is the number ``coefficient``.
  """

  coefficient: int
  dims: tuple[tuple[int, int], ...] = ()

  def value(self, shapes: Sequence[Sequence[int]]) -> int:
    """Its value for inputs of these shapes."""
    return self.coefficient * prod(shapes[i][d] for i, d in self.dims)

  @property
  def text(self) -> str:
    """As ``2*i0[0]*i1[2]``."""
    factor = [] if self.coefficient == 1 and self.dims else [str(self.coefficient)]
    return "*".join([*factor, *(f"i{i}[{d}]" for i, d in self.dims)])
