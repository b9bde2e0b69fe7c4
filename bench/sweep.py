"""Every number of a kernel, measured: the data that the cost model is calibrated with.

    python bench/sweep.py [--out DIR] [--seconds 240] [--points 120]

For each case: the µGraphs that the search finds for its largest region, each with a grid of tile
sizes, warps, stages and cluster sizes (a seeded sample where there are more than --points), as far
as they compile without spills. Each is checked against float64 and timed (``protocol.py``). Writes
DIR/sweep.csv and DIR/sweep.json (the µGraphs and a summary per case).
"""

import argparse
import csv
import io
import json
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path

import cases
import numpy as np
from protocol import facts, print_table, statistics, streaming_limit, write_text
from scipy import stats

from mirage_onnx.codegen import compile_many
from mirage_onnx.codegen.candidates import Compiled, emit_candidate
from mirage_onnx.codegen.compile import Cubin
from mirage_onnx.errors import RejectionError
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir.text import print_ugraph
from mirage_onnx.ir.ugraph import Candidate, KernelParams, Layout
from mirage_onnx.match.cuts import find_candidates
from mirage_onnx.superopt.cost import features, kernel_cost
from mirage_onnx.superopt.search import Bound, search
from mirage_onnx.tune.device import present_target
from mirage_onnx.tune.measure import Inputs, draw, gpu_of, prepare
from mirage_onnx.verify.equivalence import verify
from mirage_onnx.verify.weights import sample_weights

CHUNK = 48
SAMPLES = 9
COLUMNS = (
    "case", "graph", "params", "registers", "smem_bytes", "blocks", "predicted_us", "measured_us",
    "q1", "q3", "error", "allowed", "chosen",
)  # fmt: skip


@dataclass(frozen=True)
class Point:
    """One candidate of the sweep; ``chosen``: its rank in the search's own list, or -1."""

    graph: int
    compiled: Compiled
    chosen: int


def numbers(kernel, region, target):
    """The grid of one kernel, wider than the search's own."""
    if kernel.loop is None:
        for warps in (1, 2, 4, 8, 16):
            yield KernelParams(tuple(1 for _ in kernel.grid), warps=warps)
        return
    rows = {a for o in kernel.ops if o.layout is Layout.B_FRAG for a in o.axes}
    sizes = [(8, 16, 32) if a in rows else (16, 32, 64) for a in kernel.grid]
    clusters = (1, 2, 4) if kernel.cluster and target.has_clusters else (1,)
    depth = region.extents[kernel.loop]
    for *tile, cluster, warps, stages in product(*sizes, clusters, (2, 4, 8), (1, 2, 4, 8)):
        fits = all(t <= max(16, region.extents[a]) for t, a in zip(tile, kernel.grid, strict=True))
        if fits and 32 * warps * cluster * (stages - 1) < depth:
            yield KernelParams(tuple(tile), cluster, 32 * warps, warps, stages)


def predicted_us(graph, params, region, t):
    tensors = {k.name: k for k in graph.tensors}
    return sum(
        kernel_cost(features(k, tensors, region.extents), p, t).time_us
        for k, p in zip(graph.kernels, params, strict=True)
    )


def candidates(region, target, most):
    """The search's graphs and their compiled points; refusals by code."""
    bound = Bound(verified=6, candidates=24)
    result = search(region, target, lambda r, g, p: verify(r, g), bound=bound)
    own = [v.candidate for v in result.candidates]
    graphs = {print_ugraph(c.ugraph): c.ugraph for c in own}
    wanted = {}
    for rank, c in enumerate(own):
        wanted[list(graphs).index(print_ugraph(c.ugraph)), c.params] = rank
    for number, graph in enumerate(graphs.values()):
        grid = list(product(*(list(numbers(k, region, target)) for k in graph.kernels)))
        random.Random(0).shuffle(grid)
        for params in grid[:most]:
            wanted.setdefault((number, params), -1)
    refused = Counter()
    emitted = []
    for (number, params), rank in wanted.items():
        graph = list(graphs.values())[number]
        c = Candidate(graph, params, predicted_us(graph, params, region, target))
        try:
            emitted.append((number, c, emit_candidate(c, region.extents, target, "sweep"), rank))
        except RejectionError as error:
            refused[error.rejection.code] += 1
    unique = {s.text: s for _, _, sources, _ in emitted for s in sources}
    images = compile_many(list(unique.values()), target, os.cpu_count() or 1)
    image = dict(zip(unique, images, strict=True))
    points = []
    for number, c, sources, rank in emitted:
        cubins = [image[s.text] for s in sources]
        good = tuple(i for i in cubins if isinstance(i, Cubin))
        if len(good) == len(cubins):
            points.append(Point(number, Compiled(c, sources, good), rank))
        else:
            refused["SPILLS or COMPILE_FAILED"] += 1
    return list(graphs.values()), points, refused


