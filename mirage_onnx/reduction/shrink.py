"""Delta debugging: a smallest list that a test still accepts.

Zeller, Hildebrandt: Simplifying and Isolating Failure-Inducing Input (IEEE TSE 28, 2002).
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def shrink(items: Sequence[T], holds: Callable[[tuple[T, ...]], bool], least: int = 1) -> tuple[T, ...]:
  """A part of ``items``, in their order, for which ``holds`` is true; of no part less is it.

  It is true of ``items`` and is not asked again about a part. ``least``: no shorter part is asked about.
  """
  known: dict[tuple[int, ...], bool] = {}

  def accepted(part: tuple[int, ...]) -> bool:
    if len(part) < least:
      return False
    if part not in known:
      known[part] = holds(tuple(items[i] for i in part))
    return known[part]

  now = tuple(range(len(items)))
  pieces = 2
  while len(now) >= 2:
    chunks = _split(now, min(pieces, len(now)))
    smaller = next((c for c in chunks if len(c) < len(now) and accepted(c)), None) if pieces == 2 else None
    if smaller is None:
      # From the end: what comes last is needed by nothing else.
      rest = (tuple(i for i in now if i not in set(c)) for c in reversed(chunks))
      smaller = next((r for r in rest if accepted(r)), None)
      if smaller is None:
        if pieces >= len(now):
          break
        pieces = min(2 * pieces, len(now))
        continue
      pieces = max(2, pieces - 1)
    else:
      pieces = 2
    now = smaller
  if len(now) == 1 and least == 0 and accepted(()):
    now = ()
  return tuple(items[i] for i in now)


def _split(items: tuple[int, ...], count: int) -> list[tuple[int, ...]]:
  """``count`` neighbours of nearly the same length."""
  ends = [len(items) * k // count for k in range(count + 1)]
  return [items[a:b] for a, b in pairwise(ends)]
