"""What the data of a constant say of a loop: that nothing is seen outside a band of two of its axes.

A mask that no run can change lets a row see the columns near its own place: ``columns - rows`` from
``least`` to ``most``. Everywhere else an element is at most ``outside``: 0 of truth values, and so low a
number of floats that nothing is left of what it is added to.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np


@dataclass(frozen=True, slots=True, order=True)
class Band:
  """``rows``, ``columns``: axes. ``least``, ``most``: None where the band has no end on that side.

  ``sharp``: the band says all that the data do: inside is only 0, or true, and outside only ``outside``.
  """

  rows: str
  columns: str
  least: int | None
  most: int | None
  outside: Fraction
  sharp: bool = False

  @property
  def text(self) -> str:
    least, most = ("" if end is None else str(end) for end in (self.least, self.most))
    return f"{self.columns}:{self.rows} {least}..{most} else {self.outside}{' sharp' * self.sharp}"

  def renamed(self, axes: Mapping[str, str]) -> "Band":
    """The same band of axes that have other names; those that are not in ``axes`` keep theirs."""
    return replace(self, rows=axes.get(self.rows, self.rows), columns=axes.get(self.columns, self.columns))

  def covers(self, distance: np.ndarray) -> np.ndarray:
    """Whether ``columns - rows`` lies in the band."""
    inside = np.ones(distance.shape, bool)
    if self.least is not None:
      inside &= distance >= self.least
    if self.most is not None:
      inside &= distance <= self.most
    return inside


def band_of(data: np.ndarray, rows: str, columns: str, lowest: float) -> Band | None:
  """The narrowest band of a mask (rows, columns); None if it has none that leaves anything out.

  Hidden is what is false, or of floats at most ``lowest``. An end that leaves no row anything out is none.
  """
  seen = data if data.dtype == bool else ~(data <= lowest)  # a NaN is seen
  count, width = seen.shape
  some = seen.any(axis=1)
  if not some.any():
    return None
  at = np.arange(count)[some]
  first, last = seen.argmax(axis=1)[some], width - 1 - seen[:, ::-1].argmax(axis=1)[some]
  least, most = int((first - at).min()), int((last - at).max())
  ends = (least if least > 1 - count else None, most if most < width - 1 else None)
  if ends == (None, None):
    return None
  band = Band(rows, columns, *ends, Fraction(0))
  inside = band.covers(np.arange(width)[None, :] - np.arange(count)[:, None])
  if data.dtype == bool:
    return replace(band, sharp=bool((seen == inside).all()))
  hidden = data[~inside]
  outside = Fraction(max(float(hidden.max()), -(2.0**127)))
  sharp = bool((data[inside] == 0).all() and (hidden.astype(float) == float(outside)).all())
  return replace(band, outside=outside, sharp=sharp)
