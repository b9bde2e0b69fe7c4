"""The text: goldens, the rules that it keeps, and a reason for every refusal."""

import re
from pathlib import Path

import pytest
from golden_texts import texts_of

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.codegen.emit import text_of
from mirage_onnx.compiler.compile import DEVICE_HEADERS
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import KernelParams, parse_ugraph
from mirage_onnx.lower.choice import streams
from mirage_onnx.lower.stream_graph import stream_graph
from mirage_onnx.lower.tiled_graph import tiled_graph
from mirage_onnx.target import H200

SIZES = {"a0": 8, "a1": 4096, "a2": 4096, "a3": 16}


def emit(graph, params, **extents):
  return emit_kernel(graph, graph.kernels[0], params, {**SIZES, **extents}, H200)


def test_streaming_kernel_text(graphs, golden):
  source = emit(graphs["scaled"], KernelParams((16, 8), warps=8, stages=8, loop_tile=256))
  assert source.text == golden
  assert (source.grid, source.block, source.cluster) == ((256, 1, 1), 256, 1)
  assert source.args == ("i0", "i1", "i2", "i3", "o0")
  assert source.smem_bytes == 4 * (8 * 8 + 8 * 160)


def test_large_kernels_are_not_launched_early(graphs):
  """Where they would be placed around the blocks of the kernel in front of them."""
  small = KernelParams((16, 8), warps=8, stages=8, loop_tile=256)
  for columns, early in ((12000, True), (12288, False)):  # of 8 KiB
    source = emit(graphs["scaled"], small, a2=columns)
    assert source.pdl == early
    assert "grid_wait" in source.text and "grid_trigger" in source.text


def test_cluster_kernel_text(graphs, golden):
  params = KernelParams((32, 8), cluster=4, warps=2, stages=4, loop_tile=64)
  source = emit(graphs["small_third"], params, a0=11, a1=1000)
  assert source.text == golden
  assert (source.grid, source.block, source.cluster) == ((512, 2, 1), 64, 4)


def test_row_kernel_text(graphs, golden):
  source = emit(graphs["rows"], KernelParams((1,), warps=4), a1=1000)
  assert source.text == golden
  assert source.grid == (8, 1, 1)
  assert source.smem_bytes == 4 * 4 * 3


def test_only_ptx_cuh_holds_asm_and_builtins(graphs):
  builtins = re.compile(r"\basm\b|threadIdx|blockIdx|__\w+\(|__shared__|__device__|__global__")
  headers = [p for p in Path(DEVICE_HEADERS).glob("*.cuh") if not p.name.startswith("ptx")]
  texts = {p.name: p.read_text() for p in headers}
  texts["kernel"] = emit(graphs["small_third"], KernelParams((32, 8), warps=2, stages=4)).text
  for name, text in texts.items():
    code = re.sub(r"//.*", "", text)
    assert not builtins.findall(code), name


def test_text_does_not_depend_on_the_run(graphs):
  params = KernelParams((32, 8), cluster=2, warps=2, stages=4)
  assert emit(graphs["layouts"], params) == emit(graphs["layouts"], params)


def test_odd_names_become_identifiers():
  text = """ugraph 1
tensor model.x/0 f16[batch,int] input
tensor class f16[batch,int] output
kernel k0 grid=batch cluster=- loop=-
  %0 = load model.x/0 imap=batch cmap=- fmap=- : f16[batch,int] post vector
  save class = %0 omap=batch
"""
  graph = parse_ugraph(text)
  source = emit_kernel(graph, graph.kernels[0], KernelParams((1,), warps=1), {"batch": 2, "int": 64}, H200)
  assert source.args == ("model.x/0", "class")
  assert "g_model_x_0 + first_x_batch * 64" in source.text


def test_few_stages_for_few_steps(graphs):
  """A ring no longer than a warp's share: 16 steps of 4 warps are 4 stages, not 8."""
  source = emit(graphs["plain"], KernelParams((16, 8), warps=4, stages=8), a1=512)
  assert "1 rounds of 4 stages" in source.text


# ---- refusals

NUMBERS = KernelParams((16, 8), warps=2, stages=2)


#: what, graph, text to replace and by what, numbers, code, words of the reason
REFUSALS = [row.split(" | ") for row in texts_of("rules")["emit"].splitlines()]


@pytest.mark.parametrize("refusal", REFUSALS, ids=[r[0] for r in REFUSALS])
def test_refusal(graphs, refusal):
  _, name, old, new, numbers, code, words = refusal
  text = graphs.text(name)
  assert not old or old in text
  graph = parse_ugraph(text.replace(old, new) if old else text)
  kernel = graph.kernels[0]
  lower = stream_graph if streams(kernel) else tiled_graph
  with pytest.raises(RejectionError) as info:
    text_of(lower(graph, kernel, KernelParams.from_text(numbers), SIZES, H200), H200, kernel)
  assert info.value.rejection.code == code, info.value.rejection
  assert words in info.value.rejection.reason


def test_refusal_of_too_many_blocks(graphs):
  graph = graphs["rows_mixed"]
  with pytest.raises(RejectionError, match="70000 blocks in a dimension"):
    emit(graph, KernelParams((1, 1), warps=1), a0=2, a1=64, a2=70000)


def test_refusal_of_a_loop_that_no_output_needs(graphs):
  graph = parse_ugraph(graphs.text("scaled").replace("save o0 = %20", "save o0 = %18"))
  with pytest.raises(RejectionError, match="no output of k0 needs its loop"):
    stream_graph(graph, graph.kernels[0], NUMBERS, SIZES, H200)


def test_refusal_of_large_tensors(graphs):
  graph, sizes = graphs["plain"], {**SIZES, "a1": 2**16, "a2": 2**15}
  with pytest.raises(RejectionError, match="2\\^31 elements"):
    stream_graph(graph, graph.kernels[0], NUMBERS, sizes, H200)
