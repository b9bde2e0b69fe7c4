"""Choosing without a GPU: predicted time against the table of ONNX Runtime's kernels.

The cost model of streaming and row kernels is calibrated. That of tiled kernels counts what they
have to do, and what is generated today takes longer: over the golden µGraphs at full size on an
H200 (bench/results/h200/goldens.json.xz) about ``TILED_FACTOR`` times the model's time and
``TILED_EXTRA_US`` per kernel. Order among tiled programs is the search's; a comparison with
anything else is made with the expected time.
"""

from dataclasses import replace

from mirage_onnx.errors import Rejection
from mirage_onnx.ir.ugraph import Candidate
from mirage_onnx.superopt.result import SearchResult, Stop
from mirage_onnx.superopt.thread import Family, assign_layouts

TILED_FACTOR, TILED_EXTRA_US = 2.1, 3.0

#: Fastest a replayed kernel can be: used to skip searches that cannot win.
FLOOR_US = 1.0


def expected_us(candidate: Candidate) -> float:
    """The time that generated kernels take, as far as it is known."""
    tensors = {t.name: t for t in candidate.ugraph.tensors}
    families = [assign_layouts(k, tensors, tiled=True)[0] for k in candidate.ugraph.kernels]
    if Family.TILED not in families:
        return candidate.predicted_us
    return TILED_FACTOR * candidate.predicted_us + TILED_EXTRA_US * len(families)


def as_expected(result: SearchResult) -> SearchResult:
    """The result with expected times, in their order."""
    found = [
        replace(v, candidate=replace(v.candidate, predicted_us=expected_us(v.candidate)))
        for v in result.candidates
    ]
    found.sort(key=lambda v: v.candidate.predicted_us)
    return replace(result, candidates=tuple(found))


def refuse_search(baseline_us: float, margin: float, nodes: tuple[str, ...]) -> Rejection | None:
    """Why a region is not worth searching: its nodes cost too little for any kernel to win."""
    if baseline_us * (1 - margin) <= FLOOR_US:
        reason = f"its nodes take {baseline_us:.2f} us together, no kernel is that much faster"
        return Rejection("NOT_FASTER", reason, nodes)
    return None


def refuse_result(
    result: SearchResult, baseline_us: float, margin: float, nodes: tuple[str, ...]
) -> Rejection | None:
    """Why a searched region is kept, or None if its best candidate wins by the margin."""
    if not result.candidates:
        if result.report.stop is Stop.BUDGET:
            return Rejection("BUDGET", "the time ended before a program was verified", nodes)
        if result.report.stop is Stop.INTERRUPTED:
            return Rejection(
                "INTERRUPTED", "the run was stopped before a program was verified", nodes
            )
        first = next(iter(result.report.refused), None)
        reason = f"no verified program (search: {result.report.stop})"
        if first is not None:
            reason += f"; {first.code}: {first.reason}"
        return Rejection("NO_CANDIDATE", reason, nodes)
    best = result.candidates[0].candidate.predicted_us
    if best > baseline_us * (1 - margin):
        reason = f"{best:.2f} us predicted against {baseline_us:.2f} us, margin {margin:.0%}"
        return Rejection("NOT_FASTER", reason, nodes)
    return None
