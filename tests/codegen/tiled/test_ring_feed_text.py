"""Kernels whose last warps only copy: right at all sizes, and what their text has and has not."""

import re
from dataclasses import replace

import pytest
from banded import ADDED, CHOSEN, THERE, banded, banded_text
from tiled_kernels import ATTENTION, Case, near

from mirage_onnx.codegen.emit import emit_kernel
from mirage_onnx.codegen.rules import broken_rules
from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.ir import KernelParams
from mirage_onnx.target import H100

CAUSAL = "..0 else 0 sharp"


def fed(case):
  return replace(case, params=tuple(replace(p, teams=1) for p in case.params))


def plain(rows, keys, stages, **sizes):
  extents = {"a0": 2, "a2": 64, "a4": 64, **sizes}
  return fed(Case(ATTENTION, (KernelParams((rows, 1), 1, keys, rows // 16, stages, "wgmma"),), extents))


def masked(band, rows, stages, how, kind="bool", **sizes):
  return fed(banded(banded_text(band, how, kind=kind), rows, 64, stages, **sizes))


#: One warpgroup, two that take turns, three; products that wait and one that is late; tiles that end early.
CASES = {
  "two": plain(128, 64, 2, a1=392, a3=330),
  "two, late": plain(128, 64, 3, a1=392, a3=330),
  "two, late, wide": plain(128, 128, 3, a1=520, a3=197),
  "one, late": plain(64, 64, 3, a1=328, a3=77),
  "three": plain(192, 64, 2, a1=264, a3=333),
  "fewer steps than stages": plain(128, 64, 4, a1=136, a3=128),
  "masked": masked("..0 else -65504 sharp", 128, 3, ADDED, "f16", a1=392, a3=330),
  "masked, rows that see nothing": masked("..-80 else -65504 sharp", 128, 3, ADDED, "f16", a1=392, a3=330),
  "masked by data": masked("..0 else 0", 128, 3, ADDED, "f16", a1=392, a3=330),
  "truth values": masked(CAUSAL.removesuffix(" sharp"), 128, 3, CHOSEN, a1=392, a3=330),
  "keys of a run": masked(CAUSAL, 128, 2, THERE, a1=272, a3=272),
  "window": masked("-70..0 else -65504 sharp", 128, 3, ADDED, "f16", a1=392, a3=330),
}  # fmt: skip


def source(case):
  graph = case.graph
  return emit_kernel(graph, graph.kernels[0], case.params[0], case.all_extents(), H100)


def test_right_in_the_emulator():
  near(CASES.values(), bound=6e-3)


@pytest.mark.parametrize("name", CASES)
def test_text(name):
  found = source(CASES[name])
  text, warps = found.text, CASES[name].params[0].warps
  assert broken_rules(text) == ()
  assert found.block == 32 * (warps + 4) and f"PTX_LONE_KERNEL({found.block})" in text
  copying, _, computing = text.partition("ptx::registers_take<")
  assert "ptx::cp_async" in copying and "ptx::cp_async" not in computing
  assert "sync_block" not in computing and copying.count("ptx::sync_block();") == 1
  assert ("bar_sync" in text) == (warps == 8)
  assert ("wgmma_beside" in text) == ("unsigned late[" in text) == (CASES[name].params[0].stages > 2)
  assert text.count("for (int step = ") == (3 if "sharp" in text and "window" not in name else 2)


@pytest.mark.parametrize("name", ["two", "two, late", "masked", "keys of a run"])
def test_it_compiles_with_the_registers_that_it_takes(name):
  found = source(CASES[name])
  cubin = compile_cubin(found.text, H100, name=found.name)
  taken = int(re.search(r"registers_take<(\d+)>", found.text)[1])
  left = int(re.search(r"registers_give<(\d+)>", found.text)[1])
  assert taken * (found.block - 128) + left * 128 <= cubin.registers * found.block <= H100.registers_per_sm
