"""Kernels that read their inputs beside the kernel before them, and wait behind their loop."""

from dataclasses import replace

import numpy as np
import pytest

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.codegen.emit import MOST_EARLY_BYTES
from mirage_onnx.emulator import EmulationError, compile_kernels
from mirage_onnx.ir import KernelParams
from mirage_onnx.ir.text import parse_ugraph
from mirage_onnx.lower.read_ahead import is_overtaken, reads_ahead
from mirage_onnx.lower.sizes import LaunchSizes
from mirage_onnx.lower.tensor_view import touched_bytes
from mirage_onnx.target import H200

#: x W + (x A) B: the second kernel needs what the first one wrote only behind its loop.
LOW_RANK = """ugraph 1
tensor i0 f16[a2,a1] input
tensor i1 f16[a0,a1] weight
tensor i2 f16[a3,a1] weight
tensor i3 f16[a0,a3] weight
tensor t0 f16[a2,a3] temp
tensor o0 f16[a2,a0] output
kernel k0 grid=a3 cluster=a1 loop=a1
  %0 = load i0 imap=- cmap=a1 fmap=a1 : f16[a2,a1] loop B_frag
  %1 = load i2 imap=a3 cmap=a1 fmap=a1 : f16[a3,a1] loop A_frag
  %2 = matmul[a1] %1 %0 : f32[a2,a3] loop C_frag
  %3 = acc_sum %2 : f32[a2,a3] post C_frag
  %4 = red_sum %3 : f32[a2,a3] post shared
  %5 = cast %4 : f16[a2,a3] post element
  save t0 = %5 omap=a3
kernel k1 grid=a0 cluster=a1 loop=a1
  %0 = load i1 imap=a0 cmap=a1 fmap=a1 : f16[a0,a1] loop A_frag
  %1 = load i0 imap=- cmap=a1 fmap=a1 : f16[a2,a1] loop B_frag
  %2 = matmul[a1] %0 %1 : f32[a0,a2] loop C_frag
  %3 = acc_sum %2 : f32[a0,a2] post C_frag
  %4 = red_sum %3 : f32[a0,a2] post shared
  %5 = load i3 imap=a0 cmap=- fmap=- : f16[a0,a3] post element
  %6 = load t0 imap=- cmap=- fmap=- : f16[a2,a3] post element
  %7 = matmul[a3] %5 %6 : f32[a0,a2] post element
  %8 = add %4 %7 : f32[a0,a2] post element
  %9 = cast %8 : f16[a0,a2] post element
  save o0 = %9 omap=a0
"""
#: Two results that do not need each other, the second by a row kernel.
BESIDE = """ugraph 1
tensor i0 f16[a2,a1] input
tensor i1 f16[a0,a1] weight
tensor o0 f16[a2,a0] output
tensor o1 f16[a2] output
kernel k0 grid=a0 cluster=a1 loop=a1
  %0 = load i1 imap=a0 cmap=a1 fmap=a1 : f16[a0,a1] loop A_frag
  %1 = load i0 imap=- cmap=a1 fmap=a1 : f16[a2,a1] loop B_frag
  %2 = matmul[a1] %0 %1 : f32[a0,a2] loop C_frag
  %3 = acc_sum %2 : f32[a0,a2] post C_frag
  %4 = red_sum %3 : f32[a0,a2] post shared
  %5 = cast %4 : f16[a0,a2] post element
  save o0 = %5 omap=a0
kernel k1 grid=a2 cluster=- loop=-
  %0 = load i0 imap=a2 cmap=- fmap=- : f16[a2,a1] post vector
  %1 = sum[a1] %0 : f32[a2] post uniform
  %2 = cast %1 : f16[a2] post uniform
  save o1 = %2 omap=a2
"""
EXTENTS = {"a0": 40, "a1": 264, "a2": 5, "a3": 16}
STREAM = KernelParams((16,), 2, 64, 2, 2)
GRAPHS = {"low rank": (LOW_RANK, (STREAM, STREAM)), "beside": (BESIDE, (STREAM, KernelParams((1,), warps=1)))}


