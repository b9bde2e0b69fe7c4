"""Choosing without a GPU: predicted time against the table of ONNX Runtime's kernels.

The cost model of streaming and row kernels is calibrated. That of tiled kernels counts what they
have to do, and what is generated today takes longer (``cost/kernel_time.py``). Order among
tiled programs is the search's; a comparison with anything else is made with the expected time.
"""

from dataclasses import replace

from mirage_onnx.cost.kernel_time import lowered_us
from mirage_onnx.errors import Rejection
from mirage_onnx.ir import Candidate, Region
from mirage_onnx.lower.layouts import Family
from mirage_onnx.superopt.result import SearchResult, Stop
from mirage_onnx.superopt.solved import kernel_times
from mirage_onnx.target import Target

#: By what factor the expected time of a tiled kernel may be off. On an H100 it is 1.37 (root mean square, 153
#: kernels, ``bench/fit_costs.py``), and nothing was fitted to another GPU.
TILED_OFF = 1.53


#: Why a region stays that the search had no time for.
NO_TIME = "the time ended before a program was verified"


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


def as_expected(region: Region, result: SearchResult, target: Target) -> SearchResult:
  """The result with expected times, in their order."""
  found = [
    replace(
      v,
      candidate=replace(v.candidate, predicted_us=expected_us(region, v.candidate, target)),
    )
    for v in result.candidates
  ]
  found.sort(key=lambda v: v.candidate.predicted_us)
  return replace(result, candidates=tuple(found))


def refuse_result(
  result: SearchResult, baseline_us: float, margin: float, nodes: tuple[str, ...], doubted: float = 1.0
) -> Rejection | None:
  """Why a searched region is kept, or None if its best candidate wins by the margin.

  ``doubted``: it has to win although it takes so many times what is predicted.
  """
  if not result.candidates:
    if result.report.stop is Stop.BUDGET:
      return Rejection("BUDGET", NO_TIME, nodes)
    if result.report.stop is Stop.INTERRUPTED:
      return Rejection("INTERRUPTED", "the run was stopped before a program was verified", nodes)
    first = next(iter(result.report.refused), None)
    reason = f"no verified program (search: {result.report.stop})"
    if first is not None:
      reason += f"; {first.code}: {first.reason}"
    return Rejection("NO_CANDIDATE", reason, nodes)
  best = result.candidates[0].candidate.predicted_us
  if best * doubted > baseline_us * (1 - margin):
    off = f" (or {doubted:.2f} times as many)" if doubted > 1.005 else ""
    reason = f"{best:.2f} us predicted{off} against {baseline_us:.2f} us, margin {margin:.0%}"
    return Rejection("NOT_FASTER", reason, nodes)
  return None
