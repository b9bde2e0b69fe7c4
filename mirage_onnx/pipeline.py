"""The stages in order: the only file that knows all of them. Read it from top to bottom.

    import -> match -> search (with the verifier inside) -> choose -> compile -> plan -> rewrite
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from mirage_onnx import events
from mirage_onnx.custom_op.assemble import BundleBuilder, Compiled, compile_candidates
from mirage_onnx.custom_op.bundle import write_bundle
from mirage_onnx.custom_op.launch_plan import Planned
from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.importer import LoadedModel, import_model
from mirage_onnx.ir.program import Program
from mirage_onnx.ir.region import Region
from mirage_onnx.ir.ugraph import KernelParams, UGraph
from mirage_onnx.match.cuts import Candidate, Matches, find_candidates
from mirage_onnx.match.partition import choose
from mirage_onnx.rewrite.model import function_keys, rewrite_model
from mirage_onnx.rewrite.replacement import Replacement, WeightUse
from mirage_onnx.superopt.pool import search_all
from mirage_onnx.superopt.search import Bound, SearchResult, search
from mirage_onnx.target import Target
from mirage_onnx.tune.baseline import load_table, node_times_us
from mirage_onnx.tune.measure import Measured, measure_region
from mirage_onnx.tune.predict import refuse_result, refuse_search
from mirage_onnx.verify.equivalence import Proof, verify
from mirage_onnx.verify.numeric import check_numerics
from mirage_onnx.verify.weights import sample_weights


@dataclass(frozen=True, slots=True)
class Options:
    """What a run may be told. ``measure``: time candidates on the present GPU."""

    target: Target
    margin: float = 0.2
    budget_s: float = 300.0
    workers: int | None = None
    measure: bool = False
    compile_tries: int = 8
    bound: Bound = Bound()


@dataclass(frozen=True, slots=True)
class Outcome:
    """One distinct region and what became of it."""

    region: Region
    instances: int
    baseline_us: float
    result: SearchResult | None
    compiled: Compiled | None
    measured: Measured | None
    rejection: Rejection | None

    @property
    def cost_us(self) -> float:
        """The time the choice is made by: measured where there is a measurement."""
        if self.measured is not None:
            return self.measured.kernel_us
        assert self.compiled is not None
        return self.compiled.candidate.predicted_us


@dataclass(frozen=True, slots=True)
class Run:
    """Everything a report needs."""

    model: onnx.ModelProto
    program: Program
    matches: Matches
    replaced: tuple[Outcome, ...]
    kept: tuple[Outcome, ...]
    node_us: Mapping[str, float]


def run(loaded: LoadedModel, options: Options, emit: events.Emit = events.silent) -> Run:
    """Optimize one loaded model."""
    deadline = time.monotonic() + options.budget_s
    with _stage(emit, "importer"):
        program = import_model(loaded)
    with _stage(emit, "match"):
        matches = find_candidates(program)
        table = load_table(options.target)
        node_us = node_times_us(program, table) if table else {}
        groups = _group(matches)
    with _stage(emit, "superopt"):
        found = _search(loaded, groups, node_us, options, deadline, emit)
    with _stage(emit, "tune"):
        outcomes = _realise(loaded, program, matches, found, node_us, options)
    with _stage(emit, "rewrite"):
        model, replaced = _rewrite(loaded, outcomes, options)
    used = {o.region.key for o in replaced}
    kept = tuple(o for k, (o, _) in outcomes.found.items() if k not in used)
    return Run(model, program, matches, replaced, kept, node_us)


@dataclass(slots=True)
class _stage:  # noqa: N801  (reads as a statement)
    emit: events.Emit
    name: str
    start: float = 0.0

    def __enter__(self) -> None:
        self.start = time.monotonic()
        self.emit(events.StageStarted(self.name))

    def __exit__(self, *_: object) -> None:
        self.emit(events.StageEnded(self.name, time.monotonic() - self.start, ""))


Found = dict[str, tuple[Outcome, tuple[Candidate, ...]]]


def _group(matches: Matches) -> dict[str, tuple[Candidate, ...]]:
    """Identical regions are searched once."""
    groups: dict[str, list[Candidate]] = {}
    for c in matches.candidates:
        groups.setdefault(c.region.key, []).append(c)
    return {k: tuple(v) for k, v in groups.items()}


def _search(
    loaded: LoadedModel,
    groups: Mapping[str, tuple[Candidate, ...]],
    node_us: Mapping[str, float],
    options: Options,
    deadline: float,
    emit: events.Emit,
) -> Found:
    found: Found = {}
    todo: list[str] = []
    for key, same in groups.items():
        region = same[0].region
        baseline = max(sum(node_us.get(n, 0.0) for n in c.nodes) for c in same)
        refusal = refuse_search(baseline, options.margin, region.nodes)
        found[key] = (Outcome(region, len(same), baseline, None, None, None, refusal), same)
        if refusal is None:
            todo.append(key)

    def task(region: Region) -> SearchResult:
        weights = sample_weights(loaded, region)

        def prove(r: Region, g: UGraph, p: tuple[KernelParams, ...]) -> Proof | Rejection:
            proof = verify(r, g)
            if isinstance(proof, Rejection):
                return proof
            record = check_numerics(r, g, p, weights)
            return record if isinstance(record, Rejection) else proof

        left = max(0.0, deadline - time.monotonic())
        return search(region, options.target, prove, bound=options.bound, budget_s=left)

    def done(i: int, r: SearchResult) -> None:
        outcome, same = found[todo[i]]
        region, base = outcome.region, outcome.baseline_us
        refusal = refuse_result(r, base, options.margin, region.nodes)
        found[todo[i]] = (Outcome(region, len(same), base, r, None, None, refusal), same)
        best = r.candidates[0].candidate.predicted_us if r.candidates else None
        emit(
            events.RegionDone(
                region.key, region.nodes, r.report.states, r.report.verified, best,
                refusal.code if refusal else None,
            )
        )  # fmt: skip

    search_all([found[k][0].region for k in todo], task, workers=options.workers, done=done)
    return found


@dataclass(slots=True)
class _Realised:
    found: Found
    chosen: tuple[tuple[Candidate, Outcome], ...]


def _realise(
    loaded: LoadedModel,
    program: Program,
    matches: Matches,
    found: Found,
    node_us: Mapping[str, float],
    options: Options,
) -> _Realised:
    """Choose regions, compile (and measure) their kernels, and choose again without what failed."""
    while True:
        live = [
            (c, o) for o, same in found.values() if o.rejection is None for c in same
        ]
        costs = [_price(o, options) for _, o in live]
        keys = {k: i for i, k in enumerate(found)}
        picked = choose(
            program, [c for c, _ in live], costs, node_us,
            groups=[keys[o.region.key] for _, o in live],
        )  # fmt: skip
        chosen = [live[i] for i in picked]
        todo = {o.region.key for _, o in chosen if o.compiled is None}
        if not todo:
            return _Realised(found, tuple(chosen))
        for key in sorted(todo):
            outcome, same = found[key]
            found[key] = (_compile(loaded, outcome, options), same)


def _price(outcome: Outcome, options: Options) -> float:
    if outcome.measured is not None:
        return outcome.measured.kernel_us
    assert outcome.result is not None
    if outcome.compiled is not None:
        return outcome.compiled.candidate.predicted_us / (1 - options.margin)
    return outcome.result.candidates[0].candidate.predicted_us / (1 - options.margin)


def _compile(loaded: LoadedModel, outcome: Outcome, options: Options) -> Outcome:
    region, result = outcome.region, outcome.result
    assert result is not None
    candidates = [v.candidate for v in result.candidates][: options.compile_tries]
    keep = options.compile_tries if options.measure else 1
    compiled, refused = compile_candidates(region, candidates, options.target, keep=keep)
    base = (region, outcome.instances, outcome.baseline_us, result)
    if not compiled:
        return Outcome(*base, None, None, refused[0])
    if not options.measure:
        return Outcome(*base, compiled[0], None, None)
    best, measured = measure_region(loaded, region, compiled, options.target)
    if isinstance(measured, Rejection):
        return Outcome(*base, None, None, measured)
    return Outcome(*base, best, measured, None)


def _rewrite(
    loaded: LoadedModel, realised: _Realised, options: Options
) -> tuple[onnx.ModelProto, tuple[Outcome, ...]]:
    builder = BundleBuilder(options.target)
    replacements: list[Replacement] = []
    plans: list[tuple[Region, Compiled, Planned]] = []
    used: dict[str, Outcome] = {}
    for candidate, outcome in realised.chosen:
        region, compiled = candidate.region, outcome.compiled
        assert compiled is not None
        try:
            _, planned = BundleBuilder(options.target).add(region, compiled, "")
        except RejectionError as error:
            realised.found[region.key] = (
                Outcome(region, outcome.instances, outcome.baseline_us, outcome.result, None, None,
                        error.rejection),
                realised.found[region.key][1],
            )  # fmt: skip
            continue
        plans.append((region, compiled, planned))
        replacements.append(_replacement(region, planned, 0))
        used.setdefault(region.key, outcome)
    if not replacements:
        return loaded.proto, ()
    keys = function_keys(loaded.proto, replacements, loaded.base_dir)
    numbered = []
    for (region, compiled, planned), key in zip(plans, keys, strict=True):
        plan, _ = builder.add(region, compiled, key)
        numbered.append(_replacement(region, planned, plan))
    bundle = write_bundle(builder.bundle())
    model = rewrite_model(
        loaded.proto, numbered, bundle,
        target_suffix=options.target.suffix, base_dir=loaded.base_dir,
    )  # fmt: skip
    counts: dict[str, int] = {}
    for region, _, _ in plans:
        counts[region.key] = counts.get(region.key, 0) + 1
    replaced = tuple(
        Outcome(o.region, counts[k], o.baseline_us, o.result, o.compiled, o.measured, None)
        for k, o in used.items()
    )
    return model, replaced


def _replacement(region: Region, planned: Planned, plan: int) -> Replacement:
    weights = tuple(
        WeightUse(i.tensor.name, perm)
        for i, perm in zip(region.inputs, planned.permutations, strict=True)
        if perm != tuple(range(len(perm)))
    )
    return Replacement(
        nodes=region.nodes,
        inputs=tuple(i.tensor.name for i in region.inputs),
        weights=weights,
        outputs=tuple(o.tensor.name for o in region.outputs),
        workspace=planned.plan.workspace is not None,
        plan=plan,
    )


__all__ = ["Options", "Outcome", "Run", "run"]
