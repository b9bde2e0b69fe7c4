"""The tables and sentences, as text."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from mirage_onnx.report.schema import Report, check_report
from mirage_onnx.report.table import region_table, summary, total_us, verify_table

SEARCH = {"seconds": 1.5, "states": 100, "verified": 3, "stop": "EXHAUSTED"}


def region(**change: object) -> dict[str, Any]:
    return {
        "id": "r0",
        "ops": ["node_pow_1", "node_mean", "node_linear"],
        "count": 2,
        "status": "replaced",
        "reason": None,
        "choice": "predicted",
        "ugraph": "ugraph 1\nkernel k0 grid=a0 cluster=- loop=-\n",
        "predicted_us": 10.0,
        "measured_us": None,
        "baseline_us": 25.0,
        "search": SEARCH,
        "proof": {"draws": 3, "bound": 1e-9},
        **change,
    }


KEPT = {
    "id": "r1",
    "status": "kept",
    "choice": None,
    "ugraph": None,
    "predicted_us": None,
    "proof": None,
}


def report(*regions: dict[str, Any], **change: object) -> Report:
    base = {"schema": 1, "input": "in.onnx", "output": "out.onnx", "target": "h200", "seconds": 2.5}
    return check_report({**base, "regions": list(regions), **change})


def draw(thing: object, width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(thing)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def test_regions(golden: object) -> None:
    kept = region(**KEPT, reason="NOT_FASTER", reason_text="9.1 µs against 9.0 µs")
    measured = region(id="r2", choice="measured", measured_us=8.0, ops=["node_gelu"], count=1)
    unknown = region(**{**KEPT, "id": "r3"}, ops=[], reason=None, search=None, baseline_us=None)
    found = report(region(), kept, measured, unknown)
    assert draw(region_table(found)) + summary(found) + "\n" == golden


def test_summary_of_nothing_replaced() -> None:
    found = report(region(**KEPT, reason="NO_CANDIDATE"), barriers={"OP_UNKNOWN": 3, "DTYPE": 1})
    assert summary(found) == (
        "replaced 0 of 1 regions; nodes outside any region: 1 DTYPE, 3 OP_UNKNOWN; 2.5 s; "
        "wrote out.onnx"
    )


def test_total_needs_every_time() -> None:
    assert total_us(report(region(), region(count=1, measured_us=5.0))) == (75.0, 25.0)
    assert total_us(report(region(), region(baseline_us=None))) is None


def test_verify(golden: object) -> None:
    found = {
        "outputs": [
            {"name": "logits", "max_abs": 0.001234, "passed": True},
            {"name": "present", "max_abs": None, "passed": True},
        ],
        "paths": {"mirage_0": "body"},
        "note": "no kernel ran",
        "passed": True,
    }
    assert "".join(draw(part) for part in verify_table(found, passed=True)) == golden
    assert list(verify_table({}, passed=False)) == ["FAILED"]