def emitted(name, change=lambda k: k):
  text, params = GRAPHS[name]
  graph = parse_ugraph(text)
  kernels = [change(replace(k, name=f"own_{k.name}")) for k in graph.kernels]
  return graph, [emit_kernel(graph, k, p, EXTENTS, H200) for k, p in zip(kernels, params, strict=True)]


def arrays(graph):
  rng = np.random.default_rng(0)
  found = {}
  for t in graph.tensors:
    shape = [EXTENTS[a] for a in t.axes]
    drawn = rng.standard_normal(shape) if t.role in ("input", "weight") else np.full(shape, np.nan)
    found[t.name] = drawn.astype(t.dtype.numpy)
  return found


@pytest.mark.parametrize("name", GRAPHS)
def test_the_second_kernel_reads_inputs_before_it_waits(name):
  graph, (first, second) = emitted(name)
  assert is_overtaken(graph, graph.kernels[0], EXTENTS) and reads_ahead(graph, graph.kernels[1], EXTENTS)
  assert not reads_ahead(graph, graph.kernels[0], EXTENTS)
  # The first lets it start when all before has ended; nothing but a load is before the second's wait.
  assert first.text.index("grid_wait") < first.text.index("grid_trigger")
  head, tail = second.text.split("ptx::grid_wait();")
  assert "g_i0" in head.split("{", 1)[1] and "store" not in head.split("{", 1)[1]
  assert "store" in tail and "g_t0" not in head.split("{", 1)[1]


def test_what_reads_beside_the_first_starts_early_however_large_it_is():
  text, params = GRAPHS["low rank"]
  graph = parse_ugraph(text)
  sizes = {**EXTENTS, "a0": 16384, "a1": 4096}
  assert touched_bytes(graph, graph.kernels[1], sizes) > MOST_EARLY_BYTES
  assert emit_kernel(graph, graph.kernels[1], params[1], sizes, H200).pdl


@pytest.mark.parametrize("name", GRAPHS)
def test_it_computes_the_same_beside_whoever_writes_its_inputs(name):
  graph, sources = emitted(name)
  at = arrays(graph)
  compile_kernels(sources).run(at, written_before=["i0"], uninitialised=["t0"] if "t0" in at else ())
  x = at["i0"].astype(np.float64)
  want = {"o0": x @ at["i1"].astype(np.float64).T}
  if name == "low rank":
    down = (x @ at["i2"].astype(np.float64).T).astype(np.float16).astype(np.float64)
    want["o0"] += down @ at["i3"].astype(np.float64).T
  else:
    want["o1"] = x.sum(1)
  for output, exact in want.items():
    assert np.abs(at[output] - exact).max() < 2e-3 * np.abs(exact).max()


def test_a_predecessor_that_triggers_at_once_is_noticed():
  graph, (first, second) = emitted("low rank")
  both = "ptx::grid_wait();\n  ptx::grid_trigger();"
  assert both in first.text
  early = replace(first, text=first.text.replace(both, "ptx::grid_trigger();\n  ptx::grid_wait();"))
  with pytest.raises(EmulationError, match="read of tensor 'i0' before grid_wait"):
    compile_kernels([early, second]).run(arrays(graph), written_before=["i0"])


def test_what_a_loop_needs_of_another_kernel_is_waited_for():
  head, tail = LOW_RANK.split("kernel k1")
  graph = parse_ugraph(
    head.replace("[a2,a3] temp", "[a2,a1] temp") + "kernel k1" + tail.replace("i0 imap", "t0 imap")
  )
  assert not reads_ahead(graph, graph.kernels[1], EXTENTS)
  assert not is_overtaken(graph, graph.kernels[0], EXTENTS)


def test_kernels_of_sizes_that_only_a_run_knows_wait_first():
  graph = parse_ugraph(LOW_RANK)
  sizes = LaunchSizes(EXTENTS, frozenset({"a2"}))
  assert not any(reads_ahead(graph, k, sizes) for k in graph.kernels)
