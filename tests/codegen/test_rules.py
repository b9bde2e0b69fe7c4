"""Each rule refuses what it names, and nothing that the generator writes."""

from pathlib import Path

import pytest
from golden_texts import texts_of

import mirage_onnx.codegen.emit as emit_module
from mirage_onnx.codegen import emit_kernel
from mirage_onnx.codegen.rules import COLLECTIVES, broken_rules
from mirage_onnx.compiler.compile import DEVICE_HEADERS
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import KernelParams
from mirage_onnx.target import H200

#: Statements, by what is wrong with them or why they are right.
WRONG, RIGHT = texts_of("rules/wrong"), texts_of("rules/right")


@pytest.mark.parametrize("name", WRONG)
def test_refuses(name):
  assert broken_rules(WRONG[name])


@pytest.mark.parametrize("name", RIGHT)
def test_accepts(name):
  assert not broken_rules(RIGHT[name])


def test_violation_says_where():
  (found,) = broken_rules("const int a = 1;\n\n  asm();  // x\n")
  assert str(found) == "line 3 `asm();`: PTX is written in the ptx headers only"


def test_an_emitted_kernel_that_breaks_a_rule_is_refused(graphs, monkeypatch):
  graph, params = graphs["rows"], KernelParams((1,), warps=4)
  extents = {"a0": 8, "a1": 1000, "a2": 4, "a3": 4}
  good = emit_kernel(graph, graph.kernels[0], params, extents, H200)
  assert not broken_rules(good.text)
  broken = emit_module.KernelSource(
    good.name, good.text.replace("ptx::lane()", "threadIdx.x"), good.grid, good.block,
    good.cluster, good.smem_bytes, good.args, good.pdl,
  )  # fmt: skip
  monkeypatch.setattr(emit_module, "text_of", lambda *_: broken)
  with pytest.raises(RejectionError, match="indices come from ptx accessors") as caught:
    emit_kernel(graph, graph.kernels[0], params, extents, H200)
  assert caught.value.rejection.code == "EMIT_RULE"


def test_collectives_exist_in_the_device_headers():
  text = "".join(p.read_text() for p in Path(DEVICE_HEADERS).glob("*.cuh"))
  missing = [c for c in COLLECTIVES if f" {c}(" not in text]
  assert not missing
