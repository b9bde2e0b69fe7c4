"""Rounding: goldens pass, and each way to lose precision or range is refused."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from goldens import golden

from mirage_onnx.errors import Rejection
from mirage_onnx.ir.dtype import DType, round_to
from mirage_onnx.ir.region import Region
from mirage_onnx.ir.text import parse_ugraph, print_ugraph
from mirage_onnx.ir.ugraph import KernelParams, UGraph
from mirage_onnx.verify import numeric
from mirage_onnx.verify.numeric import CASES, SPREAD, NumericRecord, check_numerics, redrawn

Goldens = dict[str, tuple[Region, UGraph]]
RNG = np.random.default_rng(0)
#: In these, two draws refuse a program that rounds as the original does.
SEEDS = (1, 4, 7, 9)


def edited(graph: UGraph, old: str, new: str) -> UGraph:
    text = print_ugraph(graph)
    assert old in text
    return parse_ugraph(text.replace(old, new))


def test_goldens_round_no_worse_than_onnx(goldens: Goldens) -> None:
    for name, (region, graph) in goldens.items():
        start = time.perf_counter()
        record = check_numerics(region, graph, None)
        assert isinstance(record, NumericRecord), (name, record)
        assert record.candidate <= 2 * record.original + 1e-3
        assert record.case in CASES and record.rows > 0
        assert time.perf_counter() - start < 0.5


def test_the_numbers_of_the_candidate_are_used(goldens: Goldens) -> None:
    region, graph = goldens["norm_linear_cluster"]
    params = (KernelParams(tile=(16, 8), cluster=4, loop_tile=32),)
    assert isinstance(check_numerics(region, graph, params), NumericRecord)


@pytest.mark.parametrize(
    ("golden", "old", "new", "code"),
    [
        # squares above 65504 in 16 bits
        ("residual_norm", "%4 = square %3 : f32", "%4 = square %3 : f16", "NUMERICS"),
        # exp without its shift
        ("softmax", "%3 = exp %2", "%3 = exp %0", "RANGE"),
        # logits in 16 bits
        ("softmax", "%2 = sub %0 %1 : f32", "%2 = sub %0 %1 : f16", "NUMERICS"),
        # the accumulated gate in 16 bits, then squared away
        ("norm_linear", "%11 = div %9 %10 : f32", "%11 = div %9 %10 : f16", "NUMERICS"),
        # not the same program at all
        ("gated", "%7 = neg %4", "%7 = abs %4", "NUMERICS"),
    ],
)
def test_lost_precision_is_refused(
    goldens: Goldens, golden: str, old: str, new: str, code: str
) -> None:
    region, graph = goldens[golden]
    result = check_numerics(region, edited(graph, old, new), None)
    assert isinstance(result, Rejection)
    assert result.code == code, result
    assert any(result.reason.startswith(f"{case}:") for case in CASES)


def test_one_draw_of_roundings_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few logits make the error of a row, so programs that round alike have other errors there."""
    given = golden("qknorm_attention")
    as_the_original = edited(given.ugraph, "%22 = mul %20 %21 : f32", "%22 = mul %20 %21 : f16")
    worse = edited(given.ugraph, "%22 = mul %20 %21 : f32", "%22 = mul %20 %21 : bf16")

    def refused() -> list[int]:
        return [
            sum(isinstance(check_numerics(given.region, g, None, seed=n), Rejection) for n in SEEDS)
            for g in (given.ugraph, as_the_original, worse)
        ]

    assert refused() == [0, 0, len(SEEDS)]
    monkeypatch.setattr(numeric, "DRAWS", 1)
    monkeypatch.setattr(numeric, "BATCH", 1)
    one = refused()
    assert one[0] > 0 and one[1] > 0 and one[2] == len(SEEDS)


def test_other_draws_are_the_same_case() -> None:
    region = golden("qknorm_attention").region
    inputs = {i.name: RNG.standard_normal([3, 4]) for i in region.inputs}
    weight, *activations = (i.name for i in region.inputs)
    x, y = activations[:2]
    inputs[x][0], inputs[x][1] = 0.0, 1.5
    found = redrawn(region, inputs, 6, RNG)
    assert (found[weight] == inputs[weight]).all()
    assert (found[x][:, 0] == 0).all() and (np.ptp(found[x][:, 1], axis=-1) == 0).all()
    assert len(set(found[x][:, 1, 0])) > 3
    ratio = found[y] / inputs[y]
    assert (ratio > 1 - 2**-10).all() and (ratio < 1 + SPREAD + 2**-9).all()
    assert (round_to(found[y], DType.F16) == found[y]).all()
    truth = replace(region, inputs=tuple(replace(i, dtype=DType.BOOL) for i in region.inputs))
    assert all((x == inputs[n]).all() for n, x in redrawn(truth, inputs, 2, RNG).items())


def test_real_weights_are_sampled_with_their_largest_channels(goldens: Goldens) -> None:
    """x * gamma in 16 bits before the norm overflows only where gamma is large."""
    region, graph = goldens["norm_linear"]
    small = {"x1": np.ones(4096, np.float16)}
    assert isinstance(check_numerics(region, graph, None, small), NumericRecord)
    large = {"x1": np.where(np.arange(4096) % 97 == 5, 200.0, 1.0).astype(np.float16)}
    result = check_numerics(region, graph, None, large)
    assert isinstance(result, Rejection) and result.code in ("RANGE", "NUMERICS")
    square = {"x2": np.resize(RNG.standard_normal(65537), (4096, 4096)).astype(np.float16)}
    assert isinstance(check_numerics(region, graph, None, square), NumericRecord)


def test_only_what_the_original_can_compute_is_a_measure(goldens: Goldens) -> None:
    region, graph = goldens["softmax"]
    steps = list(region.steps)
    steps[2] = replace(steps[2], inputs=("x0",))
    steps[3] = replace(steps[3], inputs=(steps[2].output.name, "x0"), op="mul")
    log = [replace(steps[2], op="log"), replace(steps[4], op="log", inputs=("t2",))]
    log[0] = replace(log[0], inputs=("t1",))
    sub = replace(steps[1], inputs=("x0", "x0"))
    result = check_numerics(replace(region, steps=(sub, *log)), graph, None)
    assert isinstance(result, Rejection) and result.code == "INCONCLUSIVE"


def test_ill_formed_graphs_are_refused(goldens: Goldens) -> None:
    region, graph = goldens["gated"]
    result = check_numerics(region, edited(graph, "save o0 = %13", "save o0 = %3"), None)
    assert isinstance(result, Rejection) and result.code == "NOT_EQUIVALENT"
