"""Choosing without a GPU: predicted time against the table of ONNX Runtime's kernels.

What a program is expected to take says its thread graph, and to make those of all candidates took a third of
a repeat's CPU seconds: they are kept from run to run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mirage_onnx.errors import Rejection
from mirage_onnx.ir import Candidate, Region, print_ugraph
from mirage_onnx.source_digest import SEARCH_SOURCES, source_digest
from mirage_onnx.superopt.cache_folders import cache_folder
from mirage_onnx.superopt.expected_time import expected_us, half_full_us, slower_text
from mirage_onnx.superopt.journal_lines import UNREADABLE
from mirage_onnx.superopt.kept_folder import KeptFolder
from mirage_onnx.superopt.reach import limits
from mirage_onnx.superopt.result import SearchResult, Stop
from mirage_onnx.target import Target

#: Why a region stays that the search had no time for.
NO_TIME = "the time ended before a program was verified"


def as_expected(region: Region, result: SearchResult, target: Target) -> SearchResult:
  """The result with expected times, in their order."""
  times = _expected(region, [v.candidate for v in result.candidates], target)
  found = [
    replace(v, candidate=replace(v.candidate, predicted_us=us))
    for v, us in zip(result.candidates, times, strict=True)
  ]
  found.sort(key=lambda v: v.candidate.predicted_us)
  return replace(result, candidates=tuple(found))


def as_half_full(region: Region, result: SearchResult, target: Target) -> SearchResult:
  """The result with the search's times for caches that are half full, as everything is timed."""
  if not limits(region):
    return result
  found = [
    replace(v, candidate=replace(v.candidate, predicted_us=half_full_us(region, v.candidate, target)))
    for v in result.candidates
  ]
  found.sort(key=lambda v: v.candidate.predicted_us)
  return replace(result, candidates=tuple(found))


def _expected(region: Region, candidates: Sequence[Candidate], target: Target) -> list[float]:
  """``expected_us`` of each, as an earlier run has worked it out."""
  folder = cache_folder("expected")
  if folder is None or not candidates:
    return [expected_us(region, c, target) for c in candidates]
  store = KeptFolder(folder, {"target": repr(target), "source": source_digest(*SEARCH_SOURCES)})
  graphs = {id(c.ugraph): print_ugraph(c.ugraph) for c in {id(c.ugraph): c for c in candidates}.values()}
  numbers = (
    f"{c.predicted_us!r} {graphs[id(c.ugraph)]} {[p.to_text() for p in c.params]}" for c in candidates
  )
  key = store.key("expected", region.text, *numbers)
  known = _times(store.get(key), len(candidates))
  if known is None:
    known = [expected_us(region, c, target) for c in candidates]
    store.put(key, {"us": known})
  return known


def _times(value: Mapping[str, Any] | None, count: int) -> list[float] | None:
  """What is kept as so many times, or None where it says something else."""
  try:
    found = None if value is None else [float(us) for us in value["us"]]
  except UNREADABLE:
    return None
  return found if found is not None and len(found) == count else None


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
