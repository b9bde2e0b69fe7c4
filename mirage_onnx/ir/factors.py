"""Common factors of two shapes: what a reshape does to dimensions.

In row-major order, a dimension is cut where a product of the sizes to its right ends. Two shapes of
as many elements have common factors if all their cut points, in order, divide each other: 8x64 and
8x4x16 do (8, 4, 16), 6x4 and 3x8 too (3, 2, 4), 4x6 and 3x8 do not (6 does not divide 8).
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import prod

#: Dimensions of two shapes (their positions) with the same elements between two common cut points.
Group = tuple[tuple[int, ...], tuple[int, ...]]


def groups(before: Sequence[int], after: Sequence[int]) -> tuple[Group, ...]:
  """The shortest runs of dimensions with equal products; dimensions of extent 1 are in none.

  Raises:
      ValueError: the shapes have different numbers of elements, or none.
  """
  if prod(before) != prod(after) or not prod(before):
    raise ValueError(f"a reshape from {tuple(before)} to {tuple(after)}")
  left = [i for i, n in enumerate(before) if n > 1]
  right = [j for j, n in enumerate(after) if n > 1]
  found: list[Group] = []
  i = j = 0
  while i < len(left):
    start, a, b = (i, j), before[left[i]], after[right[j]]
    i, j = i + 1, j + 1
    while a != b:
      if a < b:
        a, i = a * before[left[i]], i + 1
      else:
        b, j = b * after[right[j]], j + 1
    found.append((tuple(left[start[0] : i]), tuple(right[start[1] : j])))
  return tuple(found)


def cut_points(sizes: Sequence[int]) -> tuple[int, ...]:
  """Products of the last sizes, ascending: of 2, 3, 4 they are 1, 4, 12 and 24."""
  return tuple(prod(sizes[k:]) for k in range(len(sizes), -1, -1))


def are_nested(points: Iterable[int]) -> bool:
  """Whether each cut point divides the next larger one."""
  ordered = sorted(points)
  return all(b % a == 0 for a, b in pairwise(ordered))


def have_common_factors(before: Sequence[int], after: Sequence[int]) -> bool:
  """Whether both shapes are products of the same factors in the same order."""
  if prod(before) != prod(after):
    return False
  if not prod(before):  # no elements: only where dimensions of extent 1 come and go
    return [n for n in before if n != 1] == [n for n in after if n != 1]
  return all(
    are_nested({*cut_points([before[i] for i in a]), *cut_points([after[j] for j in b])})
    for a, b in groups(before, after)
  )
