"""µGraphs as programs in Triton; where it is installed, their numbers, and compiled for sm_90."""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from readme_graphs import ONE_KERNEL, ONE_KERNEL_NUMBERS, SPLIT, SPLIT_NUMBERS, attention

import mirage_onnx as mi
from mirage_onnx.errors import RejectionError
from mirage_onnx.graphs.triton_functions import FUNCTIONS, literal, power
from mirage_onnx.graphs.triton_tiles import Tiles
from mirage_onnx.ir import parse_ugraph
from mirage_onnx.ir.functions import ELEMENTWISE
from mirage_onnx.ir.ugraph import KernelParams

needs_triton = pytest.mark.skipif(
  not (importlib.util.find_spec("triton") and importlib.util.find_spec("torch")),
  reason="triton and torch are not installed",
)

ROW = """ugraph 1
tensor i0 f16[a0,a1] input
tensor o0 f16[a0,a1] output
kernel k0 grid=a0 cluster=- loop=-
  %0 = load i0 imap=a0 cmap=- fmap=- : f16[a0,a1] post vector
  %1 = cast %0 : f32[a0,a1] post vector
  %2 = OP %1 : f32[a0,a1] post vector
  %3 = cast %2 : f16[a0,a1] post vector
  save o0 = %3 omap=a0
"""
ROW_NUMBERS = ["tile=1 cluster=1 loop_tile=0 warps=1 stages=1"]


def found(make, *shapes, dtype=mi.float16):
  graph = mi.new_kernel_graph()
  graph.mark_output(make(graph, *(graph.new_input(dims=s, dtype=dtype) for s in shapes)))
  return graph.superoptimize()


CASES = {
  "running maximum": lambda: attention().read_ugraph(ONE_KERNEL, ONE_KERNEL_NUMBERS),
  "two kernels with a part axis": lambda: attention().read_ugraph(SPLIT, SPLIT_NUMBERS),
  "a cluster and tails": lambda: found(
    lambda g, x, w: g.matmul(g.rms_norm(x, normalized_shape=(1000,)), w), (5, 1000), (1000, 330)
  ),
  "a vector": lambda: found(lambda g, x, w: g.relu(g.matmul(x, w)), (1, 100), (100, 70)),
  "rows": lambda: found(lambda g, x: g.softmax(x), (60, 1000)),
  "elementwise": lambda: found(lambda g, x: g.gelu(x), (3, 777), dtype=mi.float32),
}

#: Runs the program of argv[1] on the arrays of argv[2] and writes its outputs to argv[3].
RUNS = """
import importlib.util, sys
import numpy as np, torch
spec = importlib.util.spec_from_file_location("program", sys.argv[1])
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)
with np.load(sys.argv[2]) as data:
  inputs = [torch.from_numpy(data[f"i{k}"]).to(t) for k, t in enumerate(program.DTYPES)]
np.savez(sys.argv[3], *[o.float().numpy() for o in program.optimized_graph(inputs)])
"""

#: Compiles every kernel of the program of argv[1] for sm_90; prints the shared memory of each, in bytes.
COMPILES = """
import importlib.util, json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
spec = importlib.util.spec_from_file_location("program", sys.argv[1])
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)
types = json.loads(sys.argv[2])
found = []
for name, types in json.loads(sys.argv[2]).items():
  source = ASTSource(getattr(program, name), types, constexprs={})
  made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
  assert made.asm["cubin"][:4] == b"\\x7fELF"
  found.append(made.metadata.shared)
print(json.dumps(found))
"""


@pytest.fixture(scope="module", params=CASES)
def program(request, tmp_path_factory):
  made = CASES[request.param]()
  path = tmp_path_factory.mktemp("triton") / "program.py"
  made.generate_triton_program(path)
  return made, path


def test_is_a_program_in_triton(program):
  made, path = program
  text = path.read_text(encoding="utf-8")
  tree = ast.parse(text)
  functions = [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.decorator_list]
  assert [f for f in functions if f != "tanh"] == [k.name for k in made.ugraph.kernels]
  assert "mirage_onnx" not in text.replace("mirage-onnx", "")
  assert made.summary() in text


@needs_triton
def test_numbers(program, tmp_path):
  """Within a unit in the last place of what the µGraph says, value by value rounded."""
  made, path = program
  rng = np.random.default_rng(0)
  tensors = [made.program.tensors[n] for n in made.program.inputs]
  inputs = [(rng.standard_normal(t.shape) / 3).astype(t.dtype.numpy) for t in tensors]
  np.savez(tmp_path / "in.npz", **{f"i{k}": x.astype(np.float32) for k, x in enumerate(inputs)})
  command = [sys.executable, "-c", RUNS, str(path), str(tmp_path / "in.npz"), str(tmp_path / "out.npz")]
  subprocess.run(command, check=True, capture_output=True, env=_environment(TRITON_INTERPRET="1"))
  with np.load(tmp_path / "out.npz") as got:
    for x, want in zip(got.values(), made(inputs), strict=True):
      assert x.shape == want.shape
      assert np.linalg.norm(x - want.astype(np.float32)) <= 1e-3 * np.linalg.norm(want.astype(np.float32))


@needs_triton
def test_compiles_for_sm_90_without_a_gpu(program, tmp_path):
  made, path = program
  kinds = {"f16": "*fp16", "bf16": "*bf16", "f32": "*fp32"}
  types = {t.name: kinds[t.dtype.value] for t in made.ugraph.tensors}
  of_kernels = {k.name: {n: types[n] for n in k.touched} for k in made.ugraph.kernels}
  command = [sys.executable, "-c", COMPILES, str(path), json.dumps(of_kernels)]
  environment = _environment(TRITON_CACHE_DIR=str(tmp_path))
  done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
  assert all(shared <= 227 * 1024 for shared in json.loads(done.stdout))


def _environment(**more):
  return {**os.environ, **more}


def test_every_function_has_its_text():
  assert set(FUNCTIONS) == set(ELEMENTWISE)


def test_powers():
  for exponent, text in ((2, "x * x"), (Fraction(-1, 2), "1.0 / (tl.sqrt(x))"), (0, "1.0")):
    assert power("x", Fraction(exponent)) == text


def refusal(call):
  with pytest.raises(RejectionError) as caught:
    call()
  assert caught.value.rejection.code == "TRITON_UNSUPPORTED"
  return caught.value.rejection.reason


def test_refusals(tmp_path):
  assert "power of 1/3" in refusal(lambda: power("x", Fraction(1, 3)))
  assert "no number" in refusal(lambda: literal("unknown"))
  assert "beyond fp32" in refusal(lambda: literal(Fraction(10) ** 40))
  (kernel,) = parse_ugraph(ROW.replace("OP", "exp")).kernels
  numbers = KernelParams.from_text(ROW_NUMBERS[0])
  assert Tiles(kernel, numbers, {"a0": 2, "a1": 1 << 20}).shape(0) == (1, 1 << 20)
  assert "elements in a block" in refusal(lambda: Tiles(kernel, numbers, {"a0": 2, "a1": (1 << 20) + 1}))


def test_a_refused_program_is_not_written(tmp_path):
  graph = mi.new_kernel_graph()
  graph.mark_output(graph.exp(graph.new_input(dims=(2, (1 << 20) + 1), dtype=mi.float16)))
  made = graph.read_ugraph(ROW.replace("OP", "exp"), ROW_NUMBERS)
  assert "elements in a block" in refusal(lambda: made.generate_triton_program(tmp_path / "p.py"))
  assert list(tmp_path.iterdir()) == []
