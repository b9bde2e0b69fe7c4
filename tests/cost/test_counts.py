"""Counts of thread graphs against what the kernels have to do."""

import json
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from mirage_onnx.cost.counts import counts_of
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import KernelParams, parse_ugraph, ugraph_extents
from mirage_onnx.lower.choice import lowered
from mirage_onnx.lower.stream_graph import StreamedPlan
from mirage_onnx.lower.tiled_graph import TiledPlan
from mirage_onnx.target import get_target

REPLAY = Path(__file__).parents[2] / "bench" / "replay"


def _entries(group, every):
  """Some entries of the corpus; a µGraph that equals the one before it is left out there."""
  text, graph = (REPLAY / f"{group}.jsonl").read_text(), ""
  for number, line in enumerate(text.splitlines()):
    entry = json.loads(line)
    graph = entry.setdefault("graph", graph)
    if number % every == 0:
      yield entry


def _kernels():
  """Kernels of the replay's corpus, lowered: of programs, of the rows of the speed table, with wgmma."""
  for entry in (*_entries("programs", 4), *_entries("speed", 8), *_entries("hopper", 9)):
    graph = parse_ugraph(entry["graph"])
    params = [KernelParams.from_text(p) for p in entry["params"]]
    extents = ugraph_extents(graph, params, entry["extents"])
    for kernel, own in zip(graph.kernels, params, strict=True):
      with suppress(RejectionError):
        target = get_target(entry["target"])
        yield graph, kernel, extents, target, lowered(graph, kernel, own, extents, target)


KERNELS = list(_kernels())


def test_there_are_kernels_of_every_kind():
  plans = [threads.plan for *_, threads in KERNELS]
  rows = [p.lowering.warps.in_rows for p in plans if isinstance(p, TiledPlan)]
  assert min(rows.count(True), rows.count(False), sum(isinstance(p, StreamedPlan) for p in plans)) >= 5


@pytest.mark.parametrize("case", KERNELS, ids=lambda c: c[1].name)
def test_nothing_less_than_the_kernel_has_to_do(case):
  """Blocks load every element of every tensor at least once, and multiply at least all products."""
  graph, kernel, extents, _, threads = case
  counts = counts_of(threads)
  tensors = {o.tensor: graph.tensor(o.tensor) for o in kernel.loads if o.phase.value == "loop"}
  needed = sum(prod(extents[a] for a in t.axes) * t.dtype.bits / 8 / t.repeat for t in tensors.values())
  seen = counts.iterations / threads.iterations  # what a constant hides is left out
  assert counts.blocks * counts.loaded_bytes >= seen * needed * (kernel.loop is not None)
  inside = [op for op in kernel.ops if op.op == "matmul" and op.phase.value == "loop"]
  products = sum(prod(extents[a] for a in (*op.axes, *op.reduced)) for op in inside)
  multiplied = counts.mma + counts.wgmma
  assert counts.blocks * multiplied * 16 * 8 * 16 >= seen * products
  assert bool(products) == bool(multiplied) or any(op.op == "matmul" for op in kernel.ops)


def test_products_by_warpgroups_are_counted_apart():
  """None of them is an instruction of every warp."""
  found = [counts_of(c[4]) for c in KERNELS if c[4].params.instruction == "wgmma"]
  assert len(found) > 5 and all(c.wgmma and not c.mma for c in found)


def test_streaming_kernels_multiply_little_more_than_there_is():
  """Instructions are no more than the padding of rows to 8, and of what is beyond the depth, explains."""
  found = [c for c in KERNELS if isinstance(c[4].plan, StreamedPlan)]
  for _, kernel, extents, _, threads in found:
    products = [op for op in kernel.ops if op.op == "matmul"]
    many = sum(prod(extents[a] for a in (*op.axes, *op.reduced)) for op in products)
    counts = counts_of(threads)
    assert counts.blocks * counts.mma * 16 * 8 * 16 <= 16 * many


def test_another_stage_changes_no_work():
  """Counts of work do not depend on how much is in flight."""
  for graph, kernel, extents, target, threads in KERNELS:
    if isinstance(threads.plan, StreamedPlan) and threads.stages > 1:
      params = replace(threads.params, stages=1)
      one = counts_of(lowered(graph, kernel, params, extents, target))
      assert one.stages == 1
      assert one.mma <= counts_of(threads).mma
      return
  pytest.fail("no streaming kernel has stages")
