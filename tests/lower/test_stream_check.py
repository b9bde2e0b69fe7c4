"""What has no text as a streaming kernel, its lowering refuses: of what is left everything has a rule."""

import json
import random
from dataclasses import replace
from pathlib import Path

from mirage_onnx.codegen.emit import text_of
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import KernelParams, parse_ugraph, ugraph_extents
from mirage_onnx.lower.choice import streams
from mirage_onnx.lower.sizes import LaunchSizes
from mirage_onnx.lower.stream_graph import stream_graph
from mirage_onnx.lower.tensor_view import kernel_axes
from mirage_onnx.target import H200

REPLAY = Path(__file__).parents[2] / "bench" / "replay"
TILES, WARPS, STAGES, CLUSTERS = (1, 3, 8, 16, 24, 64), (1, 2, 4, 8), (1, 2, 4), (1, 1, 2, 4)


def _wild(rng, entry, graph):
  """Other numbers and sizes of a µGraph, some of the sizes known to a launch only."""

  def other(params):
    return replace(
      params, tile=tuple(rng.choice(TILES) for _ in params.tile), warps=rng.choice(WARPS),
      stages=rng.choice(STAGES), cluster=rng.choice(CLUSTERS),
    )  # fmt: skip

  numbers = [other(KernelParams.from_text(p)) for p in entry["params"]]
  sizes = {a: max(1, n + rng.choice((0, 0, 0, -1, 1, -7, 3))) for a, n in entry["extents"].items()}
  return numbers, ugraph_extents(graph, numbers, sizes), {a for a in sizes if rng.random() < 0.15}


def test_the_text_refuses_nothing_that_was_lowered():
  rng, written, refused = random.Random(5), 0, 0
  graphs = {}
  for group in ("graphs", "programs", "speed"):
    for line in (REPLAY / f"{group}.jsonl").read_text().splitlines():
      entry = json.loads(line)
      if "graph" in entry:
        graphs[entry["graph"]] = entry
  for text, entry in graphs.items():
    graph = parse_ugraph(text)
    for _ in range(6):
      numbers, extents, runtime = _wild(rng, entry, graph)
      for kernel, params in zip(graph.kernels, numbers, strict=True):
        if not streams(kernel):
          continue
        known = LaunchSizes(extents, frozenset(runtime & kernel_axes(graph, kernel)))
        try:
          threads = stream_graph(graph, kernel, params, known, H200)
        except RejectionError:
          refused += 1
          continue
        assert text_of(threads, H200, kernel).text
        written += 1
  assert written > 50 < refused
