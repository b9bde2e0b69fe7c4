"""Contractions by wgmma of rows, and over depths, that only a launch counts."""

import re

import numpy as np
import pytest

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.emulator import compile_kernels
from mirage_onnx.ir import KernelParams, parse_ugraph
from mirage_onnx.target import H100
from tests.codegen.tiled.test_warpgroup import GATED, GELU, NORM, PLAIN, RESIDUAL, SPLIT


def p(columns, rows, *, c=1, w=8, s=4):
  return KernelParams((columns, rows), c, 64, w, s, "wgmma")


#: text, the axes that a launch counts (the loop's last), extents of the others, numbers
CASES = [
  (PLAIN, "a0", {"a1": 256, "a2": 256}, p(128, 128)),
  (PLAIN, "a0 a1", {"a2": 200}, p(64, 64, w=4, s=3)),
  (GELU, "a0", {"a1": 200, "a2": 256}, p(128, 128)),
  (RESIDUAL, "a0", {"a1": 192, "a2": 384}, p(192, 128)),
  (NORM, "a0 a1", {"a2": 256}, p(128, 128)),
  (GATED, "a0", {"a1": 456, "a2": 256}, p(64, 128)),
  (SPLIT, "a0 a1", {"a2": 256}, p(64, 128, c=2)),
]


def emitted(case, assumed=256):
  text, axes, extents, params = CASES[case]
  graph, runtime = parse_ugraph(re.sub(r"\bk0\b", f"c{case}k", text)), frozenset(axes.split())
  every = {**extents, **dict.fromkeys(runtime, assumed)}
  return graph, emit_kernel(graph, graph.kernels[0], params, every, H100, runtime)


@pytest.fixture(scope="module")
def module():
  return compile_kernels([emitted(i)[1] for i in range(len(CASES))])


@pytest.mark.parametrize("size", [1, 77, 128, 300])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_right_at_every_size(graphs, module, case, size):
  graph, source = emitted(case)
  assert "wgmma" in source.text and source == emitted(case, 12347)[1]
  *others, last = CASES[case][1].split()
  sizes = {**dict.fromkeys(others, 200), last: size}
  every = {**CASES[case][2], **sizes}
  tensors = graphs.inputs(graph, every, np.random.default_rng(size))
  expected = graphs.expected(graph, every, tensors)
  module.run(tensors, [case], sizes=sizes)
  graphs.check(graph, tensors, expected)


@pytest.mark.parametrize("case", [1, 4])
def test_its_machine_code_is_taken(case):
  """A vote into a uniform register had been read as a write into the sums of case 4."""
  source = emitted(case)[1]
  assert compile_cubin(source.text, H100, name=source.name).registers <= 255


def test_rows_are_saved_by_16_bytes():
  """Their length is known, how many they are is not; where only a launch knows it, they are not."""
  assert "ptx::st_v4" in emitted(0)[1].text
  graph = parse_ugraph(PLAIN)
  every = {"a0": 128, "a1": 256, "a2": 256}
  source = emit_kernel(graph, graph.kernels[0], p(128, 128), every, H100, frozenset({"a2"}))
  assert "ptx::st_v4" not in source.text
