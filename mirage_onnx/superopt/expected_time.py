"""What a program is expected to take, and how sure that is: for comparisons with anything else.

The cost model of streaming and row kernels is calibrated. That of tiled kernels counts what they
have to do, and what is generated today takes longer (``cost/kernel_time.py``). Order among
tiled programs is the search's; a comparison with ONNX Runtime is made with the expected time.
"""

from collections.abc import Iterable
from math import inf

from mirage_onnx.cost.kernel_time import lowered_us
from mirage_onnx.errors import Rejection
from mirage_onnx.ir import Candidate, Region
from mirage_onnx.lower.layouts import Family
from mirage_onnx.superopt.solved import HALF, kernel_times
from mirage_onnx.superopt.timed_numbers import by_warpgroups
from mirage_onnx.target import Target

#: By what factor the expected time of a tiled kernel may be off. On an H100 it is 1.37 (root mean square, 153
#: kernels, ``bench/fit_costs.py``), and nothing was fitted to another GPU.
TILED_OFF = 1.53
#: The same of one in clusters of 8 blocks: those that contract two activations take 1.26 times as long as
#: expected (geometric mean of 27 kernels on an H100; 153 others 0.99 times; ``bench/fit_costs.py``).
CLUSTER, CLUSTERED_OFF = 8, 1.26 * TILED_OFF
#: Of a program that takes so many times what is worth a proof other numbers are not looked at.
FAR = 2.0


def doubt(region: Region, candidate: Candidate, target: Target) -> float:
  """How many times longer than expected a program may take: the error of tiled kernels, for their part."""
  return _expected(region, candidate, target)[1]


def expected_us(region: Region, candidate: Candidate, target: Target) -> float:
  """The time that generated kernels take, as far as it is known."""
  return _expected(region, candidate, target)[0]


def half_full_us(region: Region, candidate: Candidate, target: Target) -> float:
  """The search's own cost of a program, which counts full caches, for caches that are half full."""
  if all(x.limit is None for x in candidate.ugraph.tensors):
    return candidate.predicted_us
  at_half, at_full = (
    kernel_times(candidate, region.extents, target, lowered_us, region.runtime, half) for half in (HALF, 1)
  )
  half_us, full_us = (sum(inf if us is None else us for _, us in times) for times in (at_half, at_full))
  return candidate.predicted_us * (half_us / full_us if half_us < full_us < inf else 1.0)


def _expected(region: Region, candidate: Candidate, target: Target) -> tuple[float, float]:
  times = kernel_times(candidate, region.extents, target, lowered_us, region.runtime)
  whole = sum(us or 0.0 for _, us in times)
  special = all(family is not Family.TILED for family, _ in times)
  if special or not whole:
    return candidate.predicted_us if special else whole, 1.0
  off = {False: TILED_OFF, True: CLUSTERED_OFF}
  known = zip(times, candidate.params, strict=True)
  most = sum((us or 0.0) * (off[p.cluster >= CLUSTER] if f is Family.TILED else 1.0) for (f, us), p in known)
  return whole, most / whole


def too_slow(
  region: Region, candidates: Iterable[Candidate], target: Target, worth_us: float
) -> Rejection | None:
  """Why none of these is worth a proof, or None: each takes more than ``worth_us``, sure as that is.

  They differ in numbers, best first by the search's own cost: far behind the first is not looked. Of many
  rows other numbers are as good as those only with wgmma.
  """
  looked = list[tuple[float, float]]()

  def is_worth(c: Candidate) -> bool:
    looked.append(_expected(region, c, target))
    us, off = looked[-1]
    return us * off <= worth_us

  first: Candidate | None = None
  for c in candidates:
    if is_worth(c):
      return None
    first = first or c
    if min(us for us, _ in looked) > FAR * worth_us:
      break
  if first is not None and any(map(is_worth, by_warpgroups(region, first, target, 1))):
    return None
  us, off = min(looked, key=lambda found: found[0], default=(inf, 1.0))
  return Rejection("NOT_FASTER", slower_text(us, off), region.nodes)


def slower_text(predicted_us: float, off: float) -> str:
  """What is predicted, and how many times as much it may be."""
  return f"{predicted_us:.2f} us predicted" + (f" (or {off:.2f} times as many)" if off > 1.005 else "")
