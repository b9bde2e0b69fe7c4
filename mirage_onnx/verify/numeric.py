"""How a candidate rounds, against how the original rounds.

The field test cannot see rounding or overflow. Here two programs run against the steps in float64,
on inputs that are hard for one or the other: the candidate, with every block value rounded to its
element type, and the region's steps, with every intermediate rounded to its ONNX type.

The original may overflow where the candidate need not, and is then no measure: only elements where
the reference fits the output type and the original is finite are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.ir.dtype import round_to
from mirage_onnx.ir.region import Region
from mirage_onnx.ir.ugraph import KernelParams, UGraph
from mirage_onnx.verify.domain import Rounded
from mirage_onnx.verify.interpret_steps import by_axes, interpret_steps, positional
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import Named
from mirage_onnx.verify.samples import CASES, sample_extents, sample_inputs, sample_params
from mirage_onnx.verify.wellformed import check_interface, check_ugraph

#: The candidate's relative error may be ``FACTOR`` times the original's, plus a slack, which is
#: smaller where the original has no 16-bit value.
FACTOR = 2.0
SLACK, SLACK_WIDE = 1e-3, 1e-5
#: Rows smaller than this, relative to the largest row, are measured against this.
SMALL_ROW = 1e-3


@dataclass(frozen=True, slots=True)
class NumericRecord:
    """The worst relative L2 error of an output row, and the original's at that row."""

    candidate: float
    original: float
    case: str
    rows: int


def check_numerics(
    region: Region,
    graph: UGraph,
    params: Sequence[KernelParams] | None,
    weights: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
) -> NumericRecord | Rejection:
    """The record of a candidate that rounds no worse than the original, or a rejection.

    ``weights``: ONNX tensor name -> its real values; weights that are not given are drawn.
    """
    refused = check_ugraph(graph) or check_interface(region, graph)
    if refused:
        return refused
    try:
        return _check(region, graph, params, weights or {}, np.random.default_rng(seed))
    except RejectionError as e:
        return e.rejection
    except (ValueError, KeyError) as e:
        return Rejection("NOT_EQUIVALENT", f"ill-formed: {e}")


def _check(
    region: Region,
    graph: UGraph,
    params: Sequence[KernelParams] | None,
    weights: Mapping[str, np.ndarray],
    rng: np.random.Generator,
) -> NumericRecord | Rejection:
    extents = sample_extents(region)
    given = params or tuple(KernelParams() for _ in graph.kernels)
    numbers = [sample_params(k, p, extents) for k, p in zip(graph.kernels, given, strict=True)]
    inputs = sample_inputs(region, extents, weights, rng)
    named = {i.name: Named(inputs[i.name], i.axes) for i in region.inputs}
    got = interpret_ugraph(Rounded(len(CASES)), graph, numbers, extents, named)
    halves = [d for s in region.steps if (d := s.output.dtype) is not None and d.is_half]
    slack = SLACK if halves else SLACK_WIDE
    worst = NumericRecord(0.0, 0.0, CASES[0], 0)
    for number, case in enumerate(CASES):
        feed = {i.tensor.name: positional(i, inputs[i.name][number]) for i in region.inputs}
        exact = interpret_steps(region, feed, rounded=False, extents=extents)
        baseline = interpret_steps(region, feed, rounded=True, extents=extents)
        for output in region.outputs:
            name = output.tensor.name
            x = by_axes(output, exact[name], extents)
            b = by_axes(output, baseline[name], extents)
            y = got[output.name].aligned(output.axes)[number]
            measured = np.isfinite(round_to(x, output.dtype)) & np.isfinite(b)
            if (bad := measured & ~np.isfinite(y)).any():
                at = tuple(int(i) for i in np.argwhere(bad)[0])
                reason = f"{case}: {output.name}{list(at)} is {y[at]}, exactly it is {x[at]:.4g}"
                return Rejection("RANGE", reason)
            mine, theirs = _errors(x, y, measured), _errors(x, b, measured)
            excess = mine - (FACTOR * theirs + slack)
            if excess.size and excess.max() > 0:
                row = int(excess.argmax())
                reason = (
                    f"{case}: row {row} of {output.name} has relative error {mine[row]:.2e}, "
                    f"the original {theirs[row]:.2e}"
                )
                return Rejection("NUMERICS", reason)
            worst = _worse(worst, mine, theirs, case)
    if worst.rows == 0:
        return Rejection("INCONCLUSIVE", "the original is not finite on any input of the check")
    return worst


def _worse(worst: NumericRecord, mine: np.ndarray, theirs: np.ndarray, case: str) -> NumericRecord:
    rows = worst.rows + mine.size
    if mine.size and mine.max() >= worst.candidate:
        row = int(mine.argmax())
        return NumericRecord(float(mine[row]), float(theirs[row]), case, rows)
    return NumericRecord(worst.candidate, worst.original, worst.case, rows)


def _errors(x: np.ndarray, y: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Relative L2 error of every row (over the last axis) that has a measured element."""
    width = x.shape[-1] if x.ndim else 1
    mask = measured.reshape(-1, width)
    clean = np.where(mask, x.reshape(-1, width), 0.0)
    difference = np.where(mask, y.reshape(-1, width), 0.0) - clean
    norms = np.linalg.norm(clean, axis=-1)
    floor = max(SMALL_ROW * float(norms.max(initial=0.0)), 1e-30)
    errors: np.ndarray = np.linalg.norm(difference, axis=-1) / np.maximum(norms, floor)
    return errors[mask.any(axis=-1)]
