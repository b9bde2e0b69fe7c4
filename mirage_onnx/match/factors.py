"""Atomic axes: the factors into which reshapes split the dimensions of a region's tensors.

A class of dimensions (``axes.py``) has cut points where some reshape begins or ends a dimension
inside it. Cut points spread over every reshape until nothing changes; between two of them lies an
atom, and the atoms on both sides of a reshape are the same ones.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, TypeVar

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.factors import are_nested

Item = TypeVar("Item", bound=Hashable)
Dimension = tuple[str, int]
#: A class of dimensions, and the number of the atom in it, the slowest first.
Atom = tuple[Dimension, int]


class Union(Generic[Item]):
  """Union-find; every class is known by its least item that was joined."""

  def __init__(self) -> None:
    self._parent: dict[Item, Item] = {}

  def find(self, d: Item) -> Item:
    parent = self._parent
    parent.setdefault(d, d)
    while parent[d] != d:
      parent[d] = parent[parent[d]]
      d = parent[d]
    return d

  def join(self, a: Item, b: Item) -> None:
    first, second = sorted((self.find(a), self.find(b)))  # type: ignore[type-var]
    self._parent[second] = first


@dataclass(frozen=True, slots=True)
class Regrouping:
  """Adjacent dimensions, slowest first, that a reshape makes of adjacent dimensions."""

  before: tuple[Dimension, ...]
  after: tuple[Dimension, ...]
  output: str


@dataclass(slots=True)
class Factors:
  """The atoms of dimension classes; ``size`` is the extent of a dimension."""

  find: Callable[[Dimension], Dimension]
  size: Callable[[Dimension], int]
  cuts: dict[Dimension, frozenset[int]] = field(default_factory=dict)
  joined: Union[Atom] = field(default_factory=Union)

  def split(self, regroupings: Sequence[Regrouping]) -> None:
    """Cut classes until every regrouping has the same factors on both sides, and join those.

    Raises:
        RejectionError: AXES_CONFLICT where the cut points of several reshapes do not nest.
    """
    while sum(map(self._spread, regroupings)):  # not any(): all of them, every time
      pass
    for g in regroupings:
      sides = ([a for d in side for a in self._own(d)] for side in (g.before, g.after))
      for a, b in zip(*sides, strict=True):
        self.joined.join(a, b)

  def _spread(self, g: Regrouping) -> bool:
    """Give both sides the cut points of either; whether a class has more of them now."""
    points = {p for side in (g.before, g.after) for p in self._points(side)}
    if not are_nested(points):
      reason = f"reshapes split the dimensions of {g.output} in ways that do not nest"
      raise RejectionError("AXES_CONFLICT", reason, (g.output,))
    changed = False
    for side in (g.before, g.after):
      for d, low in _offsets(side, self.size):
        own = frozenset(p // low for p in points if low < p < low * self.size(d))
        root = self.find(d)
        have = self.cuts.get(root, frozenset())
        if not own <= have:
          self.cuts[root] = have | own
          changed = True
    return changed

  def _points(self, side: Sequence[Dimension]) -> Iterable[int]:
    for d, low in _offsets(side, self.size):
      yield low
      yield from (low * c for c in self.cuts.get(self.find(d), ()))

  def _own(self, d: Dimension) -> list[Atom]:
    root = self.find(d)
    return [(root, k) for k in range(1 + len(self.cuts.get(root, ())))]

  def atoms(self, d: Dimension) -> list[tuple[Atom, int]]:
    """The atoms of a dimension with their extents, slowest first."""
    cuts = self.cuts.get(self.find(d), frozenset())
    points = sorted({1, *cuts}, reverse=True)
    points = [self.size(d), *points]
    extents = [a // b for a, b in pairwise(points)]
    own = map(self.joined.find, self._own(d))
    return list(zip(own, extents, strict=True))


def _offsets(side: Sequence[Dimension], size: Callable[[Dimension], int]) -> Iterable[tuple[Dimension, int]]:
  """Each dimension of a side with the number of elements that the faster ones have."""
  low = 1
  for d in reversed(side):
    yield d, low
    low *= size(d)
