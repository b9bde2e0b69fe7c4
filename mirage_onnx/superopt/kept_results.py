"""What searches found, region by region, for later runs of the same model.

A result that came to its end is a function of its key: the setting of the search, the source of the
generator and of the verifier, the region's text, and the bytes of the weights that it was checked
with. A region of which all that is equal takes its verified candidates from here and proves nothing
again until one of them is chosen (``tune/instances.py``). On disk an entry is one file in the form of a
journal (``journal_lines.py``), so that damage shows; what is damaged is searched again.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirage_onnx.bounded_file import read_bounded
from mirage_onnx.errors import MirageError, Rejection
from mirage_onnx.ir import Candidate, KernelParams, Region, parse_ugraph, print_ugraph, ugraph_extents
from mirage_onnx.ir.spec import check_interface, check_ugraph
from mirage_onnx.superopt.atomic import replace_file
from mirage_onnx.superopt.journal_lines import (
  UNREADABLE,
  entry_line,
  entry_value,
  header_line,
  read_lines,
)
from mirage_onnx.superopt.result import SearchReport, SearchResult, Stop, Verified
from mirage_onnx.superopt.search_setting import SettingText, entry_key
from mirage_onnx.superopt.search_structure import FINISHED

#: With so many times the seconds of a search that was cut off it is worth another.
MORE = 1.25


@dataclass(frozen=True, slots=True)
class KeptProof:
  """What is kept of a proof, in ``file``: its draws and the probability of a false accept."""

  draws: int
  bound: float
  file: Path

  def forget(self) -> None:
    """What the file says is wrong: the next run searches."""
    with contextlib.suppress(OSError):
      self.file.unlink(missing_ok=True)


class KeptResults:
  """Results by region and weights in ``folder``; nothing is kept where that is None.

  ``setting``: what all results have in common. May be used from any thread. A folder or file that
  cannot be read or written is as if it were not there.
  """

  def __init__(self, folder: Path | None, setting: SettingText) -> None:
    self.folder, self._setting = folder, dict(setting)

  def path(self, region: Region, weights: str) -> Path | None:
    """The file of a region; ``weights``: the digest of those that it reads."""
    key = entry_key(self._setting, region.text, f"result with weights {weights}")
    return None if self.folder is None else self.folder / f"{key}.json"

  def get(self, region: Region, weights: str, seconds: float) -> SearchResult | None:
    """What a search of the same found, or None; ``seconds``: the time that there is for all regions.

    A search that was cut off is as good as it was, until there is more time than then.
    """
    path = self.path(region, weights)
    try:
      if path is None:
        return None
      contents = read_lines(read_bounded(path), self._setting, str(path))
      line = contents.entries.get(path.stem)
      if line is None:
        return None
      value = entry_value(line)
      found = _decode(value, path)
      enough = found.report.stop in FINISHED or seconds <= MORE * value["seconds"]
      return found if enough else None
    except (OSError, MirageError, *UNREADABLE):
      return None  # a cache is no document: it is found again, and replaces the damage

  def put(self, region: Region, weights: str, seconds: float, result: SearchResult) -> None:
    """Keep ``result``, unless nothing was looked at or the user has stopped it."""
    path, report = self.path(region, weights), result.report
    cut = report.stop is Stop.BUDGET and report.states > 0
    if path is None or not (report.stop in FINISHED or cut):
      return
    value = {**_encode(result), "seconds": seconds}
    data = header_line(self._setting) + entry_line(path.stem, value)
    with contextlib.suppress(OSError):
      path.parent.mkdir(parents=True, exist_ok=True)
      replace_file(path, data)


def _encode(result: SearchResult) -> dict[str, Any]:
  graphs = list(dict.fromkeys(print_ugraph(v.candidate.ugraph) for v in result.candidates))
  report = result.report
  return {
    "graphs": graphs,
    "candidates": [
      [
        graphs.index(print_ugraph(v.candidate.ugraph)),
        [p.to_text() for p in v.candidate.params],
        v.candidate.predicted_us,
        v.proof.draws,
        v.proof.bound,
      ]
      for v in result.candidates
    ],
    "counts": [report.states, report.built, report.verified, str(report.stop)],
    "pruned": [list(p) for p in report.pruned],
    "refused": [[r.code, r.reason, list(r.nodes)] for r in report.refused],
  }


def _decode(value: Mapping[str, Any], file: Path) -> SearchResult:
  """The inverse of ``_encode``, read from ``file``; no time was spent.

  Raises:
      ValueError, TypeError, KeyError or AttributeError: it is no result.
  """
  graphs = [parse_ugraph(text) for text in value["graphs"]]
  found = []
  for at, params, us, draws, bound in value["candidates"]:
    numbers = tuple(KernelParams.from_text(p) for p in params)
    if len(numbers) != len(graphs[at].kernels):
      raise ValueError("numbers of other kernels")
    proof = KeptProof(int(draws), float(bound), file)
    found.append(Verified(Candidate(graphs[at], numbers, float(us)), proof))
  states, built, verified, stop = value["counts"]
  pruned = tuple((str(reason), int(count)) for reason, count in value["pruned"])
  refused = tuple(Rejection(code, reason, tuple(nodes)) for code, reason, nodes in value["refused"])
  report = SearchReport(0.0, states, built, verified, Stop(stop), pruned, refused)
  return SearchResult(tuple(found), report)


def are_of(region: Region, candidates: Sequence[Candidate]) -> bool:
  """Whether kept candidates could be programs of the region: their file may have been edited."""
  graphs = {id(c.ugraph): c.ugraph for c in candidates}  # many have the same one with other numbers
  try:
    if any(check_ugraph(g) or check_interface(region, g) for g in graphs.values()):
      return False
    for c in candidates:
      ugraph_extents(c.ugraph, c.params, region.extents)
  except UNREADABLE:
    return False
  return True
