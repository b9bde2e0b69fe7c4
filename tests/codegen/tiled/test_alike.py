"""Kernels that differ in their tensors only, in one launch: right in the emulator, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from mirage_onnx.codegen.tiled.alike import alike
from mirage_onnx.compiler.candidates import emit_candidate
from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.emulator import compile_kernels
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import Candidate, KernelParams, parse_ugraph
from mirage_onnx.target import H100

TENSORS = """ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f16[a2,a1] weight
tensor i2 f16[a3,a1] weight
tensor i3 f16[a4,a1] weight
tensor i4 f16[a2] weight
tensor i5 f16[a3] weight
tensor i6 f16[a4] weight
tensor o0 f16[a0,a2] output
tensor o1 f16[a0,a3] output
tensor o2 f16[a0,a4] output
"""
KERNEL = """kernel k{n} grid={c},a0 cluster=- loop=a1
  %0 = load i0 imap=-,a0 cmap=- fmap=a1 : f16[a0,a1] loop shared
  %1 = load {w} imap={c},- cmap=- fmap=a1 : f16[{c},a1] loop shared
  %2 = matmul[a1] %0 %1 : f32[a0,{c}] loop C_frag
  %3 = acc_sum %2 : f32[a0,{c}] post C_frag
  %4 = load {b} imap={c},- cmap=- fmap=- : f16[{c}] post column
  %5 = cast %4 : f32[{c}] post column
  %6 = add %3 %5 : f32[a0,{c}] post C_frag
  %7 = cast %6 : f16[a0,{c}] post C_frag
  save {o} = %7 omap={c},a0
"""
COLUMNS = ("a2", "a3", "a4")
TEXT = TENSORS + "".join(
  KERNEL.format(n=n, c=c, w=f"i{n + 1}", b=f"i{n + 4}", o=f"o{n}") for n, c in enumerate(COLUMNS)
)
GRAPH = parse_ugraph(TEXT)
SIZES = {"a0": 197, "a1": 200, **dict.fromkeys(COLUMNS, 136)}
BY_WGMMA = KernelParams((64, 64), 1, 64, 4, 3, "wgmma")
FEW = replace(H100, name="few", multiprocessors=2)


def emitted(params, graph=GRAPH, sizes=SIZES, target=H100):
  numbers = (params, *(replace(params, beside=True) for _ in graph.kernels[1:]))
  return emit_candidate(Candidate(graph, numbers), sizes, target, "k")


def right(sources, sizes=SIZES):
  rng = np.random.default_rng(5)
  given = {
    t.name: rng.standard_normal([sizes[a] for a in t.axes]).astype(np.float16)
    for t in GRAPH.tensors if t.role != "output"
  }  # fmt: skip
  found = {f"o{n}": np.full((sizes["a0"], sizes[c]), np.nan, np.float16) for n, c in enumerate(COLUMNS)}
  compile_kernels(sources).run({**given, **found})
  for n in range(3):
    want = given["i0"].astype(float) @ given[f"i{n + 1}"].astype(float).T + given[f"i{n + 4}"]
    assert np.abs(found[f"o{n}"] - want).max() < 6e-3 * np.abs(want).max()


@pytest.mark.parametrize("target", [H100, FEW])
@pytest.mark.parametrize("params", [BY_WGMMA, KernelParams((64, 64), 1, 64, 4, 3)])
def test_one_launch_is_right(params, target):
  """Blocks that have one tile each, and blocks that stand for tiles of several kernels."""
  (source,) = emitted(params, target=target)
  stands = target is FEW and params is BY_WGMMA
  assert ("tile += " in source.text) == stands
  assert stands or source.grid == (3 * 3 * 4, 1, 1)
  assert source.args == ("i0", "i1", "i2", "i3", "i4", "i5", "i6", "o0", "o1", "o2")
  right([source])


def test_those_in_a_launch_of_their_own():
  numbers = (BY_WGMMA, replace(BY_WGMMA, beside=True), BY_WGMMA)
  sources = emit_candidate(Candidate(GRAPH, numbers), SIZES, H100, "k")
  assert [s.name for s in sources] == ["k_k0", "k_k2"]
  right(sources)


def test_compiles():
  large = {"a0": 4096, "a1": 768, **dict.fromkeys(COLUMNS, 768)}
  (source,) = emitted(KernelParams((128, 128), 1, 64, 8, 4, "wgmma"), sizes=large)
  assert "tile += " in source.text and "part == 0 ? g_i1_0 : part == 1 ? g_i2_1 : g_i3_2" in source.text
  cubin = compile_cubin(source.text, H100, name=source.name)
  assert cubin.spill_bytes == 0 and "C75" not in cubin.log


def test_numbers_as_text():
  params = replace(BY_WGMMA, beside=True)
  assert params.to_text().endswith(" instruction=wgmma beside=1")
  assert KernelParams.from_text(params.to_text()) == params


UNLIKE = {
  "another function": TEXT.replace("%6 = add %3 %5 : f32[a0,a4]", "%6 = mul %3 %5 : f32[a0,a4]"),
  "another role": TEXT.replace("i6 f16[a4] weight", "i6 f16[a4] input"),
  "another type": TEXT.replace("o2 f16[a0,a4]", "o2 f32[a0,a4]"),
  "what another one makes": TEXT.replace("load i5 imap=a3,-", "load o0 imap=a3,a0"),
}


@pytest.mark.parametrize("text", UNLIKE.values(), ids=UNLIKE)
def test_unlike_ones(text):
  graph = parse_ugraph(text)
  assert any(alike(graph, graph.kernels[0], k, SIZES) is None for k in graph.kernels[1:])


def test_other_sizes_are_not_alike():
  sizes = {**SIZES, "a4": 128}
  found = alike(GRAPH, GRAPH.kernels[0], GRAPH.kernels[1], sizes)
  assert found == {"i0": "i0", "i1": "i2", "i4": "i5", "o0": "o1"}
  assert alike(GRAPH, GRAPH.kernels[0], GRAPH.kernels[2], sizes) is None
  with pytest.raises(RejectionError, match="differ in more than their tensors"):
    emitted(BY_WGMMA, sizes=sizes)


def test_one_output_of_two_kernels():
  """Which of them writes last would be chance."""
  graph = parse_ugraph(TEXT.replace("save o1 ", "save o0 "))
  assert alike(graph, graph.kernels[0], graph.kernels[1], SIZES) is None


def test_other_numbers():
  numbers = (BY_WGMMA, replace(BY_WGMMA, stages=4, beside=True), BY_WGMMA)
  with pytest.raises(RejectionError, match="different numbers"):
    emit_candidate(Candidate(GRAPH, numbers), SIZES, H100, "k")


def test_ranks_are_no_part_of_it():
  graph = parse_ugraph(TEXT.replace("cluster=-", "cluster=a1").replace("cmap=- fmap=a1", "cmap=a1 fmap=a1"))
  with pytest.raises(RejectionError, match="has ranks"):
    emitted(replace(BY_WGMMA, cluster=2), graph)
