"""Kernels through NVRTC for sm_90a: they compile, fit the registers, and refusals have reasons."""

import subprocess
import sys

import pytest

from mirage_onnx.codegen import KernelSource, emit_kernel
from mirage_onnx.compiler import compile as compiler
from mirage_onnx.compiler import compile_cubin, compile_many
from mirage_onnx.errors import MirageError, Rejection, RejectionError
from mirage_onnx.ir import KernelParams, parse_ugraph
from mirage_onnx.target import H200

#: graph, a0 a1 a2 a3, numbers, most registers
FAMILY = [
  ("scaled", (8, 4096, 4096, 0), KernelParams((16, 8), warps=8, stages=8), 128),
  ("scaled", (1, 4096, 4096, 0), KernelParams((16, 1), warps=4, stages=8), 128),
  ("scaled", (16, 4096, 4096, 0), KernelParams((16, 16), warps=8, stages=4), 128),
  ("scaled", (16, 4096, 4096, 0), KernelParams((32, 16), cluster=2, warps=8, stages=4), 168),
  # one round: the whole ring must be in flight, which takes its registers
  ("scaled", (8, 4096, 4096, 0), KernelParams((16, 8), cluster=2, warps=8, stages=8), 128),
  ("pair", (8, 4096, 4096, 0), KernelParams((16, 8), warps=8, stages=4), 128),
  ("small_third", (8, 4096, 4096, 16), KernelParams((16, 8), warps=8, stages=4), 128),
  ("layouts", (11, 1000, 40, 0), KernelParams((32, 8), cluster=4, warps=4, stages=2), 224),
  ("scaled:bf16", (8, 4095, 4096, 0), KernelParams((16, 8), warps=8, stages=2), 168),
  ("over_columns", (8, 512, 64, 0), KernelParams((8,), warps=8, stages=2), 168),
  ("rows", (8, 4096, 0, 0), KernelParams((1,), warps=8), 64),
  ("rows", (8, 8192, 0, 0), KernelParams((1,), warps=4), 224),
]


def sources(graphs):
  found = []
  for name, sizes, params, _ in FAMILY:
    graph = graphs[name]
    extents = {f"a{i}": n for i, n in enumerate(sizes)}
    found.append(emit_kernel(graph, graph.kernels[0], params, extents, H200))
  return found


def test_family_compiles_without_spills(graphs):
  results = compile_many(sources(graphs), H200, workers=2)
  for result, (name, sizes, params, most) in zip(results, FAMILY, strict=True):
    assert not isinstance(result, Rejection), result
    assert result.image.startswith(b"\x7fELF")
    assert (result.stack_bytes, result.spill_bytes, result.smem_bytes) == (0, 0, 0)
    assert 16 <= result.registers <= most, (name, sizes, params, result.registers)


def test_the_ring_is_in_flight_also_if_there_is_one_round(graphs):
  """24 loads of 16 bytes are 96 registers; fewer mean that loads sank to their uses."""
  graph = graphs["scaled"]
  params = KernelParams((16, 8), cluster=2, warps=8, stages=8)
  sizes = {"a0": 8, "a1": 4096, "a2": 4096}
  source = emit_kernel(graph, graph.kernels[0], params, sizes, H200)
  assert compile_cubin(source.text, H200, name=source.name).registers > 96


def test_the_same_text_gives_the_same_bytes(graphs):
  source = sources(graphs)[-2]
  one, two = (compile_cubin(source.text, H200, name=source.name) for _ in range(2))
  assert one.image == two.image


def test_every_function_compiles_without_a_stack(graphs):
  """Sin and cos of the CUDA library would put a table on the stack."""
  text = graphs.text("rows_mixed")
  for op in ("sin", "cos", "exp", "log", "erf", "sigmoid", "powr[7/3]", "powr[-5]", "rsqrt"):
    graph = parse_ugraph(text.replace("tanh", op))
    source = emit_kernel(graph, graph.kernels[0], KernelParams((1, 1)), {"a0": 4, "a1": 512, "a2": 4}, H200)
    assert compile_cubin(source.text, H200, name=source.name).registers > 0


def test_refusal_of_text_that_is_not_cuda():
  with pytest.raises(RejectionError) as info:
    compile_cubin('#include "ptx.cuh"\nPTX_KERNEL(32) k() { nonsense; }', H200, name="k")
  assert info.value.rejection.code == "COMPILE_FAILED"
  assert 'k.cu(2): error: identifier "nonsense" is undefined' in info.value.rejection.reason


def test_refusal_of_spills():
  text = """#include "ptx.cuh"
PTX_KERNEL(1024) k(float* out) {  // so that a thread has 64 registers
  float v[128];
  for (int i = 0; i < 128; ++i) v[i] = ptx::ld_f32(out + i);
  for (int round = 0; round < 10; ++round)
    for (int i = 0; i < 128; ++i) v[i] += v[(i * 7 + 3) % 128] * 0.5f;
  for (int i = 0; i < 128; ++i) ptx::st_f32(out + i, v[i]);
}"""
  with pytest.raises(RejectionError, match="bytes of stack") as info:
    compile_cubin(text, H200, name="k")
  assert info.value.rejection.code == "SPILLS"


LOG = "%d bytes stack frame, %d bytes spill stores, %d bytes spill loads\nUsed 64 registers"


@pytest.mark.parametrize(
  ("spills", "used"), [((0,), 1), ((8, 0), 2), ((60, 8, 0), 3), ((8, 8, 8), 3), ((90,), 1)]
)
def test_ways_to_compile_what_spills(monkeypatch, spills, used):
  """With one block a multiprocessor, then with few registers; where much spills, no more."""
  asked = []

  def nvrtc(text, target, name, *way):
    asked.append(way)
    return b"%d" % len(asked), LOG % ((spills[len(asked) - 1],) * 3), ""

  monkeypatch.setattr(compiler, "_nvrtc", nvrtc)
  if spills[-1]:
    with pytest.raises(RejectionError, match=f"{spills[0]} bytes of stack"):
      compile_cubin("", H200, name="k")
  else:
    assert compile_cubin("", H200, name="k").image == b"%d" % used
  assert asked == list(compiler._WAYS[:used])


