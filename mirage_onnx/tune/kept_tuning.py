"""What became of regions that an earlier run has timed: a repeat makes no kernels but those that won.

All looks of a race are kept (``kept_bench.py``), but to ask for them again takes the text of every kernel in
it: 3 of 7 CPU seconds of a repeat of MiniLM. So the end of a region's timing is kept, too, beside all that it
is made of: the region with its weights, the programs that the search has found, what picks numbers for them,
makes their text and compiles it, the target and the machine. The winner's program is one of those that were
found; it is compiled, its verdict of right results is asked for as ever, and its times are those of then.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mirage_onnx.compiler.candidates import Compiled, compile_candidates
from mirage_onnx.errors import RejectionError
from mirage_onnx.importer import LoadedModel
from mirage_onnx.ir import Candidate, KernelParams, Region, UGraph, print_ugraph
from mirage_onnx.nvrtc_choice import chosen_version
from mirage_onnx.source_digest import SEARCH_SOURCES, source_digest
from mirage_onnx.superopt.cache_folders import cache_folder
from mirage_onnx.superopt.journal_lines import UNREADABLE
from mirage_onnx.superopt.kept_folder import KeptFolder
from mirage_onnx.superopt.result import varied
from mirage_onnx.target import Target
from mirage_onnx.tune.kept_bench import region_place
from mirage_onnx.tune.machine import present_machine
from mirage_onnx.tune.outcome import Outcome
from mirage_onnx.tune.race import Lost, Measured
from mirage_onnx.verify.weights import ModelWeights

#: What is wrong with the results of a region's kernels, for each; as ``Bench.complaints``.
Complaints = Callable[[Region, Sequence[Compiled]], list[str | None]]


def tuning_store() -> KeptFolder | None:
  """What regions became on this machine, by who makes their kernels; None where nothing is kept."""
  folder = cache_folder("measurements")
  machine = present_machine() if folder is not None else None
  if machine is None:
    return None
  made_by = source_digest(*SEARCH_SOURCES, "tune", "codegen", "verify", "importer", "match")
  return KeptFolder(folder, {**machine.text, "made by": made_by, "compiler": chosen_version()})


def target_text(target: Target) -> str:
  """All numbers of a target, as part of a key."""
  return hashlib.sha256(repr(target).encode()).hexdigest()


def timed_value(best: Candidate, measured: Measured) -> dict[str, Any]:
  """What is kept of a program that was timed, beside its graph."""
  return {
    "params": [p.to_text() for p in best.params],
    "predicted_us": best.predicted_us,
    "us": [measured.kernel_us, measured.ort_us],
    "tried": measured.tried,
    "timed": [list(t) for t in measured.timed],
  }


def timed_program(graph: UGraph, value: Mapping[str, Any]) -> tuple[Candidate, Measured]:
  """The program of ``timed_value`` and its times. Raises one of ``UNREADABLE`` where it says nothing."""
  params = tuple(map(KernelParams.from_text, value["params"]))
  if len(params) != len(graph.kernels):
    raise ValueError("numbers of other kernels")
  kernel_us, ort_us = map(float, value["us"])
  timed = tuple((float(p), float(m)) for p, m in value["timed"])
  if not (kernel_us > 0 and ort_us > 0):
    raise ValueError("no times")
  measured = Measured(kernel_us, ort_us, int(value["tried"]), timed)
  return Candidate(graph, params, float(value["predicted_us"])), measured


def right_again(
  region: Region, candidate: Candidate, target: Target, complaints: Complaints
) -> Compiled | None:
  """The program with its kernels; None where it compiles no more, or is not right."""
  compiled, _ = compile_candidates(region, [candidate], target, keep=1)
  try:
    return compiled[0] if compiled and not any(complaints(region, compiled)) else None
  except RejectionError:
    return None


class KeptTuning:
  """The ends of regions' timing on this machine. For any thread; ``store``: that of the user unless given.

  ``cut_too``: also of those whose share of the time was over before all that they ask for was asked: an
  exploration that has ended (``kept_ends.py``) has ended with these.
  """

  def __init__(
    self,
    loaded: LoadedModel,
    weights: ModelWeights,
    target: Target,
    tries: int,
    store: KeptFolder | None = None,
    *,
    cut_too: bool = False,
  ) -> None:
    self._cut_too = cut_too
    self.store = tuning_store() if store is None else store
    self._loaded, self.weights = loaded, weights
    self._target, self._tries = target_text(target), tries
    self._keys: dict[str, tuple[Outcome, str]] = {}

  def knows(self, o: Outcome) -> bool:
    """Whether an earlier run has timed the region to the end."""
    return self._kept(o) is not None

  def _kept(self, o: Outcome) -> dict[str, Any] | None:
    value = self.store.get(self._key(self.store, o)) if self.store is not None else None
    return value if value is None or self._cut_too or not value.get("cut") else None

  def keep(self, before: Outcome, after: Outcome, *, cut: bool = False) -> None:
    """What became of ``before``, timed to the end, or until its share of the time was over (``cut``)."""
    lost = after.rejection if isinstance(after.rejection, Lost) else None
    best, measured = (lost.best, lost.measured) if lost else (after.compiled, after.measured)
    if self.store is None or best is None or measured is None:
      return
    graphs = [c.ugraph for c in self._first(before)]
    if best.candidate.ugraph not in graphs:  # what no search has proven is asked for again
      return
    value = {
      "graph": graphs.index(best.candidate.ugraph),
      **timed_value(best.candidate, measured),
      "lost": lost.reason if lost else None,
      "cut": cut,
    }
    self.store.put(self._key(self.store, before), value)

  def outcome(self, o: Outcome, target: Target, complaints: Complaints) -> Outcome | None:
    """What became of ``o`` in an earlier run; None where it has to be timed."""
    value = self._kept(o)
    try:
      if value is None:
        return None
      candidate, measured, lost = self._read(o, value)
    except UNREADABLE:
      return None
    compiled = right_again(o.region, candidate, target, complaints)
    if compiled is None:
      return None
    if lost is not None:
      why = Lost("NOT_FASTER", lost, o.region.nodes, measured, compiled)
      return replace(o, rejection=why)
    return replace(o, compiled=compiled, measured=measured)

  def _read(self, o: Outcome, value: Mapping[str, Any]) -> tuple[Candidate, Measured, str | None]:
    """Raises one of ``UNREADABLE`` where it says nothing."""
    graph = self._first(o)[int(value["graph"])].ugraph
    candidate, measured = timed_program(graph, value)
    return candidate, measured, None if value["lost"] is None else str(value["lost"])

  def _first(self, o: Outcome) -> list[Candidate]:
    assert o.result is not None
    return [v.candidate for v in varied(o.result.candidates, self._tries)]

  def _key(self, store: KeptFolder, o: Outcome) -> str:
    known = self._keys.get(o.region.key)
    if known is None or known[0].result is not o.result:  # it is asked several times
      programs = [
        [print_ugraph(c.ugraph), [p.to_text() for p in c.params], c.predicted_us] for c in self._first(o)
      ]
      place, weights = region_place(self._loaded, o.region), self.weights.digest(o.region)
      what = json.dumps([programs, self._tries, self._target, weights])
      known = self._keys[o.region.key] = o, store.key("tuned", place, what)
    return known[1]
