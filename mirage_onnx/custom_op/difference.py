"""How far an output is from its reference, and whether that passes.

A float output passes when, in every row (the last axis of more than one element), the L2 norm of
the difference is at most ``rtol`` times the L2 norm of the reference row. A row smaller than
``FLOOR`` of the typical row of that output under normal inputs is measured against that instead: it
is mostly rounding errors that a cancellation left. ``rtol`` is by default 20 units roundoff of the
least precise float type in either model: in a deep network the errors of some 400 independent
roundings add up like a random walk, and sqrt(400) = 20. float32 and float64 get more, because there
the order of a long sum shows, which the final rounding of 16-bit types hides. Integers and booleans
must be equal, but where they hang on how the original's own floats are rounded (``shaken``; at the
edge of what it takes a hundredth of a model's may be others). A model's floats behind such integers
may be as far off as the original is, run with errors. NaN must be where the reference has
it and nowhere else, infinity likewise, except that a value within ``rtol`` of the type's maximum
stands for an overflow.

An output of 16-bit floats that does not pass so may show an error of the original's: it rounds after
every operator, a kernel at its end. It passes if every row is as near to what the original computes
in fp32 (``widen``): within ``rtol`` and ``FACTOR`` times the distance of the original, in onnxruntime or
by its definition (``widen.rounded``), as the verifier asks of a program (``verify/numeric.py``). So does one
of a whole model that is as fp32 below, with the original by its definition and its fp32 form in the places of
the original and float64: of 100,000 short rows some always differ. A tolerance that the user gives is not
stretched so.

An output of fp32 that does not pass so is compared with float64 (``in_double``): it passes if the error of
all rows is within ``rtol`` of the original's in onnxruntime, or less, and its worst row, its second worst
and so on within ``rtol`` and ``FACTOR`` times those of the original. Which row it is, is luck. Where numbers
cancel to nothing (rows of equal numbers less their mean) the original may be exact by luck, too: it also
passes if every row is within ``rtol`` but for what the original's own roundings explain: each number may be
``FACTOR`` times as far from float64 as errors of ``NEARBY`` in its nodes move the original (``shaken``).

On inputs that are hard on purpose (masked rows, the edge of what the original takes; of 16-bit outputs
that do not pass so also large ones) only elements count that are finite in the original and in what it
is by its definition, and not within ``rtol`` of the type's maximum; there the other model must be finite
too. Logits may be so large that a rounding of one of them is another answer: 16-bit outputs pass by the
error of all their rows, ``AT_EDGE`` times that of the definition; at the edge only those of a custom node
do, others, and the outputs of a whole model, by being finite.

Beside that stand the least tolerances of the usual test of every element by itself,
|result - reference| <= atol + rtol * |reference| (``numpy.allclose``): the least atol at rtol = 0,
and the least rtol at atol = 0. They say what a user's own test would need; they decide nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from mirage_onnx.verify.numeric import FACTOR

#: So many roundings that are independent add up to ``RTOL``, as its square.
ROUNDINGS = 20
RTOL = {"bfloat16": 8e-2, "float16": 1e-2, "float32": 1e-4, "float64": 1e-10}
FLOOR = 1e-2
#: Of the error of the original as it is defined, over all rows.
AT_EDGE = 4.0
#: Of numbers of fp32: eight units roundoff.
NEARBY = 8 * 2.0**-24
#: The outputs of a model in fp32, by name; empty where that cannot be run.
InFp32 = Callable[[], Mapping[str, np.ndarray]]


@dataclass(frozen=True, slots=True)
class OutputDifference:
  """The worst that an output did over all inputs.

  ``needed_rtol``: the least tolerance that would pass; None where none would (``reason`` says
  why). ``worst``: the kind of input that gave it. ``least_atol`` (at rtol = 0) and ``least_rtol``
  (at atol = 0) are those of the elementwise test; None where no finite one would do.
  """

  name: str
  dtype: str
  passed: bool
  identical: bool
  max_abs: float
  needed_rtol: float | None
  rtol: float
  worst: str
  reason: str = ""
  least_atol: float | None = None
  least_rtol: float | None = None


def typical_row(x: np.ndarray) -> float:
  """Root mean square of the norms of the rows that are finite."""
  if not _is_float(x):
    return 0.0
  norms = row_norms(x.astype(np.float64))
  finite = norms[np.isfinite(norms)]
  return float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0


def _is_float(x: np.ndarray) -> bool:
  return x.dtype.name in RTOL


def row_norms(x: np.ndarray) -> np.ndarray:
  axis = max((n for n, size in enumerate(x.shape) if size > 1), default=-1)
  with np.errstate(over="ignore", invalid="ignore"):
    return np.sqrt(np.sum(np.square(x), axis=axis)) if x.ndim else np.abs(x)


def difference(
  name: str, want: np.ndarray, got: np.ndarray, rtol: float, floor: float, kind: str
) -> OutputDifference:
  """How ``got`` differs from ``want`` on one input of kind ``kind``."""
  identical, max_abs, needed, reason = False, float("inf"), None, ""
  least: tuple[float | None, float | None] = (None, None)
  rtol = rtol if _is_float(want) else 0.0
  if want.dtype != got.dtype or want.shape != got.shape:
    reason = f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
  elif want.dtype.hasobject:
    identical = bool(np.array_equal(want, got))
    max_abs, reason = (0.0, "") if identical else (max_abs, "the strings differ")
  else:
    identical = want.tobytes() == got.tobytes()
    max_abs, needed, reason = _errors(want, got, rtol, floor)
    least = least_tolerances(want.astype(np.float64), got.astype(np.float64))
  if identical:
    max_abs, needed, reason, least = 0.0, 0.0, "", (0.0, 0.0)
  passed = needed is not None and needed <= rtol
  return OutputDifference(
    name, want.dtype.name, passed, identical, max_abs, needed, rtol, kind, reason, *least
  )


def excused(
  found: OutputDifference, want: np.ndarray, got: np.ndarray, exact: np.ndarray, floor: float
) -> OutputDifference:
  """``found``, of an output that is not within its tolerance, against ``exact`` in fp32 as well."""
  x, a, b = (v.astype(np.float64) for v in (exact, want, got))
  most = float(ml_dtypes.finfo(got.dtype).max)
  if not (x.shape == a.shape == b.shape and np.all(np.abs(x) <= most) and np.isfinite(b).all()):
    return found
  size = np.maximum(row_norms(x), floor)
  own, original = row_norms(b - x), row_norms(np.where(np.isfinite(a), a - x, 0.0))
  if np.any(own > found.rtol * size + FACTOR * original):
    return found
  off = float(np.max(np.divide(original, size, out=np.zeros_like(size), where=size > 0), initial=0.0))
  return replace(found, passed=True, reason=f"the original is {off:.1e} from its fp32 form")


def nearer(
  found: OutputDifference, want: np.ndarray, got: np.ndarray, exact: np.ndarray, floor: float,
  of: str = "float64",
) -> OutputDifference:  # fmt: skip
  """``found``, of an output that is not within its tolerance, where its error is within the original's.

  ``exact``: in a wider type than both, and what that is called (``of``). Where the original is not finite, it
  has no error.
  """
  x, a, b = (v.astype(np.float64) for v in (exact, want, got))
  if not (x.shape == a.shape == b.shape and np.isfinite(x).all() and np.isfinite(b).all()):
    return found
  size = np.maximum(row_norms(x), floor)
  off, away = row_norms(np.where(np.isfinite(a), a - x, 0.0)), row_norms(b - x)
  if np.any((size == 0) & (away > 0)):
    return found
  size = np.where(size > 0, size, 1.0)
  original, own = np.sort(np.ravel(off / size)), np.sort(np.ravel(away / size))
  before, now = (float(np.sqrt(np.mean(np.square(e)))) for e in (original, own))
  if now > found.rtol + before or np.any(own > found.rtol + FACTOR * original):
    return found
  return replace(found, passed=True, reason=f"{now:.1e} from {of}, the original {before:.1e}")


def within_roundings(
  found: OutputDifference, want: np.ndarray, got: np.ndarray, exact: np.ndarray, runs: Iterable[np.ndarray],
  floor: float,
) -> OutputDifference:  # fmt: skip
  """``found``, of an output that is not within its tolerance, but for what errors of the original explain.

  Of ``x - mean(x)`` nothing but roundings is left where a row's numbers are equal, and a norm divides them by
  the root of its epsilon. ``runs``: the original, run with errors of some units roundoff in each node. Number
  by number: a row that is lost in one place is none where it is not.
  """
  x, a, b = (v.astype(np.float64) for v in (exact, want, got))
  if not (x.shape == a.shape == b.shape and all(np.isfinite(v).all() for v in (x, a, b))):
    return found
  squares, count = np.zeros_like(x), 0
  for one in runs:
    if one.shape != x.shape or not np.isfinite(one).all():
      return found
    squares, count = squares + np.square(one - a), count + 1
  if not count:
    return found
  lost = np.maximum(np.abs(b - x) - FACTOR * np.sqrt(squares / count), 0.0)
  if np.any(row_norms(lost) > found.rtol * np.maximum(row_norms(x), floor)):
    return found
  return replace(found, passed=True, reason="numbers cancel: as the original, off by some units roundoff")


def counts(want: np.ndarray, defined: np.ndarray | None, rtol: float) -> np.ndarray:
  """Where the original is a measure: it, and it as ``defined``, is neither NaN nor (nearly) infinite."""
  if not _is_float(want):
    return np.ones(want.shape, bool)
  found = np.abs(want.astype(np.float64)) <= float(ml_dtypes.finfo(want.dtype).max) * (1 - rtol)
  if defined is not None and defined.shape == want.shape:
    found = found & np.isfinite(defined)
  return np.asarray(found)


def only(where: np.ndarray, x: np.ndarray) -> np.ndarray:
  """``x`` with 0 where it does not count."""
  return np.where(where, x, np.zeros((), x.dtype)) if x.shape == where.shape else x


def finite(
  name: str, want: np.ndarray, got: np.ndarray, rtol: float, kind: str, *, passed: bool = True
) -> OutputDifference:
  """Whether ``got`` is finite, of what counts. ``passed``: what else is known of it."""
  identical = want.dtype == got.dtype and want.shape == got.shape and want.tobytes() == got.tobytes()
  if identical or want.shape != got.shape or want.dtype != got.dtype or not _is_float(want):
    return difference(name, want, got, rtol, 0.0, kind)
  wrong = ~np.isfinite(got.astype(np.float64))
  if not wrong.any():
    return OutputDifference(name, want.dtype.name, passed, False, 0.0, 0.0, rtol, kind, "", 0.0, 0.0)
  place = tuple(int(i) for i in np.argwhere(wrong)[0])
  reason = f"{got[place]} at {list(place)}, where the original is finite"
  return OutputDifference(name, want.dtype.name, False, False, float("inf"), None, rtol, kind, reason)


def is_near_at_edge(
  want: np.ndarray, got: np.ndarray, exact: np.ndarray, defined: np.ndarray, rtol: float
) -> bool:
  """Whether the error of all rows is of the size that the original has by its definition."""
  x, a, b, d = (np.where(np.isfinite(v), v, 0.0).astype(np.float64) for v in (exact, want, got, defined))
  size = row_norms(x)
  size = np.where(size > 0, size, 1.0)
  own, original = (np.sqrt(np.mean(np.square(row_norms(v - x) / size))) for v in (b, d))
  return bool(own <= rtol + AT_EDGE * max(original, np.sqrt(np.mean(np.square(row_norms(a - x) / size)))))


def least_tolerances(want: np.ndarray, got: np.ndarray) -> tuple[float | None, float | None]:
  """(least atol at rtol = 0, least rtol at atol = 0) of the elementwise test.

  None where none would do: NaN or an infinity in one of them only, or, for rtol, a result other
  than 0 where the reference is 0.
  """
  same = (want == got) | (np.isnan(want) & np.isnan(got))
  want, got = want[~same], got[~same]
  if not (np.isfinite(want).all() and np.isfinite(got).all()):
    return None, None
  error = np.abs(got - want)
  atol = float(np.max(error, initial=0.0))
  if np.any(want == 0):
    return atol, None
  return atol, float(np.max(error / np.abs(want), initial=0.0))


def _errors(want: np.ndarray, got: np.ndarray, rtol: float, floor: float) -> tuple[float, float | None, str]:
  """Largest absolute error, the tolerance it needs, and why none would do."""
  a, b = want.astype(np.float64), got.astype(np.float64)
  if not _is_float(want):
    if np.array_equal(want, got):
      return 0.0, 0.0, ""
    return float(np.max(np.abs(a - b))), None, "integers and booleans must be equal"
  limits = ml_dtypes.finfo(want.dtype)
  with np.errstate(invalid="ignore"):
    overflow = np.isinf(a) & (np.sign(a) * b >= float(limits.max) * (1 - rtol))
  finite = np.isfinite(a) & np.isfinite(b)
  both_nan = np.isnan(a) & np.isnan(b)
  wrong = ~(finite | overflow | both_nan)
  x, y = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
  max_abs = float(np.max(np.abs(x - y), initial=0.0))
  if wrong.any():
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return max_abs, None, f"{b[place]} instead of {a[place]} at {list(place)}"
  error, size = row_norms(x - y), np.maximum(row_norms(x), floor)
  if np.any((size == 0) & (error > 0)):
    return max_abs, None, "the reference is zero"
  relative = np.divide(error, size, out=np.zeros_like(error), where=size > 0)
  return max_abs, float(np.max(relative, initial=0.0)), ""


def worse(a: OutputDifference, b: OutputDifference) -> OutputDifference:
  """Both together; the kind and the reason are those of the worse one, the first on a tie.

  One that has failed is worse than any that was excused, whose tolerance may be larger.
  """
  need_a, need_b = (float("inf") if o.needed_rtol is None else o.needed_rtol for o in (a, b))
  base = b if (not b.passed, need_b) > (not a.passed, need_a) else a
  return OutputDifference(
    a.name,
    base.dtype,
    a.passed and b.passed,
    a.identical and b.identical,
    max(a.max_abs, b.max_abs),
    (b if need_b > need_a else a).needed_rtol,
    base.rtol,
    base.worst,
    base.reason,
    _larger(a.least_atol, b.least_atol),
    _larger(a.least_rtol, b.least_rtol),
  )


def _larger(a: float | None, b: float | None) -> float | None:
  return None if a is None or b is None else max(a, b)
