"""One gate after the proof: each check refuses what it is for, and goldens pass."""

from __future__ import annotations

import pytest
from goldens import GOLDENS, Golden, golden

from mirage_onnx.errors import Rejection
from mirage_onnx.ir.text import parse_ugraph, print_ugraph
from mirage_onnx.verify.safety import (
    SafetyCheck,
    SafetyRecord,
    check_range_and_shift,
    safety_row,
)

#: Right in algebra and in range, but it rounds x gamma before the mean is taken away.
ROUNDS_BADLY = {"layernorm_linear"}


@pytest.mark.parametrize("given", GOLDENS, ids=lambda g: g.name)
def test_goldens_pass(given: Golden) -> None:
    assert check_range_and_shift(given.region, given.ugraph) is None
    result = SafetyCheck(given.region).check(given.ugraph, given.params)
    if given.name in ROUNDS_BADLY:
        assert isinstance(result, Rejection) and result.code == "NUMERICS"
    else:
        assert isinstance(result, SafetyRecord), result


@pytest.mark.parametrize(
    ("name", "old", "new", "code"),
    [
        ("softmax_late_scale", "_max", "_sum", "SHIFT_NOT_MAX"),
        ("gated_mlp", "%12 = mul %11 %6 : f32", "%12 = mul %6 %6 : f32", "NOT_EQUIVALENT"),
        ("softmax_late_scale", "%2 = sub %0 %1 : f32", "%2 = sub %0 %1 : bf16", "NUMERICS"),
        ("residual_norm", "= square %3 : f32", "= square %3 : f16", "RANGE"),
    ],
)
def test_each_check_refuses(name: str, old: str, new: str, code: str) -> None:
    given = golden(name)
    text = print_ugraph(given.ugraph)
    assert old in text
    text = text.replace(old, new)
    if code == "SHIFT_NOT_MAX":
        text = text.replace("rmax[a1]", "sum[a1]")
    result = SafetyCheck(given.region).check(parse_ugraph(text), given.params)
    assert isinstance(result, Rejection)
    assert result.code == code or (code == "NOT_EQUIVALENT" and "wrong" in result.reason), result


def test_rows_of_the_table() -> None:
    row = safety_row("qk", *_parts("qknorm_attention"))
    assert row.maximum == "may be dropped" and row.verdict == "ok"
    assert row.largest_half.startswith("%") and row.candidate_error > 0
    row = safety_row("ln", *_parts("layernorm_linear"))
    assert row.maximum == "none" and row.verdict.startswith("NUMERICS")
    assert row.candidate_error > 100 * row.original_error
    assert safety_row("softmax", *_parts("softmax_rows")).maximum == "needed"


def _parts(name: str) -> tuple[object, ...]:
    given = golden(name)
    return given.region, given.ugraph, given.params
