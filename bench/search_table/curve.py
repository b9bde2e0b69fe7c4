"""The searches of one program with growing bounds, each in a process of its own."""

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path

from search_table.point import BOUND_REASON, Outcome, Point

#: What a run may take beyond its cut, for imports and saturation, which nothing interrupts, and
#: beyond the end of the whole run.
GRACE_S, LAST_S = 60.0, 5.0
#: Why a search stopped that the whole run had no time for.
ENDED = "ENDED"
#: Columns of a row in the JSON.
COLUMNS = (
  "operators", "cpu_s", "seconds", "states", "units", "built", "verified", "stop", "best_us",
  "kernels", "best_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Curve:
  """Outcomes by the bound, ascending.

  Where the largest one left nothing out (``is_final``) larger bounds are the same search; where
  it did not finish they were not run.
  """

  program: str
  off: str
  outcomes: tuple[tuple[int, Outcome], ...]

  def at(self, operators):
    """The outcome at this bound, or None where it was not run."""
    found = dict(self.outcomes).get(operators)
    if found is None and operators > self.last[0] and self.last[1].is_final:
      return self.last[1]
    return found

  def was_run(self, operators):
    return operators in dict(self.outcomes)

  @property
  def last(self):
    return self.outcomes[-1]

  def to_json(self, reasons):
    """Its rows; of the last one with all prunings also the e-graph and the prunes.

    These are by index of ``reasons``.
    """
    rows = [[n, *(asdict(o)[c] for c in COLUMNS[1:])] for n, o in self.outcomes]
    found = {
      "program": self.program,
      "off": self.off,
      "rows": rows,
      "same_beyond": self.last[1].is_final,
    }
    if not self.off:
      pruned = self.last[1].pruned or {}
      found["egraph"] = self.last[1].egraph
      found["pruned"] = {str(reasons.index(r)): n for r, n in sorted(pruned.items())}
    return found

  @classmethod
  def from_json(cls, data, reasons):
    """What ``to_json`` made; the e-graph and the prunes only of the last outcome."""
    # Rows of older records are shorter.
    rows = [dict(zip(COLUMNS, row, strict=False)) for row in data["rows"]]
    outcomes = [(row.pop("operators"), Outcome(**row)) for row in rows]
    bound, last = outcomes[-1]
    pruned = {} if data["same_beyond"] else {BOUND_REASON: 0}
    pruned |= {reasons[int(i)]: n for i, n in data.get("pruned", {}).items()}
    outcomes[-1] = bound, replace(last, pruned=pruned, egraph=data.get("egraph"))
    return cls(data["program"], data["off"], tuple(outcomes))


def measure(program, off, bounds, cut_s, workers=1, end=inf):
  """Run the searches until one is cut off, a bound leaves nothing out, or the clock is at ``end``."""
  return Curve(program, off, tuple(_outcomes(program, off, bounds, cut_s, workers, end)))


def _outcomes(program, off, bounds, cut_s, workers, end):
  for operators in bounds:
    left_s = max(0.0, end - time.monotonic())
    outcome = in_process(Point(program, operators, off, min(cut_s, left_s), workers), left_s)
    if outcome.stop == "CUT" and left_s < cut_s:
      outcome = replace(outcome, stop=ENDED)
    yield operators, outcome
    if outcome.is_final or not outcome.is_whole:
      return


def in_process(point, left_s=inf):
  """The outcome of a process that does this one search; ``left_s``: until the whole run ends."""
  if left_s <= 0:
    return Outcome.ended(ENDED, 0.0)
  command = [sys.executable, str(Path(__file__).parents[1] / "search.py"), "--one"]
  start = time.monotonic()
  try:
    done = subprocess.run(
      [*command, point.to_text()],
      capture_output=True, text=True, check=False, timeout=min(point.cut_s + GRACE_S, left_s + LAST_S),
    )  # fmt: skip
  except subprocess.TimeoutExpired:
    return Outcome.ended("CUT", round(time.monotonic() - start, 2))
  if done.returncode:
    print(done.stderr[-4000:], file=sys.stderr)
    return Outcome.ended(f"EXIT {done.returncode}", round(time.monotonic() - start, 2))
  return Outcome(**json.loads(done.stdout))