@pytest.mark.parametrize(
  ("threads", "registers", "spills", "ways"),
  [
    (128, 255, (6, 0), (0, 2)),  # all that a thread can have: another bound gives it none
    (384, 168, (12, 0), (0, 2)),  # a third of a multiprocessor's
    (384, 168, (13,), (0,)),
    (384, 160, (13, 0), (0, 1)),
    (64, 255, (6, 6), (0, 2)),
  ],
)
def test_ways_where_a_block_has_all_registers(monkeypatch, threads, registers, spills, ways):
  asked = []

  def nvrtc(text, target, name, *way):
    asked.append(way)
    log = LOG.replace("64", str(registers))
    return b"", log % ((spills[len(asked) - 1],) * 3), ""

  monkeypatch.setattr(compiler, "_nvrtc", nvrtc)
  for kind in ("KERNEL(%d)", "LONE_KERNEL(%d)", "CLUSTER_KERNEL(%d, 2)"):
    asked.clear()
    text = f"PTX_{kind % threads} k() {{}}"
    if spills[-1]:
      with pytest.raises(RejectionError, match="bytes of stack"):
        compile_cubin(text, H200, name="k")
    else:
      compile_cubin(text, H200, name="k")
    assert asked == [compiler._WAYS[n] for n in ways]


@pytest.mark.parametrize("right", [1, 2, 3, None])
def test_other_ways_for_what_is_miscompiled(monkeypatch, right):
  """A way whose machine code keeps its operands is taken; where none does, the first reason stays."""
  asked = []

  def nvrtc(text, target, name, *way):
    asked.append(way)
    return b"%d" % len(asked), LOG % (0, 0, 0), "ptx"

  monkeypatch.setattr(compiler, "_nvrtc", nvrtc)
  monkeypatch.setattr(
    compiler,
    "miscompiled",
    lambda ptx, image, name: None if image == b"%d" % (right or 9) else f"way {image!r}",
  )
  if right is None:
    with pytest.raises(RejectionError, match="k: way b'1'") as info:
      compile_cubin("", H200, name="k")
    assert info.value.rejection.code == "MISCOMPILED"
  else:
    assert compile_cubin("", H200, name="k").image == b"%d" % right
  assert asked == list(compiler._WAYS[: right or 3])


def test_every_way_compiles():
  text = '#include "ptx.cuh"\nPTX_%s k(float* out) { ptx::st_f32(out, 1.0f); }'
  for kernel in ("KERNEL(64)", "CLUSTER_KERNEL(64, 2)"):
    for way in compiler._WAYS:
      assert "Used" in compiler._nvrtc(text % kernel, H200, "k", *way)[1]


def test_refusals_of_many_are_values():
  bad = KernelSource("k", "nonsense", (1, 1, 1), 32, 1, 0, (), pdl=False)
  good = KernelSource("k", '#include "ptx.cuh"\nPTX_KERNEL(32) k() {}', (1, 1, 1), 32, 1, 0, (), pdl=False)
  first, second = compile_many([bad, good], H200, workers=2)
  assert isinstance(first, Rejection)
  assert first.code == "COMPILE_FAILED"
  assert not isinstance(second, Rejection)


#: Prints the thread in which cuda-core is imported first.
FIRST_IMPORT = """
import sys, threading
class Finder:
  def find_spec(name, path=None, target=None):
    if name == "cuda.core":
      sys.meta_path.remove(Finder)
      print(threading.current_thread() is threading.main_thread())
sys.meta_path.insert(0, Finder)
from mirage_onnx.codegen import KernelSource
from mirage_onnx.compiler import compile_many
from mirage_onnx.target import H200
compile_many([KernelSource("k", "", (1, 1, 1), 32, 1, 0, (), pdl=False)], H200, workers=2)
"""


def test_the_compiler_is_imported_before_threads_begin():
  """Two of 13 processes on a busy machine failed: cuda-core's import is not made for threads."""
  done = subprocess.run([sys.executable, "-c", FIRST_IMPORT], capture_output=True, text=True, check=True)
  assert done.stdout == "True\n"


#: As above, but the threads are the caller's: four that optimize at once.
IMPORTS_AT_ONCE = """
import threading
from concurrent.futures import ThreadPoolExecutor
from mirage_onnx.codegen import KernelSource
from mirage_onnx.compiler import compile_many
from mirage_onnx.target import H200
together = threading.Barrier(4)
def work(i):
  together.wait()
  kernel = KernelSource("k", 'extern "C" __global__ void k() {}', (1, 1, 1), 32, 1, 0, (), pdl=False)
  return compile_many([kernel], H200, workers=1)[0].registers
with ThreadPoolExecutor(4) as pool:
  print(len(list(pool.map(work, range(4)))))
"""


def test_callers_in_several_threads():
  done = subprocess.run([sys.executable, "-c", IMPORTS_AT_ONCE], capture_output=True, text=True, check=False)
  assert done.stdout == "4\n", done.stderr[-2000:]


def test_missing_compiler(monkeypatch):
  def missing():
    raise RuntimeError("no libnvrtc.so")

  monkeypatch.setattr("cuda.bindings.nvrtc.nvrtcVersion", missing)
  with pytest.raises(MirageError) as info:
    compiler.compile_cubin("", H200, name="k")
  assert info.value.code == "COMPILER_MISSING"
