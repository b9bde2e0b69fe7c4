"""What a candidate must pass after the proof that it is equal.

The cheap and conclusive checks first:

    check_shift      SHIFT_NOT_MAX  hostile float64 inputs: every exp is shifted by its maximum
    RangeCheck       RANGE          interval analysis: nothing overflows where the region does not
    RoundingCheck    NUMERICS       first-order error against the region's, with the value to blame
    NumericCheck     NUMERICS, RANGE  both programs run with every value rounded
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.ir import KernelParams, Region, UGraph
from mirage_onnx.verify.numeric import NumericCheck, NumericRecord
from mirage_onnx.verify.range_check import RangeCheck, RangeRecord, softmax_maxima
from mirage_onnx.verify.rounding import RoundingCheck, RoundingRecord
from mirage_onnx.verify.shift import ShiftRecord, check_shift


@dataclass(frozen=True, slots=True)
class SafetyRecord:
  """What the checks found of a candidate that passes them."""

  shift: ShiftRecord
  range: RangeRecord
  rounding: RoundingRecord
  numeric: NumericRecord


class SafetyCheck:
  """The checks of one region; what is known of the region is worked out once.

  ``weights``: ONNX tensor name -> its real values.
  """

  def __init__(self, region: Region, weights: Mapping[str, np.ndarray] | None = None) -> None:
    self.region = region
    self.weights = weights or {}
    self._last: tuple[UGraph, Rejection | tuple[ShiftRecord, RangeRecord]] | None = None

  @cached_property
  def ranges(self) -> RangeCheck:
    return RangeCheck(self.region, self.weights)

  @cached_property
  def rounding(self) -> RoundingCheck:
    return RoundingCheck(self.region, self.weights)

  @cached_property
  def numerics(self) -> NumericCheck:
    return NumericCheck(self.region, self.weights)

  def check_any_numbers(self, graph: UGraph) -> Rejection | None:
    """Why a candidate that ``verify`` accepts can overflow or vanish, or None.

    Holds for any numbers of the kernels, and for rounding says nothing.
    """
    found = self._of_any_numbers(graph)
    return found if isinstance(found, Rejection) else None

  def _of_any_numbers(self, graph: UGraph) -> Rejection | tuple[ShiftRecord, RangeRecord]:
    """What holds for any numbers; known of the graph that was asked about last."""
    if self._last is None or self._last[0] is not graph:
      found = check_shift(self.region, graph)
      if isinstance(found, Rejection):
        self._last = graph, found
      else:
        ranges = self.ranges.check(graph)
        self._last = graph, (ranges if isinstance(ranges, Rejection) else (found, ranges))
    return self._last[1]

  def check(self, graph: UGraph, params: Sequence[KernelParams] | None = None) -> SafetyRecord | Rejection:
    """The record of a candidate that ``verify`` accepted, or why it is unsafe."""
    try:
      known = self._of_any_numbers(graph)
      if isinstance(known, Rejection):
        return known
      shift, found = known
      rounding = self.rounding.check(graph, params)
    except RejectionError as e:
      return e.rejection
    except ValueError as e:
      return Rejection("INCONCLUSIVE", f"the original cannot be run block by block: {e}")
    if isinstance(rounding, Rejection):
      return rounding
    numeric = self.numerics.check(graph, params)
    if isinstance(numeric, Rejection):
      return numeric
    return SafetyRecord(shift, found, rounding, numeric)


@dataclass(frozen=True, slots=True)
class SafetyRow:
  """A line of the table of ``bench/verify.py``: what the numerics say of one candidate."""

  name: str
  maximum: str
  largest_half: str
  candidate_error: float
  original_error: float
  verdict: str


def safety_row(
  name: str, region: Region, graph: UGraph, params: Sequence[KernelParams] | None = None
) -> SafetyRow:
  """The row of one candidate; ``verdict`` is ``ok`` or the refusal."""
  check = SafetyCheck(region)
  maxima = softmax_maxima(check.ranges)
  maximum = "; ".join("may be dropped" if m.droppable else "needed" for m in maxima) or "none"
  ranges, rounding = check.ranges.check(graph), check.rounding.measure(graph, params)
  half = "none"
  if isinstance(ranges, RangeRecord) and ranges.halves:
    value, interval = max(ranges.halves.items(), key=lambda item: item[1].magnitude)
    half = f"{value}: [{interval.lo:.4g}, {interval.hi:.4g}]"
  result = check.check(graph, params)
  verdict = str(result) if isinstance(result, Rejection) else "ok"
  return SafetyRow(name, maximum, half, rounding.candidate, rounding.original, verdict)
