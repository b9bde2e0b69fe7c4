"""Axes whose sizes only a launch knows: one text, compiled once, is right for every size."""

import zlib

import numpy as np
import pytest

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.emulator import EmulationError, compile_kernels
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import parse_ugraph
from mirage_onnx.target import H200
from tests.support.block_graphs import numbers as p

#: graph, the runtime axes, extents of the others, numbers
CASES = [
  ("plain", "a0", {"a1": 64, "a2": 24}, p(16, 8)),
  ("plain", "a0", {"a1": 40, "a2": 17}, p(16, 16, c=2)),
  ("plain", "a2", {"a0": 3, "a1": 72}, p(16, 8)),
  ("plain", "a0 a2", {"a1": 33}, p(16, 12, w=1)),
  ("scaled", "a0", {"a1": 200, "a2": 40}, p(32, 8, c=4)),
  ("scaled:bf16", "a0", {"a1": 64, "a2": 24}, p(16, 32, s=1)),
  ("pair", "a0", {"a1": 72, "a2": 24}, p(16, 8)),
  ("small_third", "a0", {"a1": 72, "a2": 24, "a3": 10}, p(16, 8, c=2)),
  ("over_columns", "a0", {"a1": 64, "a2": 24}, p(8)),
  ("batch", "a3", {"a0": 3, "a1": 64, "a2": 24}, p(16, 8, 1)),
  ("batch", "a0", {"a1": 40, "a2": 24, "a3": 2}, p(16, 8, 1)),
  ("batch", "a0 a3", {"a1": 64, "a2": 24}, p(16, 8, 1, c=2)),
  ("depth_first", "a0", {"a1": 37, "a2": 20}, p(16, 8)),
  ("depth_first", "a2", {"a0": 9, "a1": 40}, p(16, 8)),  # this and the next are tiled kernels
  ("plain", "a0 a1", {"a2": 24}, p(16, 8)),
  ("rows", "a0", {"a1": 520}, p(1, w=2)),
  ("rows_mixed", "a0", {"a1": 48, "a2": 3}, p(1, 1, w=1)),
  ("rows_mixed", "a2", {"a0": 3, "a1": 50}, p(1, 1, w=1)),
  ("rows_mixed", "a0 a2", {"a1": 48}, p(1, 1, w=1)),
]
IDS = [f"{n}-{axes}-{q.to_text()}".replace(" ", "-") for n, axes, _, q in CASES]
SIZES = (1, 2, 7, 8, 9, 16, 17, 100)


def emitted(graphs, case, assumed):
  name, axes, extents, params = CASES[case]
  runtime = frozenset(axes.split())
  every = {**extents, **dict.fromkeys(runtime, assumed)}
  graph = graphs[name]
  return emit_kernel(graph, graph.kernels[0], params, every, H200, runtime)


@pytest.fixture(scope="module")
def module(graphs):
  return compile_kernels([emitted(graphs, i, 8) for i in range(len(CASES))])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", range(len(CASES)), ids=IDS)
def test_right_at_every_size(graphs, module, case, size):
  name, axes, extents, _ = CASES[case]
  graph, sizes = graphs[name], dict(zip(axes.split(), (size, 3), strict=False))
  every = {**extents, **sizes}
  tensors = graphs.inputs(graph, every, np.random.default_rng(zlib.crc32(IDS[case].encode())))
  expected = graphs.expected(graph, every, tensors)
  module.run(tensors, [case], order=("ascending", "descending")[size % 2], sizes=sizes)
  graphs.check(graph, tensors, expected)


@pytest.mark.parametrize("case", range(len(CASES)), ids=IDS)
def test_the_text_does_not_know_what_the_search_assumed(graphs, case):
  source = emitted(graphs, case, 8)
  assert source == emitted(graphs, case, 12347)
  assert source.sizes == tuple(sorted(CASES[case][1].split()))
  for axis in source.sizes:
    assert f"const int n_{axis}" in source.text


def test_a_launch_without_rows_writes_nothing(graphs, module):
  graph, sizes = graphs["plain"], {"a0": 0, "a1": 64, "a2": 24}
  tensors = graphs.inputs(graph, sizes, np.random.default_rng(0))
  assert module.kernels[0].grid_at(sizes)[0] == 0
  module.run(tensors, [0], sizes=sizes)


def test_a_launch_names_every_size(graphs, module):
  tensors = graphs.inputs(graphs["plain"], {"a0": 2, "a1": 64, "a2": 24}, np.random.default_rng(0))
  with pytest.raises(EmulationError, match="no size of a0"):
    module.run(tensors, [0])


def test_rows_fill_the_dimension_that_has_room(graphs):
  """70000 rows are more blocks than y or z may have."""
  for case, axes in ((-4, ("a0",)), (-1, ("a0", "a2"))):
    grid = emitted(graphs, case, 8).grid_at(dict.fromkeys(axes, 70000))
    assert grid == (70000 ** len(axes), 1, 1)


def test_far_elements_have_offsets_of_64_bits(graphs):
  for case in range(len(CASES)):
    for line in emitted(graphs, case, 8).text.splitlines():
      factors = [t for t in ("first_a0 *", "(a0) *", "n_a0 - 1) *") if t in line]
      assert not factors or "long long" in line or "block_" in line, line


@pytest.mark.parametrize(
  ("name", "axes", "old", "new", "words"),
  [
    ("rows", "a1", "", "", "a1, whose size is known only at run time, is not in the grid"),
    ("rows", "a0", "save o1 = %8 omap=a0", "save o1 = %4 omap=-", "does not vary over a0"),
  ],
)
def test_refusal(graphs, name, axes, old, new, words):
  text = graphs.text(name)
  if "omap=-" in new:
    text = text.replace("tensor o1 f32[a0]", "tensor o1 f32[]")
  assert old in text
  graph = parse_ugraph(text.replace(old, new) if old else text)
  params = p(*(1 if name == "rows" else 16 for _ in graph.kernels[0].grid))
  sizes = {"a0": 8, "a1": 64, "a2": 32}
  with pytest.raises(RejectionError) as caught:
    emit_kernel(graph, graph.kernels[0], params, sizes, H200, frozenset(axes.split()))
  assert caught.value.rejection.code == "DYNAMIC_DIM"
  assert words in caught.value.rejection.reason
