"""Every instance of a region with its own steps and weights: which of them may be replaced?

Regions with one key are searched once. What is proven of the kernels holds for all of them, but not
how they round and where they overflow: that depends on the weights, and on the types in which ONNX
computes, which the key does not have. So the instances that are chosen are asked one by one, or all at
once where that is as good (``verify/instance_checks.py``).

Where the kernels that were chosen are unsafe for some, that program is taken that saves most over all
instances that may have it. The others are left as they were, each with its reason: a second program
for them would be a search and a choice of their own, for a rare case.

A program that a file of an earlier run holds is proven again when it is chosen: such a file can be edited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from mirage_onnx import deadline
from mirage_onnx.deadline import NEVER, Ends
from mirage_onnx.errors import Rejection
from mirage_onnx.failures import refusal
from mirage_onnx.importer import LoadedModel
from mirage_onnx.ir import Candidate as Program
from mirage_onnx.ir import Region, UGraph, print_ugraph
from mirage_onnx.match.candidates import RegionCandidate
from mirage_onnx.match.twins import step_form
from mirage_onnx.source_digest import source_digest
from mirage_onnx.superopt.cache_folders import cache_folder
from mirage_onnx.superopt.journal_lines import UNREADABLE
from mirage_onnx.superopt.kept_folder import KeptFolder
from mirage_onnx.superopt.kept_results import KeptProof
from mirage_onnx.tune.instance_processes import InstanceProcesses
from mirage_onnx.tune.outcome import Outcome
from mirage_onnx.verify.equivalence import verify
from mirage_onnx.verify.instance_checks import check_instances
from mirage_onnx.verify.term_checks import TermChecks
from mirage_onnx.verify.weights import ModelWeights

#: One chosen instance of a region.
Chosen = tuple[RegionCandidate, Outcome]
#: Why a program is unsafe for each of some instances, or None.
Verdicts = tuple[Rejection | None, ...]


def without(outcome: Outcome, refused: Sequence[tuple[RegionCandidate, Rejection]]) -> Outcome:
  """``outcome`` with these instances left alone; it is refused where none is left."""
  gone = {id(c) for c, _ in refused}
  rest = tuple(c for c in outcome.instances if id(c) not in gone)
  if not rest:
    return replace(outcome, compiled=None, measured=None, rejection=refused[0][1])
  return replace(outcome, region=rest[0].region, instances=rest, left_alone=(*outcome.left_alone, *refused))


def with_right_terms(outcome: Outcome, check: Callable[..., Rejection | None]) -> Outcome:
  """``outcome`` without the instances whose terms are not what their steps compute.

  Copies of one region are looked at once here; each that is chosen by itself (``InstanceChecks``).
  """
  right = {form: check(c.region) is None for form, c in _firsts(outcome.instances).items()}
  found = ((c, check(c.region)) for c in outcome.instances if not right[id(c.form)])
  wrong = [(c, r) for c, r in found if r is not None]
  return without(outcome, wrong) if wrong else outcome


def _firsts(instances: Sequence[RegionCandidate]) -> dict[int, RegionCandidate]:
  """The first instance of each form."""
  return {id(c.form): c for c in reversed(instances)}


class InstanceChecks:
  """What is known of the instances of a run that were chosen: none is asked about twice.

  Whether its terms are what its steps compute is asked, too. ``kept``: what earlier runs have found, by all
  that it is made of.
  """

  def __init__(self, weights: ModelWeights, kept: KeptFolder | None = None) -> None:
    self._weights, self._kept, self._terms = weights, kept, TermChecks()
    self._apart: InstanceProcesses | None = None
    self._safe: dict[tuple[frozenset[str], frozenset[str]], Program] = {}
    self._proven: set[tuple[str, UGraph]] = set()

  @classmethod
  def of_user(cls, weights: ModelWeights) -> InstanceChecks:
    """With those in the user's cache folder."""
    folder = cache_folder("verdicts")
    setting = {"checker": source_digest("verify", "match", "importer", "ir"), "numpy": np.__version__}
    return cls(weights, None if folder is None else KeptFolder(folder, setting))

  @contextmanager
  def apart(self, loaded: LoadedModel, count: int) -> Iterator[None]:
    """Inside, so many processes check, whose model is ``loaded``."""
    with InstanceProcesses(loaded, self._weights, count) as processes:
      self._apart = processes
      try:
        yield
      finally:
        self._apart = None

  def verdicts(self, instances: Sequence[RegionCandidate], program: Program) -> Verdicts:
    """For each instance why ``program`` is unsafe with its weights, or None."""
    new = [c for c in instances if self._safe.get((c.nodes, c.outputs)) != program]
    asked = self._asked([c.region for c in new], program)
    refused = {id(c): r for c, r in zip(new, asked, strict=True)}
    self._safe |= {(c.nodes, c.outputs): program for c in new if refused[id(c)] is None}
    return tuple(refused.get(id(c)) for c in instances)

  def _asked(self, regions: Sequence[Region], program: Program) -> Verdicts:
    if self._kept is None:
      return self._checked(regions, program)
    text = "\n".join((print_ugraph(program.ugraph), *(p.to_text() for p in program.params)))
    keys = [self._key(self._kept, text, r) for r in regions]
    known = {k: verdict for k in keys if (verdict := _kept_verdict(self._kept.get(k))) is not None}
    left = {k: r for k, r in zip(keys, regions, strict=True) if k not in known}
    if left:
      new = self._checked([*left.values()], program)
      for key, why in zip(left, new, strict=True):
        self._kept.put(key, {"refused": None if why is None else [why.code, why.reason]})
        known[key] = (why,)
    found = [known[k][0] for k in keys]
    return tuple(w and Rejection(w.code, w.reason, r.nodes) for w, r in zip(found, regions, strict=True))

  def _checked(self, regions: Sequence[Region], program: Program) -> Verdicts:
    check, wrong = self._apart or check_instances, [self._terms(r) for r in regions]
    left = [r for r, why in zip(regions, wrong, strict=True) if why is None]
    found = iter(check(left, program.ugraph, program.params, self._weights) if left else ())
    return tuple(next(found) if why is None else why for why in wrong)

  def _key(self, kept: KeptFolder, text: str, region: Region) -> str:
    """All that a verdict is made of: its steps with their types are not in the text of a region."""
    form = repr(step_form(region)[:4])
    return kept.key("instance", text, region.text, form, self._weights.digest(region))

  def refused(self, chosen: Sequence[Chosen], ends: Ends = NEVER) -> dict[str, Outcome]:
    """Those of ``chosen`` that are not safe for all their chosen instances, changed so that they are.

    What there is no time to ask about stays as it was.
    """
    picked: dict[str, list[RegionCandidate]] = {}
    for c, o in chosen:
      picked.setdefault(o.region.key, []).append(c)
    found = {}
    for key, o in {o.region.key: o for _, o in chosen}.items():
      assert o.compiled is not None
      try:
        with deadline.until(ends.at):
          if other := self._edited(o):
            found[key] = other
            continue
          verdicts = self.verdicts(picked[key], o.compiled.candidate)
          if any(verdicts):
            found[key] = self._changed(o, picked[key], verdicts)
      except deadline.OverdueError:
        late = Rejection("BUDGET", "the time ended before its instances were checked", o.region.nodes)
        found[key] = replace(o, compiled=None, measured=None, rejection=late)
      except Exception as error:
        why = refusal(error, "check of instances", o.region.nodes)
        found[key] = replace(o, compiled=None, measured=None, rejection=why)
    return found

  def _edited(self, o: Outcome) -> Outcome | None:
    """``o`` without the program that was chosen, where that is of a file and not the region's."""
    assert o.compiled is not None
    assert o.result is not None
    graph = o.compiled.candidate.ugraph
    if (o.region.key, graph) in self._proven:
      return None
    others = tuple(v for v in o.result.candidates if v.candidate.ugraph != graph)
    kept = [v.proof for v in o.result.candidates if v.candidate.ugraph == graph]
    for proof in kept:
      if isinstance(proof, KeptProof):
        found = verify(o.region, graph)
        if isinstance(found, Rejection):
          proof.forget()
          rest = replace(o, result=replace(o.result, candidates=others), compiled=None, measured=None)
          return rest if others else replace(rest, rejection=found)
        break
    self._proven.add((o.region.key, graph))
    return None

  def _changed(self, o: Outcome, picked: Sequence[RegionCandidate], verdicts: Verdicts) -> Outcome:
    """``o`` with the program that saves most, over the instances that may have it."""
    assert o.compiled is not None
    assert o.result is not None
    best, saved = verdicts, _saved_us(o, o.compiled.candidate, verdicts)
    program: Program | None = None
    tried = {o.compiled.candidate.ugraph}
    for v in o.result.candidates:
      if v.candidate.ugraph in tried:
        continue
      tried.add(v.candidate.ugraph)
      if _saved_us(o, v.candidate, (None,) * len(picked)) <= saved:
        continue
      found = self.verdicts(picked, v.candidate)
      if (us := _saved_us(o, v.candidate, found)) > saved:
        best, saved, program = found, us, v.candidate
    if program is not None:
      same = tuple(v for v in o.result.candidates if v.candidate.ugraph == program.ugraph)
      o = replace(o, result=replace(o.result, candidates=same), compiled=None, measured=None)
    refused = [(c, r) for c, r in zip(picked, best, strict=True) if r is not None]
    return without(o, refused) if refused else o


def _kept_verdict(value: Mapping[str, Any] | None) -> tuple[Rejection | None] | None:
  """What is kept as one verdict, or None where it says none."""
  try:
    if value is None:
      return None
    said = value["refused"]
    return (None if said is None else Rejection(str(said[0]), str(said[1])),)
  except UNREADABLE:
    return None


def _saved_us(o: Outcome, program: Program, verdicts: Verdicts) -> float:
  return verdicts.count(None) * max(0.0, o.baseline_us - program.predicted_us)