def sweep(case, model, gpu, options):
    """Rows and summary of one case."""
    began = time.monotonic()
    loaded = load_model(model)
    found = find_candidates(import_model(loaded)).candidates
    region = max((c.region for c in found), key=lambda r: len(r.nodes))
    graphs, points, refused = candidates(region, gpu.target, options.points)
    compiled_s = time.monotonic() - began
    data, oracle = draw(region, sample_weights(loaded, region), np.random.default_rng(0))
    rows = []
    size = sum(
        prod(region.extents[a] for a in t.axes) * t.dtype.size_bytes
        for t in (*region.inputs, *region.outputs)
    )
    with gpu.scope():
        inputs = Inputs(gpu, region, data)
        for tensor in (t for g in graphs for t in g.tensors):
            inputs.address(tensor.name, tensor.axes)  # now: the scope of a chunk is too short
        limit, shape = streaming_limit(gpu, size)
        limits = gpu.time_us([limit], SAMPLES)
        for start in range(0, len(points), CHUNK):
            if time.monotonic() > options.deadline:
                refused["no time left"] = len(points) - start
                break
            chunk = points[start : start + CHUNK]
            with gpu.scope():
                prepared = [prepare(gpu, region, p.compiled, inputs) for p in chunk]
                errors = [
                    max(oracle.errors(gpu, *p).values(), key=lambda e: e[0] - e[1])
                    for p in prepared
                ]
                times = gpu.time_us([replay for replay, _ in prepared], SAMPLES)
            for p, (error, allowed), samples in zip(chunk, errors, times, strict=True):
                rows.append(row(case, p, error, allowed, samples))
    summary = {
        "case": case, "region": region.text, "bytes": size,
        "limit": statistics(limits) | {"launch": shape},
        "graphs": [print_ugraph(g) for g in graphs], "points": len(rows), "refused": dict(refused),
        "wrong": sum(not r["error"] <= r["allowed"] for r in rows),
        "compile_seconds": round(compiled_s, 1), "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip
    return rows, summary


def row(case, p, error, allowed, samples):
    c = p.compiled
    time_us = statistics(samples)
    values = (
        case, p.graph, " | ".join(x.to_text() for x in c.candidate.params),
        max(i.registers for i in c.cubins), max(s.smem_bytes for s in c.sources),
        sum(prod(s.grid) for s in c.sources), round(c.candidate.predicted_us, 3), time_us["us"],
        time_us["q1"], time_us["q3"], float(f"{error:.3g}"), float(f"{allowed:.3g}"), p.chosen,
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def show(rows, summary):
    right = sorted((r for r in rows if r["error"] <= r["allowed"]), key=lambda r: r["measured_us"])
    if not right:
        print(f"\n{summary['case']}: nothing right of {len(rows)}: {summary['refused']}")
        return
    first = min((r for r in right if r["chosen"] >= 0), key=lambda r: r["chosen"], default=None)
    correlation = stats.spearmanr(
        *zip(*((r["predicted_us"], r["measured_us"]) for r in right), strict=True)
    )
    summary["rank_correlation"] = round(float(correlation.statistic), 3)
    summary["best"], summary["predicted_best"] = right[0], first
    title = (
        f"{summary['case']}: {len(rows)} points, {summary['wrong']} wrong, refused "
        f"{summary['refused']}, rank correlation {summary['rank_correlation']}, limit "
        f"{summary['limit']['us']:.2f} us, {summary['seconds']} s"
    )
    picked = [*right[:5], right[-1], *([first] if first else [])]
    head = ("graph", "params", "registers", "predicted_us", "measured_us", "chosen")
    print_table(title, head, [[str(r[h]) for h in head] for r in picked])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--points", type=int, default=120, help="per µGraph, at most")
    options = parser.parse_args()
    options.deadline = time.monotonic() + options.seconds
    target = present_target()
    if target is None:
        sys.exit("there is no GPU here that has a device profile")
    gpu = gpu_of(target)
    rows = []
    found = facts() | {"cases": []}
    for case, model in cases.SWEEP.items():
        if time.monotonic() > options.deadline:
            found.setdefault("left_out", []).append(case)
            continue
        more, summary = sweep(case, model(), gpu, options)
        show(more, summary)
        rows += more
        found["cases"].append(summary)
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(options.out / "sweep.csv", text.getvalue())
        write_text(options.out / "sweep.json", json.dumps(found, indent=1) + "\n")
    return 1 if any(s["wrong"] for s in found["cases"]) else 0


if __name__ == "__main__":
    sys.exit(main())
