"""Choosing without a GPU: predicted time against the table of ONNX Runtime's kernels."""

from __future__ import annotations

from mirage_onnx.errors import Rejection
from mirage_onnx.superopt.result import SearchResult, Stop

#: Fastest a replayed kernel can be: used to skip searches that cannot win.
FLOOR_US = 1.0


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
