"""What keeps its value in the memory of an input is neither read nor written."""

import re
from dataclasses import replace

import numpy as np
import pytest

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.emulator import compile_kernels
from mirage_onnx.ir import KernelParams, parse_ugraph
from mirage_onnx.lower.in_place import update_of
from mirage_onnx.target import H200

TEXT = """ugraph 1
tensor i0 i32[a0] weight
tensor i1 i32[] input
tensor i2 f16[a1] input
tensor i3 f16[a0,a1] input
tensor o0 f16[a0,a1] output
kernel k0 grid=a0 cluster=- loop=-
  %0 = load i0 imap=a0 cmap=- fmap=- : i32[a0] post uniform
  %1 = load i1 imap=- cmap=- fmap=- : i32[] post uniform
  %2 = cast %0 : f32[a0] post uniform
  %3 = cast %1 : f32[] post uniform
  %4 = equal %2 %3 : f32[a0] post uniform
  %5 = load i2 imap=- cmap=- fmap=- : f16[a1] post vector
  %6 = load i3 imap=a0 cmap=- fmap=- : f16[a0,a1] post vector
  %7 = cast %5 : f32[a1] post vector
  %8 = cast %6 : f32[a0,a1] post vector
  %9 = select %4 %7 %8 : f32[a0,a1] post vector
  %10 = cast %9 : f16[a0,a1] post vector
  save o0 = %10 omap=a0
"""
ROWS, WIDTH = 37, 64


def emitted(text=TEXT):
  graph = parse_ugraph(text)
  return emit_kernel(graph, graph.kernels[0], KernelParams((8,), warps=2), {"a0": ROWS, "a1": WIDTH}, H200)


@pytest.mark.parametrize("row", [0, 36, 99])
@pytest.mark.parametrize("shared", [True, False])
def test_one_row_is_new(row, shared):
  module = compile_kernels([emitted()])
  rng = np.random.default_rng(0)
  old = rng.standard_normal((ROWS, WIDTH)).astype(np.float16)
  made = old.copy() if shared else np.full_like(old, np.nan)
  tensors = {"i0": np.arange(ROWS, dtype=np.int32), "i1": np.array(row, np.int32),
             "i2": rng.standard_normal(WIDTH).astype(np.float16),
             "i3": made if shared else old, "o0": made}  # fmt: skip
  module.run(tensors, uninitialised=("o0",))
  want = old.copy()
  want[row : row + 1] = tensors["i2"]
  np.testing.assert_array_equal(made, want)


def test_addresses_may_be_equal():
  text = emitted().text
  assert re.search(r"short\* g_i3,", text) and re.search(r"short\* g_o0\)", text)
  assert "short* __restrict__ g_i2" in text
  assert "changes = exists && (v4[0] != 0.0f || g_o0 != g_i3);" in text


@pytest.mark.parametrize(
  ("old", "new"),
  [
    ("select %4 %7 %8", "select %4 %8 %7"),  # the old one is not what stays
    ("%10 = cast %9", "%10 = cast %8"),  # no choice
    ("tensor i3 f16[a0,a1] input", "tensor i3 f16[a0,a1] input in a0@1/40 a1"),  # another place
    ("equal %2 %3 : f32[a0] post uniform", "equal %2 %7 : f32[a0,a1] post vector"),  # not of rows
  ],
)
def test_what_is_no_update(old, new):
  graph = parse_ugraph(TEXT)
  assert update_of(graph, graph.kernels[0]) is not None
  graph = parse_ugraph(TEXT.replace(old, new))
  assert update_of(graph, graph.kernels[0]) is None


#: The same of a norm of what is new.
NORMED = TEXT.replace("select %4 %7 %8", "select %4 %13 %8").replace(
  "  %8 = cast %6",
  """\
  %11 = mul %7 %7 : f32[a1] post vector
  %12 = sum[a1] %11 : f32[] post uniform
  %13 = mul %7 %12 : f32[a1] post vector
  %8 = cast %6""",
)


def renumbered(text):
  """The text with its operations numbered in order."""
  names = re.findall(r"^  (%\d+) =", text, re.MULTILINE)
  return re.sub(r"%\d+", lambda m: f"%{names.index(m[0])}", text)


@pytest.mark.parametrize("row", [0, 2000, 4095, 5000])
@pytest.mark.parametrize(("text", "together"), [(TEXT, False), (renumbered(NORMED), True)])
def test_a_block_looks_at_many_rows(row, text, together):
  """In turns; where lanes reduce, those of a warp do so together."""
  rows, few = 40960, replace(H200, multiprocessors=2)
  graph = parse_ugraph(text.replace("i32[a0] weight", "i32[a0] weight places"))
  source = emit_kernel(graph, graph.kernels[0], KernelParams((8,), warps=2), {"a0": rows, "a1": WIDTH}, few)
  assert source.grid == (8, 1, 1) and "turn < 640" in source.text and "g_i0)" not in source.text
  assert ("ptx::any(changes)" in source.text) == together
  rng = np.random.default_rng(0)
  made = rng.standard_normal((rows, WIDTH)).astype(np.float16)
  want, new = made.copy(), rng.standard_normal(WIDTH).astype(np.float16)
  x = new.astype(np.float32)
  want[row : row + 1] = (x * (x * x).sum() if together else x).astype(np.float16)
  tensors = {"i0": np.arange(rows, dtype=np.int32), "i1": np.array(row, np.int32), "i2": new, "i3": made}
  tensors["o0"] = made
  compile_kernels([source]).run(tensors, uninitialised=("o0",))
  np.testing.assert_allclose(made.astype(float), want.astype(float), rtol=2e-3)
  untouched = np.arange(rows) != row
  np.testing.assert_array_equal(made[untouched], want[untouched])


@pytest.mark.parametrize("text", [TEXT, renumbered(NORMED)])
def test_the_last_block_has_fewer_tiles_than_turns(text):
  """100 whole tiles, 8 a block: the last block's second half is behind the end of all tensors."""
  few = replace(H200, multiprocessors=3)
  graph = parse_ugraph(text)
  source = emit_kernel(graph, graph.kernels[0], KernelParams((8,), warps=2), {"a0": 800, "a1": WIDTH}, few)
  assert source.grid == (13, 1, 1) and "turn < 8" in source.text
  rng = np.random.default_rng(0)
  made, new = (rng.standard_normal(shape).astype(np.float16) for shape in ((800, WIDTH), (WIDTH,)))
  old = made.copy()
  tensors = {"i0": np.arange(800, dtype=np.int32), "i1": np.array(799, np.int32), "i2": new, "i3": made}
  compile_kernels([source]).run({**tensors, "o0": made}, uninitialised=("o0",))
  np.testing.assert_array_equal(made[:799], old[:799])
  assert (made[799] != old[799]).any()
