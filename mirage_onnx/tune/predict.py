"""Choosing without a GPU: predicted time against the table of ONNX Runtime's kernels."""

from dataclasses import replace

from mirage_onnx.errors import Rejection
from mirage_onnx.ir import Region
from mirage_onnx.superopt.expected_time import expected_us, slower_text
from mirage_onnx.superopt.result import SearchResult, Stop
from mirage_onnx.target import Target

#: Why a region stays that the search had no time for.
NO_TIME = "the time ended before a program was verified"


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

  def slower(text: str) -> Rejection:
    return Rejection("NOT_FASTER", f"{text} against {baseline_us:.2f} us, margin {margin:.0%}", nodes)

  if not result.candidates:
    if result.report.stop is Stop.BUDGET:
      return Rejection("BUDGET", NO_TIME, nodes)
    if result.report.stop is Stop.INTERRUPTED:
      return Rejection("INTERRUPTED", "the run was stopped before a program was verified", nodes)
    if unproven := result.report.refused_slow:
      return slower(unproven.reason)
    first = next(iter(result.report.refused), None)
    reason = f"no verified program (search: {result.report.stop})"
    if first is not None:
      reason += f"; {first.code}: {first.reason}"
    return Rejection("NO_CANDIDATE", reason, nodes)
  best = result.candidates[0].candidate.predicted_us
  if best * doubted > baseline_us * (1 - margin):
    return slower(slower_text(best, doubted))
  return None
