"""Where an earlier run has stopped asking: a repeat searches and times the same, and ends there.

An exploration (``exploring.py``) ends when what is left is expected to bring too little. All that it has
searched and timed by then is kept, but a repeat would begin with other expectations, and ask for more. So
the end itself is kept, by all that it was decided about: the regions with their places, the machine and the
sources. What the budget has left unsearched is no part of the next run either, as a search that it has cut
off is not begun again (``kept_results.py``): beside other work a repeat of MiniLM went on for 332 s. A run
whose timing the clock has cut off, or the user, has no end: the next one goes on. A larger budget is more
patient, and goes on as well.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mirage_onnx.errors import Rejection
from mirage_onnx.source_digest import SEARCH_SOURCES, source_digest
from mirage_onnx.superopt.cache_folders import cache_folder
from mirage_onnx.superopt.journal_lines import UNREADABLE
from mirage_onnx.superopt.kept_folder import KeptFolder
from mirage_onnx.superopt.result import Stop
from mirage_onnx.tune.machine import present_machine
from mirage_onnx.tune.outcome import Outcome
from mirage_onnx.tune.predict import NO_TIME

#: Why a region was not searched. What the budget has left says what it said then: the bytes are the same.
UNSEARCHED = "searching and timing it were expected to bring less than they take"
#: With so many times the budget a run goes on (as a search that was cut off, ``kept_results.py``).
MORE = 1.25


@dataclass(frozen=True, slots=True)
class End:
  """``searched``: keys of regions; ``timed``: of these, in their order. ``why``: no more.

  ``unbegun``: keys of regions of whose search the budget has left nothing; ``right``: whose terms, of all
  instances, were what their steps compute.
  """

  searched: frozenset[str]
  unbegun: frozenset[str]
  timed: tuple[str, ...]
  why: str
  right: frozenset[str] = frozenset()


class KeptEnds:
  """The end of the exploration of ``outcomes``, as they are before the search; ``budget_s``: of the run.

  ``is_kept``: whether there is one, of this run or an earlier one.
  """

  def __init__(self, store: KeptFolder, outcomes: Mapping[str, Outcome], budget_s: float) -> None:
    self._store, self._budget_s = store, budget_s
    regions = sorted(
      (key, len(o.instances), o.rejection.code if o.rejection else "") for key, o in outcomes.items()
    )
    self._key = store.key("end", json.dumps(regions))
    self.known = _end(store.get(self._key), budget_s)
    self.is_kept = self.known is not None

  @classmethod
  def of_user(cls, outcomes: Mapping[str, Outcome], budget_s: float) -> "KeptEnds | None":
    """That of the cache folder; None where nothing is kept."""
    folder = cache_folder("measurements")
    machine = present_machine() if folder is not None else None
    if machine is None:
      return None
    setting = {**machine.text, "asked": source_digest(*SEARCH_SOURCES, "verify", "match", "choosing", "tune")}
    return cls(KeptFolder(folder, setting), outcomes, budget_s)

  @property
  def settled(self) -> frozenset[str]:
    """Keys of regions whose terms are not checked again: they were right, and nothing of them is timed."""
    return self.known.right - frozenset(self.known.timed) if self.known else frozenset()

  def only(self, outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """``outcomes``, of which what the earlier run has not searched is refused."""

    def asked(key: str, o: Outcome) -> Outcome:
      if self.known is None or o.rejection is not None or key in self.known.searched:
        return o
      code, why = ("BUDGET", NO_TIME) if key in self.known.unbegun else ("NOT_TIMED", UNSEARCHED)
      return replace(o, rejection=Rejection(code, why, o.region.nodes))

    return {key: asked(key, o) for key, o in outcomes.items()}

  def keep(self, found: Mapping[str, Outcome], timed: Sequence[str], why: str) -> None:
    """Keep this end of the exploration of ``found``, of which ``timed`` were timed, for that reason."""
    results = {key: o.result.report for key, o in found.items() if o.result is not None}
    unbegun = {key for key, r in results.items() if r.stop is Stop.BUDGET and not r.states}
    searched = {key for key, r in results.items() if r.stop is not Stop.INTERRUPTED} - unbegun
    right = [key for key, o in found.items() if o.result is not None and not o.left_alone]
    lists = {"searched": sorted(searched), "unbegun": sorted(unbegun), "timed": [*timed], "right": right}
    self._store.put(self._key, {**lists, "why": why, "budget_s": self._budget_s})
    self.is_kept = True


def _end(value: Mapping[str, Any] | None, budget_s: float) -> End | None:
  """What is kept as an end, or None where it says none, or is one of less patience."""
  try:
    if value is None or not budget_s <= MORE * float(value["budget_s"]):
      return None
    searched, unbegun, right = (frozenset(map(str, value[n])) for n in ("searched", "unbegun", "right"))
    return End(searched, unbegun, tuple(map(str, value["timed"])), str(value["why"]), right)
  except UNREADABLE:
    return None
