"""What a program is expected to take, and how sure that is: for comparisons with anything else.

The cost model of streaming and row kernels is calibrated. That of tiled kernels counts what they
have to do, and what is generated today takes longer (``cost/kernel_time.py``). Order among
tiled programs is the search's; a comparison with ONNX Runtime is made with the expected time.
"""

from collections.abc import Iterable

from mirage_onnx.cost.kernel_time import lowered_us
from mirage_onnx.errors import Rejection
from mirage_onnx.ir import Candidate, Region
from mirage_onnx.lower.layouts import Family
from mirage_onnx.superopt.solved import kernel_times
from mirage_onnx.target import Target

#: By what factor the expected time of a tiled kernel may be off. On an H100 it is 1.37 (root mean square, 153
#: kernels, ``bench/fit_costs.py``), and nothing was fitted to another GPU.
TILED_OFF = 1.53


def doubt(region: Region, candidate: Candidate, target: Target) -> float:
  """How many times longer than expected a program may take: the error of tiled kernels, for their part."""
  times = kernel_times(candidate, region.extents, target, lowered_us, region.runtime)
  known = [(family, us) for family, us in times if us]
  whole = sum(us for _, us in known)
  if not whole:
    return 1.0
  return sum(us * (TILED_OFF if family is Family.TILED else 1.0) for family, us in known) / whole


def expected_us(region: Region, candidate: Candidate, target: Target) -> float:
  """The time that generated kernels take, as far as it is known."""
  times = kernel_times(candidate, region.extents, target, lowered_us, region.runtime)
  if all(family is not Family.TILED for family, _ in times):
    return candidate.predicted_us
  return sum(time_us or 0.0 for _, time_us in times)


def too_slow(
  region: Region, candidates: Iterable[Candidate], target: Target, worth_us: float
) -> Rejection | None:
  """Why none of these is worth a proof, or None: each takes more than ``worth_us``, sure as that is."""
  best_us, off = min((expected_us(region, c, target), doubt(region, c, target)) for c in candidates)
  if best_us * off <= worth_us:
    return None
  return Rejection("NOT_FASTER", slower_text(best_us, off), region.nodes)


def slower_text(predicted_us: float, off: float) -> str:
  """What is predicted, and how many times as much it may be."""
  return f"{predicted_us:.2f} us predicted" + (f" (or {off:.2f} times as many)" if off > 1.005 else "")
