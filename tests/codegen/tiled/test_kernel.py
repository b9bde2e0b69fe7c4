"""Whole kernels: a golden text, what it keeps to, and a reason for every refusal."""

import pytest
from tiled_kernels import ATTENTION, CENTRED, NORM_LINEAR, PARTS, Case, case, product, tiled_source

from mirage_onnx.codegen.rules import broken_rules
from mirage_onnx.codegen.source import Writer
from mirage_onnx.codegen.tiled.text import write_step
from mirage_onnx.codegen.tiled.values import ValueWriter
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import KernelParams
from mirage_onnx.lower.steps import Advance
from mirage_onnx.target import H200

SMALL = {"a0": 2, "a1": 64, "a2": 16, "a3": 8, "a4": 16}


def _emit(c, kernel=0):
  graph = c.graph
  return tiled_source(graph, graph.kernels[kernel], c.params[kernel], c.all_extents(), H200)


def test_text(golden):
  source = _emit(case(ATTENTION, 8, 1, cluster=2, loop_tile=16, warps=2, stages=2, **SMALL))
  assert source.text.partition('"numeric.cuh"\n')[2] == golden
  assert (source.grid, source.block, source.cluster) == ((2, 2, 1), 64, 2)
  assert source.args == ("i0", "i1", "i2", "o0")


def test_text_keeps_the_rules():
  parts = Case(PARTS, (KernelParams((8, 4)), KernelParams((2,))), {"a0": 5, "a1": 20, "a2": 9})
  sources = [_emit(case(NORM_LINEAR, 16, 8, a0=5, a1=33, a2=40)), _emit(parts), _emit(parts, 1)]
  assert [broken_rules(s.text) for s in sources] == [(), (), ()]


def test_a_step_without_a_text():
  c = case(CENTRED, 2, a0=4, a1=8)
  plan = c.plan()
  with pytest.raises(TypeError, match="Advance"):
    write_step(ValueWriter(c.graph, plan.lowering, plan.pieces, Writer()), Advance(-1))


def _wide(*tile, **numbers):
  return case(product(), *tile, **{"loop_tile": 64, "a0": 512, "a1": 4096, "a2": 512, **numbers})


REFUSED = {
  "loop_tile": (_wide(16, 16, loop_tile=0), "LAYOUT", "steps of 0 elements"),
  "grid": (_wide(16), "LAYOUT", "1 tile sizes for a grid of 2 axes"),
  "registers": (_wide(256, 256, warps=1), "LAYOUT", "registers of every thread"),
  "type": (
    case(CENTRED.replace("%0 = load i0 imap=a0 cmap=- fmap=- : f32",
                         "%0 = load i0 imap=a0 cmap=- fmap=- : f16"), 2, a0=4, a1=8),
    "EMIT_UNSUPPORTED", "i0 is f32 and loaded as f16",
  ),
  "memory": (
    _wide(128, 128, warps=8, loop_tile=512, stages=2), "SMEM", "bytes of shared memory"
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
  c, code, reason = REFUSED[name]
  with pytest.raises(RejectionError, match=reason) as caught:
    _emit(c)
  assert caught.value.rejection.code == code


def test_more_stages_than_steps():
  """A ring has no more tiles than there are iterations."""
  sizes = {s: _emit(_wide(16, 16, a1=128, stages=s)).smem_bytes for s in (1, 2, 4)}
  assert sizes[1] < sizes[2] == sizes[4]
