"""An optimized graph prints, draws, writes and runs itself on numpy arrays."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from golden_texts import PROGRAMS
from readme_graphs import ONE_KERNEL, ONE_KERNEL_NUMBERS, SPLIT, SPLIT_NUMBERS, attention
from refused import refused

import mirage_onnx as mi
from mirage_onnx.errors import RejectionError
from mirage_onnx.graphs.python_text import python_text
from mirage_onnx.inspection.dot import COLOURS, Level, to_dot
from mirage_onnx.ir import Candidate, parse_ugraph

ROWS = PROGRAMS["exponentials"]
ROWS_NUMBERS = ["tile=1 cluster=1 loop_tile=0 warps=4 stages=1"]


@pytest.fixture(scope="module", params=["one kernel", "split"])
def optimized(request):
  text, numbers = {
    "one kernel": (ONE_KERNEL, ONE_KERNEL_NUMBERS), "split": (SPLIT, SPLIT_NUMBERS)
  }[request.param]  # fmt: skip
  return attention().read_ugraph(text, numbers, predicted_us=12.5)


def draw(rng, heads, rows, depth, positions):
  shapes = ((heads, rows, depth), (heads, depth, positions), (heads, positions, depth))
  return [(rng.standard_normal(s) / depth**0.25).astype(np.float16) for s in shapes]


def reference(q, k, v):
  e = np.exp(q.astype(float) @ k.astype(float))
  return e / e.sum(axis=2, keepdims=True) @ v.astype(float)


@pytest.mark.parametrize("sizes", [(2, 256, 64, 4096), (8, 1, 128, 1000), (3, 7, 24, 300)])
def test_runs_on_numpy_arrays(optimized, sizes, rng):
  """At its own sizes, and at others, whose last tiles are short."""
  data = draw(rng, *sizes)
  found = optimized(data)
  assert isinstance(found, list) and len(found) == 1
  want = reference(*data)
  assert found[0].dtype == np.float16 and found[0].shape == want.shape
  assert 0 < np.linalg.norm(found[0] - want) / np.linalg.norm(want) < 2e-3


def test_inputs_by_keyword_as_in_the_originals_tutorials(rng):
  optimized = attention().read_ugraph(ONE_KERNEL, ONE_KERNEL_NUMBERS)
  data = draw(rng, 1, 8, 16, 32)
  assert np.array_equal(optimized(inputs=tuple(data))[0], optimized(data)[0])


def test_outputs_are_in_the_order_of_their_marks(rng):
  graph = mi.new_graph()
  x, _unread, y = (graph.new_input((4, 64), mi.bfloat16) for _ in range(3))
  outputs = [graph.add(graph.exp(x), y), graph.reduction(y, 1), graph.exp(y)]
  for o in reversed(outputs):
    graph.mark_output(o)
  data = [rng.standard_normal((4, 64)).astype(ml_dtypes.bfloat16) for _ in range(3)]
  a, _, b = (d.astype(float) for d in data)
  want = [np.exp(b), b.sum(axis=1, keepdims=True), np.exp(a) + b]
  got = graph.superoptimize()(data)
  for x, y in zip(got, want, strict=True):
    assert x.dtype == ml_dtypes.bfloat16 and x.shape == y.shape
    np.testing.assert_allclose(x.astype(float), y, rtol=1e-2, atol=1e-2)


def test_text_is_canonical(optimized):
  lines = str(optimized).splitlines()
  comments = [line for line in lines if line.startswith("#")]
  graph = "\n".join(line for line in lines if not line.startswith("#"))
  assert parse_ugraph(graph) == optimized.ugraph
  assert [c.split(": ")[1] for c in comments[1:]] == [p.to_text() for p in optimized.params]


def test_cost_and_proof(optimized):
  assert optimized.predicted_us == 12.5
  assert optimized.proof.draws >= 2 and 0 < optimized.proof.bound < 1e-8
  count = len(optimized.ugraph.kernels)
  line = repr(optimized)
  assert f"{count} kernel" in line and "12.50 us on h200" in line and "\n" not in line
  assert f"{optimized.proof.draws} random draws" in line
  assert f"{optimized.proof.bound:.1e}" in str(optimized).splitlines()[0]
  unknown = attention().read_ugraph(ONE_KERNEL, ONE_KERNEL_NUMBERS)
  assert "predicted no time" in repr(unknown)


def test_drawing(optimized, tmp_path):
  text = optimized.to_dot()
  assert text == to_dot(optimized.ugraph, optimized.params)
  assert COLOURS[Level.BLOCK] in text and COLOURS[Level.THREAD] in text
  optimized.visualize(tmp_path / "graph.dot")
  assert (tmp_path / "graph.dot").read_text(encoding="utf-8") == text
  optimized.visualize(tmp_path / "graph.svg")
  assert (tmp_path / "graph.svg").read_text(encoding="utf-8").startswith("<svg")


def test_python_program(optimized, tmp_path):
  """The file, run by itself, has the same µGraph verified and prints it."""
  path = tmp_path / "generated_program_0.py"
  optimized.generate_python_program(path)
  command = [sys.executable, str(path)]
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  assert done.stdout == f"{optimized}\n"


def test_python_program_of_every_operation(tmp_path, rng):
  graph = mi.new_kernel_graph()
  x, w = graph.new_input((4, 6), mi.float32), graph.new_input((6, 8), mi.float32)
  y = graph.matmul(graph.softmax(x, 0), w)
  y = graph.add(graph.silu(y), graph.sub(graph.gelu(y), graph.relu(y)))
  y = graph.mul(graph.square(y), graph.sqrt(graph.exp(graph.rms_norm(y, (4, 8)))))
  graph.mark_output(graph.div(y, graph.reduction(graph.exp(y), -1)))
  graph.mark_output(graph.exp(x))
  candidate = Candidate(parse_ugraph(ROWS), ())
  head = python_text(graph.program(), candidate).partition("UGRAPH")[0]
  scope = {}
  exec(head, scope)
  assert scope["graph"].program() == graph.program()


REFUSED = {
  "a type": (lambda x: [x.astype(np.float32)], "x0 of float32: the graph has float16"),
  "an integer": (lambda x: [x.astype(np.int16)], "x0 of int16: the graph has float16"),
  "a shape": (lambda x: [x[0]], r"x0 of shape \(64,\): the graph has \(4, 64\)"),
  "a list": (lambda x: [x.tolist()], "a numpy or cupy array or a torch tensor, not a list"),
  "nothing": (lambda x: [], "0 arrays for the 1 inputs of the graph"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
  arrays, line = REFUSED[name]
  optimized = of_rows("exp").read_ugraph(ROWS, ROWS_NUMBERS)
  with refused("GRAPH_OPERAND", line):
    optimized(arrays(np.ones((4, 64), np.float16)))


def of_rows(op):
  graph = mi.new_kernel_graph()
  getattr(graph, op)(graph.new_input((4, 64), mi.float16))
  return graph


def test_another_program():
  graph = of_rows("square")
  with pytest.raises(RejectionError) as e:
    graph.read_ugraph(ROWS, ROWS_NUMBERS)
  assert e.value.rejection.code == "NOT_EQUIVALENT"


def test_numbers():
  graph = of_rows("exp")
  for numbers, line in (([], "0 numbers for 1 kernels"), (["tile=1"], "cluster|numbers")):
    with pytest.raises((ValueError, TypeError), match=line):
      graph.read_ugraph(ROWS, numbers)
  with pytest.raises(ValueError, match="not a ugraph"):
    graph.read_ugraph("kernel", ROWS_NUMBERS)
