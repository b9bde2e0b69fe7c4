"""Choose regions, compile (and measure) their kernels, and choose again without what failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mirage_onnx.codegen.candidates import compile_candidates
from mirage_onnx.errors import Rejection
from mirage_onnx.importer import LoadedModel
from mirage_onnx.ir.program import Program
from mirage_onnx.match.cuts import Candidate
from mirage_onnx.match.partition import choose
from mirage_onnx.target import Target
from mirage_onnx.tune.measure import measure_region
from mirage_onnx.tune.outcome import Outcome

#: One chosen instance of a region.
Chosen = tuple[Candidate, Outcome]


def realise(
    loaded: LoadedModel,
    program: Program,
    outcomes: Mapping[str, Outcome],
    node_us: Mapping[str, float],
    target: Target,
    *,
    margin: float,
    measure: bool,
    tries: int,
) -> tuple[tuple[Chosen, ...], dict[str, Outcome]]:
    """The chosen instances, each with compiled kernels, and all outcomes by region key.

    ``tries``: candidates that are compiled (and timed) per region at most.
    """
    found = dict(outcomes)
    while True:
        live = [(c, o) for o in found.values() if o.rejection is None for c in o.instances]
        picked = choose(
            program,
            [c for c, _ in live],
            [o.price_us(margin) for _, o in live],
            node_us,
        )
        chosen = tuple(live[i] for i in picked)
        todo = sorted({o.region.key for _, o in chosen if o.compiled is None})
        if not todo:
            # Most gain first: where names run out, the least is left as it was.
            gain = [
                o.price_us(margin) - sum(node_us.get(n, 0.0) for n in c.nodes) for c, o in chosen
            ]
            order = sorted(range(len(chosen)), key=lambda i: (gain[i], i))
            return tuple(chosen[i] for i in order), found
        for key in todo:
            found[key] = _compile(loaded, found[key], target, measure=measure, tries=tries)


def _compile(
    loaded: LoadedModel, outcome: Outcome, target: Target, *, measure: bool, tries: int
) -> Outcome:
    region, result = outcome.region, outcome.result
    assert result is not None
    candidates = [v.candidate for v in result.candidates][:tries]
    compiled, refused = compile_candidates(region, candidates, target, keep=tries if measure else 1)
    if not compiled:
        return replace(outcome, rejection=refused[0])
    if not measure:
        return replace(outcome, compiled=compiled[0])
    best, measured = measure_region(loaded, region, compiled, target)
    if isinstance(measured, Rejection):
        return replace(outcome, rejection=measured)
    return replace(outcome, compiled=best, measured=measured)
