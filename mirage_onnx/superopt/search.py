"""The search: region in, verified candidate µGraphs out, cheapest predicted first.

``programs.py`` enumerates kernel graphs; here they are ranked and the cheapest are verified, by the
callable that the pipeline passes in. Within its bound (operators per kernel, cuts) the enumeration
is exhaustive; every prune is counted.
"""

from __future__ import annotations

import time

from mirage_onnx.errors import Rejection
from mirage_onnx.ir.region import Region
from mirage_onnx.ir.text import print_ugraph
from mirage_onnx.ir.ugraph import Candidate, KernelParams, UGraph
from mirage_onnx.superopt.axioms import AXIOMS, Axiom
from mirage_onnx.superopt.derive import StateLimitError
from mirage_onnx.superopt.programs import BudgetError, Programs
from mirage_onnx.superopt.result import (
    Bound,
    ProofLike,
    SearchReport,
    SearchResult,
    Stop,
    Verified,
    Verify,
)
from mirage_onnx.target import Target

__all__ = ["Bound", "SearchReport", "SearchResult", "Stop", "Verified", "Verify", "search"]


def search(
    region: Region,
    target: Target,
    verify: Verify,
    *,
    bound: Bound | None = None,
    budget_s: float = 60.0,
    axioms: tuple[Axiom, ...] = AXIOMS,
) -> SearchResult:
    """Search µGraphs for ``region`` on ``target`` and verify the cheapest ones."""
    limits = bound or Bound()
    start = time.monotonic()
    s = Programs(region, target, limits, axioms, start + budget_s)
    found: dict[tuple[str, tuple[str, ...]], tuple[float, UGraph, tuple[KernelParams, ...]]] = {}
    stop = Stop.EXHAUSTED
    try:
        for cost, graph, params in s.programs():
            key = (print_ugraph(graph), tuple(p.to_text() for p in params))
            if key not in found or cost < found[key][0]:
                found[key] = (cost, graph, params)
    except StateLimitError:
        stop = Stop.STATE_LIMIT
    except BudgetError:
        stop = Stop.BUDGET
    ranked = sorted(found.items(), key=lambda f: (f[1][0], f[0]))
    accepted: dict[str, ProofLike | Rejection] = {}
    out: list[Verified] = []
    refused = list(s.reasons.values())
    for (text, _), (cost, graph, params) in ranked:
        if text not in accepted:
            good = sum(not isinstance(v, Rejection) for v in accepted.values())
            if good >= limits.verified or len(accepted) >= limits.tried:
                continue
            accepted[text] = verify(region, graph, params)
            verdict = accepted[text]
            if isinstance(verdict, Rejection):
                refused.append(verdict)
        verdict = accepted[text]
        if not isinstance(verdict, Rejection) and len(out) < limits.candidates:
            out.append(Verified(Candidate(graph, params, cost), verdict))
    report = SearchReport(
        seconds=time.monotonic() - start,
        states=s.counts.states,
        built=s.built,
        verified=sum(not isinstance(v, Rejection) for v in accepted.values()),
        stop=stop,
        pruned=tuple(sorted(s.counts.pruned.items())),
        refused=tuple(refused),
    )
    return SearchResult(tuple(out), report)
