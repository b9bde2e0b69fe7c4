"""The range of an array, and its norms: all that interval analysis asks of a weight."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod, sqrt

import numpy as np

from mirage_onnx import deadline
from mirage_onnx.ir.interval import Interval

#: Elements that are measured at a time: in double precision they fit a core's cache.
BLOCK = 1 << 18


@dataclass(frozen=True, slots=True)
class Extremes:
  """The range of an array, and its largest 2-norm over each of its dimensions."""

  range: Interval
  norms: tuple[float, ...]


def repeated(found: Extremes, times: Sequence[int]) -> Extremes:
  """What is measured of an array of which each element stands so many times along each dimension."""
  return Extremes(found.range, tuple(n * sqrt(r) for n, r in zip(found.norms, times, strict=True)))


def of_integers(least: int, most: int, shape: Sequence[int]) -> Extremes:
  """What holds of any array of integers from ``least`` to ``most``: nothing is looked at."""
  largest = max(abs(least), abs(most))
  return Extremes(Interval(float(least), float(most)), tuple(largest * sqrt(n) for n in shape))


def extremes(data: np.ndarray) -> Extremes:
  """What is measured of an array, a block of rows after the other; a NaN anywhere stays one.

  Raises:
      ValueError: it is empty.
  """
  if not data.size:
    raise ValueError("an empty array has no range")
  data = np.asarray(data)
  if data.ndim and data.shape[0] == 1 and data.size > BLOCK:  # a row that no cache holds
    return _of_one(extremes(data[0]))
  rank = data.ndim
  low, high, most = np.float64(inf), np.float64(-inf), [np.float64(0.0)] * rank
  column = np.zeros(data.shape[1:])
  rows = max(1, BLOCK // max(1, prod(data.shape[1:])))
  for start in range(0, data.shape[0] if rank else 1, rows):
    deadline.check()
    wide = np.array(data[start : start + rows] if rank else data, np.float64)
    low, high = np.minimum(low, wide.min()), np.maximum(high, wide.max())
    np.square(wide, out=wide)
    if rank:
      column += wide.sum(axis=0)
    for n in range(1, rank):
      most[n] = np.maximum(most[n], wide.sum(axis=n).max())
  if rank:
    most[0] = column.max()
  return Extremes(Interval(float(low), float(high)), tuple(float(np.sqrt(x)) for x in most))


def _of_one(found: Extremes) -> Extremes:
  """What is measured with a dimension of one in front: its elements' own size is their norm there."""
  low, high = found.range.lo, found.range.hi
  return Extremes(found.range, (float(np.maximum(abs(low), abs(high))), *found.norms))
