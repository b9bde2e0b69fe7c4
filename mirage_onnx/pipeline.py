"""The stages in order: the only file that knows all of them. Read it from top to bottom.

import -> match -> search (with the verifier inside) -> choose, compile, measure -> rewrite

Measuring begins with the first regions whose search has ended. Stages behind match are imported where a
region is worth searching: that takes a second.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from mirage_onnx import events
from mirage_onnx.deadline import NEVER, Budget, Ends
from mirage_onnx.errors import Rejection
from mirage_onnx.garbage import young_only
from mirage_onnx.importer import LoadedModel, import_model
from mirage_onnx.importer.external import weight_bytes
from mirage_onnx.ir.program import Program
from mirage_onnx.match.candidates import Matches, RegionCandidate, find_candidates
from mirage_onnx.match.cuts import limits_of
from mirage_onnx.rewrite.replacement import NAME_POOL
from mirage_onnx.stages import search_hooks, stage
from mirage_onnx.superopt.hooks import never
from mirage_onnx.superopt.result import SearchBound, Stop
from mirage_onnx.target import Target
from mirage_onnx.tune.baseline import (
  alone_us,
  load_table,
  model_table,
  node_times_us,
  ranking_table,
  with_floors,
)
from mirage_onnx.tune.declared_sizes import Declared, declared_sizes
from mirage_onnx.tune.known_sizes import unpredicted_at
from mirage_onnx.tune.model_times import ModelTimes, model_times
from mirage_onnx.tune.outcome import Outcome, grouped, without
from mirage_onnx.tune.worth import refuse_search

if TYPE_CHECKING:
  from mirage_onnx.rewrite.apply import Layer
  from mirage_onnx.tune.arriving import Arriving
  from mirage_onnx.tune.dynamic import Dynamic
  from mirage_onnx.tune.lock import Lock
  from mirage_onnx.tune.realise import Chosen

#: Margin of the prediction before a measurement (up to twice as slow is worth timing), and the time of a
#: node with ``Options.every``: no kernel of a program takes that long.
HOPELESS, SLOW_US = -1.0, 1e6
#: The most of the budget that goes into the times of single nodes.
NODES_SHARE = 0.1
#: Regions are looked for so long, however short the budget, those of a lock always.
LEAST_MATCH_S = 1.0
#: The budget with which timing is as patient as usual (``tune/exploring.py``); the least patience.
PATIENT_S, LEAST_PATIENCE = 300.0, 0.25


@dataclass(frozen=True, slots=True)
class Options:
  """What a run may be told. ``measure``: time candidates on the present GPU.

  ``journal``: a file that keeps what the search has found, and from which it goes on. ``stop``:
  polled by the search; a reason that it returns ends the search with what it has. ``shapes``: the sizes
  at which a dimension that only a run knows is declared to be used. ``every``: to test kernels, as if ONNX
  Runtime had none: what verifies is replaced, however slow, and one operator is a region. ``budget_s`` is of
  the whole run, ``began`` (of ``time.monotonic``) its start, where that was before ``run``. ``emulate``: a
  predicted choice is run once before it ships. ``streamed``: copies of large weights are left to
  ``save_model``. ``lock``: what is chosen, by an earlier run; nothing is searched or timed. ``beside``: what
  other targets replace in the same file: a region is one of these, or has no node of them. ``steps``: how it
  was loaded.
  """

  target: Target
  margin: float = 0.2
  budget_s: float = 300.0
  workers: int | str | None = None
  measure: bool = False
  tries: int = 8
  bound: SearchBound = field(default_factory=SearchBound)
  pool: int = NAME_POOL
  journal: Path | None = None
  stop: Callable[[], Stop | None] = never
  shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
  every: bool = False
  streamed: bool = False
  emulate: bool = False
  began: float | None = None
  lock: Lock | None = None
  beside: tuple[RegionCandidate, ...] = ()
  steps: bool | int = False

  @property
  def searched_margin(self) -> float:
    """Where candidates will be timed, prediction only drops what is hopeless."""
    return HOPELESS if self.measure else self.margin


@dataclass(frozen=True, slots=True)
class OtherTarget:
  """The instances that one more target replaces in the same file; ``late``: regions that its time left."""

  target: Target
  chosen: tuple[Chosen, ...]
  late: int = 0

  def layer(self) -> Layer:
    """Its kernels."""
    from mirage_onnx.rewrite.apply import Layer

    return Layer(self.target, tuple((c.region, o.compiled) for c, o in self.chosen if o.compiled))


@dataclass(frozen=True, slots=True)
class Run:
  """Everything a report needs; ``outcomes`` by region key, ``chosen`` the replaced instances.

  ``node_us``: times of nodes in ONNX Runtime, ``times`` of the whole; ``points``: the declared sizes.
  ``others``: for further targets; ``rival``: what predictions choose, where kernels are measured.
  ``ended``: timing has ended of its own, not by the clock.
  """

  model: onnx.ModelProto
  program: Program
  matches: Matches
  chosen: tuple[Chosen, ...]
  outcomes: Mapping[str, Outcome]
  node_us: Mapping[str, float] = field(default_factory=dict)
  times: ModelTimes | None = None
  points: tuple[Mapping[str, int], ...] = ({},)
  others: tuple[OtherTarget, ...] = ()
  rival: tuple[Chosen, ...] = ()
  ended: bool = False

  def counts(self) -> Counter[str]:
    """Region key -> replaced instances."""
    return Counter(o.region.key for _, o in self.chosen)


@young_only()
def run(loaded: LoadedModel, options: Options, emit: events.Emit = events.silent) -> Run:
  """Optimize one loaded model."""
  start = time.monotonic() if options.began is None else options.began
  stored = weight_bytes(loaded.proto) if options.streamed else 0
  budget = Budget(start, options.budget_s, options.measure, stored)
  emit = events.one_at_a_time(emit)
  emit(events.RunStarted(options.budget_s, time.monotonic() - start))
  with stage(emit, "importer"):
    program = import_model(loaded)
  with stage(emit, "match"):
    declared = declared_sizes(program, options.shapes)
    limits = limits_of(steps=bool(options.steps), timed=options.measure)
    limits = replace(limits, single=options.every, reductions=options.measure)
    end = inf if options.lock is not None else max(budget.search, time.monotonic() + LEAST_MATCH_S)
    find = lambda: find_candidates(program, limits, declared.typical, end).beside(options.beside)  # noqa: E731
    typical = program.sized(declared.typical)
    node_us = _node_us(typical, options)
    if options.measure and not options.every and options.lock is None:
      from mirage_onnx.tune.node_times import timed_beside

      nodes_of = lambda found: {n for c in found.candidates for n in c.nodes}  # noqa: E731
      asked = {n.name for n in typical.nodes if node_us.get(n.name) != 0.0}  # what tables do not know, too
      until = time.monotonic() + NODES_SHARE * options.budget_s
      matches, us = timed_beside(find, nodes_of, loaded, typical, asked, options.target, until=until)
      node_us |= us
    else:
      matches = find()
    outcomes = grouped(matches.candidates, node_us)
    if options.lock is None:
      outcomes = _refused(outcomes, node_us, program, declared, options)
  if options.lock is not None:
    found = Run(loaded.given, program, matches, (), outcomes, node_us)
    return _replayed(loaded, found, declared, options, emit)
  if all(o.rejection for o in outcomes.values()):
    times = _times(program, (), node_us, options)
    return Run(loaded.given, program, matches, (), outcomes, node_us, times, declared.points)
  return _optimized(loaded, program, declared, matches, outcomes, node_us, options, budget, emit)


def _optimized(
  loaded: LoadedModel,
  program: Program,
  declared: Declared,
  matches: Matches,
  outcomes: Mapping[str, Outcome],
  node_us: Mapping[str, float],
  options: Options,
  budget: Budget,
  emit: events.Emit,
) -> Run:
  """The stages behind match."""
  from mirage_onnx.judging import Judge, search_outcomes
  from mirage_onnx.searching import Setting
  from mirage_onnx.tune.kept_hashes import kept_hashes
  from mirage_onnx.verify.weights import ModelWeights

  begun, said, detail, kept = time.monotonic(), list[str](), list[str](), None
  if options.measure:
    from mirage_onnx.tune.kept_ends import KeptEnds

    if kept := KeptEnds.of_user(outcomes, options.budget_s):
      outcomes = kept.only(outcomes)
  dynamic, weights = _dynamic(program, declared, options), ModelWeights(loaded)
  judge = Judge(dynamic, options.searched_margin, options.measure)

  def searched(tell: Callable[[Outcome], None] | None, asks: Arriving | None) -> dict[str, Outcome]:
    stop = lambda: Stop.INTERRUPTED if asks and asks.is_left else options.stop()  # noqa: E731
    with search_hooks(options.journal, options.target, options.bound, stop, emit, said) as hooks:
      setting = Setting(options.target, options.bound, budget.search, hooks)
      return search_outcomes(
        loaded, outcomes, setting, judge, weights, workers=options.workers, tell=tell,
        preferred=lambda: asks.preferred if asks else (), settled=kept.settled if kept else (),
      )  # fmt: skip

  with kept_hashes(loaded), ExitStack() as stages, ExitStack() as threads:
    stages.enter_context(stage(emit, "superopt", said))

    def over() -> None:
      stages.close()
      stages.enter_context(stage(emit, "tune", detail))

    if not options.measure:
      outcomes = searched(None, None)
      if all(o.rejection for o in outcomes.values()):
        outcomes, times = dynamic.with_all_points(outcomes), _times(program, (), node_us, options)
        return Run(loaded.given, program, matches, (), outcomes, node_us, times, declared.points)
      over()
    from mirage_onnx.failures import guarded
    from mirage_onnx.rewrite.apply import apply
    from mirage_onnx.rewrite.turned import held
    from mirage_onnx.tune.arriving import Arriving
    from mirage_onnx.tune.emulated import Emulated
    from mirage_onnx.tune.instances import InstanceChecks
    from mirage_onnx.tune.realise import Realisation, kept_solutions
    from mirage_onnx.tune.rival import predicted_choice

    # What is found is timed while others are searched.
    arriving = threads.enter_context(Arriving(searched, over)) if options.measure else None
    alone = alone_us(program.sized(declared.typical), options.target)
    checked = InstanceChecks.of_user(weights)
    chosen, outcomes = Realisation(
      loaded, program, outcomes, node_us, options.target,
      margin=0.0 if options.measure else options.margin,
      measure=options.measure, tries=options.tries, dynamic=dynamic,
      instances=checked, alone=alone, emit=emit, weights=weights,
      # What is timed may be long, so that who asks for the end does not wait for all of it.
      look=Emulated(options.target, _spare_s(begun, budget)) if options.emulate else None,
      ends=Ends(budget.tune, (lambda: options.stop() is not None) if options.measure else NEVER.stopped),
      checks=Ends(budget.checks), detail=detail, predicted_margin=options.margin,
      patience=max(LEAST_PATIENCE, options.budget_s / PATIENT_S), arriving=arriving, kept=kept,
      helpers=threads,
    ).run()  # fmt: skip
    outcomes = dynamic.with_all_points(outcomes)
    rival: tuple[Chosen, ...] = ()
    if options.measure and chosen and options.stop() is None:
      predicted = partial(
        predicted_choice, program, outcomes, node_us, alone, options.margin,
        until=budget.checks, instances=checked, dynamic=dynamic, kept=kept_solutions(), measured=chosen,
      )  # fmt: skip
      made = guarded("choice by prediction", (), predicted)
      rival = () if isinstance(made, Rejection) else made
  with stage(emit, "rewrite"):
    kernels = [(c.region, o.compiled) for c, o in chosen if o.compiled]
    done = apply(loaded, kernels, options.target, pool=options.pool)
    replaced = tuple(chosen[i] for i in done.used)
    outcomes = without(outcomes, chosen, replaced, done.refused)
  model = done.model if options.streamed else held(done.model, loaded.base_dir)
  times = _times(program, replaced, node_us, options)
  if {(c.nodes, o.region.key) for c, o in rival} == {(c.nodes, o.region.key) for c, o in replaced}:
    rival = ()
  found = Run(model, program, matches, replaced, outcomes, node_us, times, declared.points, rival=rival)
  return replace(found, ended=kept is not None and kept.is_kept)


def _replayed(
  loaded: LoadedModel, found: Run, declared: Declared, options: Options, emit: events.Emit
) -> Run:
  """What a lock has chosen, in place of the stages from search to tune."""
  from mirage_onnx.tune.emulated import Emulated
  from mirage_onnx.tune.replay import replayed
  from mirage_onnx.verify.weights import ModelWeights

  assert options.lock is not None
  program, weights = found.program, ModelWeights(loaded)
  with stage(emit, "lock"):
    look = Emulated(options.target, options.budget_s) if options.emulate else None
    chosen, outcomes = replayed(
      program, found.matches, found.outcomes, options.lock, options.target, weights, look, emit
    )
    outcomes = _dynamic(program, declared, options).with_all_points(outcomes)
  with stage(emit, "rewrite"):
    run = with_these(replace(found, chosen=chosen, outcomes=outcomes), loaded, options, range(len(chosen)))
  return replace(run, times=_times(program, run.chosen, run.node_us, options))


def _dynamic(program: Program, declared: Declared, options: Options) -> Dynamic:
  from mirage_onnx.tune.dynamic import Dynamic

  node_us = lambda s: _node_us(program.sized(s), options)  # noqa: E731
  return Dynamic(program, declared, node_us, options.target, options.searched_margin)


def _times(
  program: Program, replaced: tuple[Chosen, ...], node_us: Mapping[str, float], options: Options
) -> ModelTimes | None:
  if options.every or load_table(options.target) is None:
    return None
  typical, target = program.sized(declared_sizes(program, options.shapes).typical), options.target
  if table := None if options.measure else model_table(target):  # what is chosen stands on less than that
    table_us = node_times_us(typical, table)
    node_us = with_floors(table_us, typical, target)
  else:
    table_us = _table_us(typical, options)
  return model_times(program, replaced, table_us, node_us, alone_us(typical, target, table))


def _table_us(program: Program, options: Options) -> dict[str, float]:
  table = (ranking_table if options.measure else load_table)(options.target)
  return node_times_us(program, table) if table else {}


def with_these(run: Run, loaded: LoadedModel, options: Options, some: Sequence[int]) -> Run:
  """``run``, of whose chosen instances only these are replaced; its times are of these.

  For other targets all of theirs are, unless nothing is left.
  """
  from mirage_onnx.rewrite.apply import apply
  from mirage_onnx.rewrite.turned import held

  chosen = [run.chosen[i] for i in some]
  kernels = [(c.region, o.compiled) for c, o in chosen if o.compiled]
  layers = [other.layer() for other in run.others] if chosen else []
  done = apply(loaded, kernels, options.target, pool=options.pool, others=layers)
  model = done.model if options.streamed else held(done.model, loaded.base_dir)
  others = tuple(
    replace(other, chosen=tuple(other.chosen[i] for i in used))
    for other, used in zip(run.others if chosen else (), done.others, strict=True)
  )
  left = tuple(chosen[i] for i in done.used)
  times = _times(run.program, left, run.node_us, options) if run.times else None
  return replace(run, model=model, chosen=left, times=times, others=others)


def with_rival(run: Run, loaded: LoadedModel, options: Options) -> Run:
  """``run`` with its other choice in place of its own."""
  outcomes = dict(run.outcomes) | {o.region.key: o for _, o in run.rival}
  other = replace(run, chosen=run.rival, rival=(), outcomes=outcomes)
  return with_these(other, loaded, options, range(len(other.chosen)))


def refused(run: Run, before: Run, failed: Mapping[int, Rejection]) -> Run:
  """``run``, which replaces less than ``before``: ``failed`` says by instance why."""
  return replace(run, outcomes=without(dict(run.outcomes), before.chosen, run.chosen, failed))


def _spare_s(begun: float, budget: Budget) -> float:
  """The seconds there are for runs in the emulator: a share of what the search took, in the budget."""
  from mirage_onnx.tune.emulated import SHARE
  from mirage_onnx.tune.realise import predicting_threads

  now = time.monotonic()
  return min(SHARE * (now - begun) * predicting_threads(), budget.tune - now)


def _node_us(program: Program, options: Options) -> dict[str, float]:
  if options.every:
    return dict.fromkeys((n.name for n in program.nodes), SLOW_US)
  return with_floors(_table_us(program, options), program, options.target)


def _refused(
  outcomes: dict[str, Outcome], node_us: Mapping[str, float], program: Program, declared: Declared,
  options: Options,
) -> dict[str, Outcome]:  # fmt: skip
  """``outcomes``, refused where no kernel could win, or none of the measurements tell.

  In the latter case only a prediction could choose them. With a margin below 0 it may, for then
  kernels may be slower.
  """
  margin = options.searched_margin
  for key, o in outcomes.items():
    unknown = sum(n not in node_us for n in o.region.nodes)
    refusal = refuse_search(o.baseline_us, margin, o.region.nodes, unknown)
    outcomes[key] = replace(o, rejection=refusal)
  if options.measure or options.every or options.margin < 0:
    return outcomes
  asked = {n for o in outcomes.values() for i in o.instances for n in i.nodes}
  why = unpredicted_at(program, declared.points, options.target, asked)
  refusals = {k: why.refusal(o.region.nodes, options.target) for k, o in outcomes.items()}
  return {k: replace(o, rejection=refusals[k] or o.rejection) for k, o in outcomes.items()}
