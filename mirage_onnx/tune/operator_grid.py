"""Times of ONNX Runtime's operators over a grid of sizes, as ``bench/operator_times.py`` measures them.

    (kind, element type) -> points of so many sizes each -> between them, linear in logarithms

A kind is an operator in one way of use (``operator_kinds.py``). Of sizes below the least that was measured
the least counts, for nothing smaller takes longer (but for elements of which only many were measured);
beyond the largest nothing is known, and neither is it where one of the points around is missing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import exp, log, prod

#: Of so many elements a time is that of a launch: fewer take as long.
LAUNCHED = 1 << 14
#: Marks on each side of a size that are looked at, where a nearer point was not measured.
NEAR = 3
#: Sizes of one point, and its microseconds.
Points = Mapping[tuple[int, ...], float]


@dataclass(frozen=True)
class PointsOfKind:
  """The points of one kind and type, and along each of their sizes what was measured, ascending."""

  points: Points

  @cached_property
  def marks(self) -> tuple[tuple[int, ...], ...]:
    """By size."""
    return tuple(tuple(sorted(set(own))) for own in zip(*self.points, strict=True))

  def us(self, sizes: Sequence[int]) -> float | None:
    """The time at ``sizes``; None where that is not known."""
    if len(sizes) != len(self.marks):
      return None
    if len(sizes) == 1 and sizes[0] < self.marks[0][0] > LAUNCHED:
      return None
    sides = [_around(marks, size) for marks, size in zip(self.marks, sizes, strict=True)]
    for box in sorted(product(*sides), key=_span):
      if (us := self._within(box, sizes)) is not None:
        return us
    return None

  def _within(self, box: Sequence[tuple[int, int]], sizes: Sequence[int]) -> float | None:
    """The time at ``sizes`` by the corners of a box; None where one of them was not measured."""
    total = 0.0
    for corner in product(*(_parts(low, high, size) for (low, high), size in zip(box, sizes, strict=True))):
      us = self.points.get(tuple(mark for mark, _ in corner))
      if us is None:
        return None
      total += prod(part for _, part in corner) * log(max(us, 1e-3))
    return exp(total)


def _around(marks: Sequence[int], size: int) -> list[tuple[int, int]]:
  """Pairs of near marks with a size between them, or a mark and itself; none beyond the last one."""
  least = max(size, marks[0])
  lows, highs = [m for m in marks if m < least][-NEAR:], [m for m in marks if m > least][:NEAR]
  found = [(low, high) for low in lows for high in highs]
  if least in marks:
    return [(least, least), *found]
  return found


def _span(box: Sequence[tuple[int, int]]) -> float:
  return sum(log(high / low) for low, high in box)


def _parts(low: int, high: int, size: int) -> tuple[tuple[int, float], ...]:
  """The two marks with their parts of a size between them."""
  if low == high:
    return ((low, 1.0),)
  part = log(size / low) / log(high / low)
  return ((low, 1 - part), (high, part))


@dataclass(frozen=True)
class TimesGrid:
  """``kinds``: (kind, type) -> its points."""

  kinds: Mapping[tuple[str, str], PointsOfKind]

  @classmethod
  def of(cls, points: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]) -> "TimesGrid":
    """Of type -> kind -> rows of sizes and microseconds, as a table's file has them."""
    return cls(
      {
        (kind, dtype): PointsOfKind({tuple(int(s) for s in sizes): float(us) for *sizes, us in rows})
        for dtype, kinds in points.items()
        for kind, rows in kinds.items()
      }
    )

  def us(self, kind: str, dtype: str, sizes: Sequence[int]) -> float | None:
    """Microseconds, None where they are not known."""
    axes = self.kinds.get((kind, dtype))
    return axes.us(sizes) if axes else None

  @property
  def most_elements(self) -> int:
    """Of the largest elementwise operator that was measured."""
    return max(axes.marks[0][-1] for axes in self.kinds.values() if len(axes.marks) == 1)
