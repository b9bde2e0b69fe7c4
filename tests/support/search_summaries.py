"""What two searches must agree on, and polls that end one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mirage_onnx.ir.text import print_ugraph
from mirage_onnx.superopt.result import SearchResult, Stop


def summary(result: SearchResult) -> tuple[Any, ...]:
    """All but the time it took: candidates, states, built, verified, stop, pruned, refused."""
    r = result.report
    found = [
        (
            print_ugraph(v.candidate.ugraph),
            [p.to_text() for p in v.candidate.params],
            np.float64(v.candidate.predicted_us).tobytes(),
            v.proof,
        )
        for v in result.candidates
    ]
    return (found, r.states, r.built, r.verified, r.stop, r.pruned, r.refused)


def after(polls: int) -> Callable[[], Stop | None]:
    """Interrupts at this poll."""
    left = [polls]

    def stop() -> Stop | None:
        left[0] -= 1
        return Stop.INTERRUPTED if left[0] < 0 else None

    return stop
