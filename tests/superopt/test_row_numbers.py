"""The numbers of row kernels: what the cost does not tell apart is in the order that a GPU's times have."""

import json
from collections import defaultdict
from math import ceil, exp, log, prod
from pathlib import Path
from statistics import mean

import pytest

from mirage_onnx.ir import parse_ugraph
from mirage_onnx.superopt.numbers import FEW_PER_THREAD, solve
from mirage_onnx.target import H200

RECORD = Path(__file__).resolve().parents[2] / "bench" / "results" / "h200" / "row_warps.json"
ROW = """ugraph 1
tensor i0 f16[a0,a1] input
tensor o0 f16[a0,a1] output
kernel k0 grid=a0 cluster=- loop=-
  %0 = load i0 imap=a0,- cmap=- fmap=- : f16[a0,a1] post vector
  %1 = cast %0 : f32[a0,a1] post vector
  %2 = square %1 : f32[a0,a1] post vector
  %3 = cast %2 : f16[a0,a1] post vector
  save o0 = %3 omap=a0,-
"""


@pytest.mark.parametrize(
  ("row", "order"), [(300, [2, 4, 8, 16, 1]), (1024, [4, 8, 16, 2, 1]), (4096, [16, 8, 4])]
)
def test_few_elements_of_a_thread_come_first(row, order):
  """8 or fewer, then as few warps as that takes."""
  graph = parse_ugraph(ROW)
  tensors = {t.name: t for t in graph.tensors}
  found = solve(graph.kernels[0], tensors, {"a0": 64, "a1": row}, H200, keep=20)
  assert [p.warps for _, p in found] == order
  assert len({c.time_us for c, _ in found}) == 1


def test_the_first_ones_are_near_the_fastest_that_a_gpu_timed():
  """By kernel and tile; one warp first, whatever the row, is further off."""
  kernels = defaultdict(dict)
  for seed, nodes, kernel, row, tile, warps, us in json.loads(RECORD.read_text())["rows"]:
    own = kernels[seed, nodes, kernel, row, tuple(tile)]
    own[warps] = min(us, own.get(warps, us))
  kernels = {key: own for key, own in kernels.items() if len(own) >= 3}
  first, fewest = [], []
  for (_, _, _, row, tile), own in kernels.items():
    crowded = {w: max(0, ceil(row * prod(tile) / (32 * w)) - FEW_PER_THREAD) for w in own}
    at = min(own, key=lambda w, crowded=crowded: (crowded[w], w))
    first.append(log(own[at] / min(own.values())))
    fewest.append(log(own[min(own)] / min(own.values())))
  assert len(kernels) >= 17
  assert exp(mean(first)) < 1.06 and exp(max(first)) < 1.25
  assert exp(mean(fewest)) > 1.09
