"""The kernel-graph API: what every operation computes, and one clear line where operands misfit."""

from collections.abc import Callable

import numpy as np
import pytest
import saved_references
from refused import refused
from scipy import special

import mirage_onnx as mi
from mirage_onnx.importer.kernel_graph import GraphTensor, ProgramBuilder
from mirage_onnx.ir.dtype import DType
from mirage_onnx.match.whole import whole_region
from mirage_onnx.verify.equivalence import check_terms
from mirage_onnx.verify.interpret_steps import interpret_steps

Build = Callable[[ProgramBuilder, GraphTensor, GraphTensor], GraphTensor]
X, Y = (2, 3, 5), (2, 5, 3)


def rms(x, axes):
  return np.sqrt((x * x).mean(axis=axes, keepdims=True))


OPERATIONS = {
  "matmul": (lambda g, x, y: g.matmul(x, y), lambda x, y: x @ y),
  "exp": (lambda g, x, y: g.exp(x), lambda x, y: np.exp(x)),
  "square": (lambda g, x, y: g.square(x), lambda x, y: x * x),
  "sqrt": (lambda g, x, y: g.sqrt(g.exp(x)), lambda x, y: np.exp(x / 2)),
  "silu": (lambda g, x, y: g.silu(x), lambda x, y: x / (1 + np.exp(-x))),
  "gelu": (lambda g, x, y: g.gelu(x), lambda x, y: x * special.ndtr(x)),
  "relu": (lambda g, x, y: g.relu(x), lambda x, y: np.maximum(x, 0)),
  "add": (lambda g, x, y: g.add(x, g.exp(x)), lambda x, y: x + np.exp(x)),
  "sub": (lambda g, x, y: g.sub(x, g.exp(x)), lambda x, y: x - np.exp(x)),
  "mul": (lambda g, x, y: g.mul(x, g.exp(x)), lambda x, y: x * np.exp(x)),
  "div": (lambda g, x, y: g.div(x, g.exp(x)), lambda x, y: x / np.exp(x)),
  "broadcast": (
    lambda g, x, y: g.div(x, g.reduction(g.exp(x), 1)),
    lambda x, y: x / np.exp(x).sum(axis=1, keepdims=True),
  ),
  "reduction": (lambda g, x, y: g.reduction(x, 2), lambda x, y: x.sum(axis=2, keepdims=True)),
  "reduction from the end": (
    lambda g, x, y: g.reduction(x, -2), lambda x, y: x.sum(axis=1, keepdims=True)
  ),
  "rms_norm": (lambda g, x, y: g.rms_norm(x), lambda x, y: x / rms(x, (2,))),
  "rms_norm over two": (
    lambda g, x, y: g.rms_norm(x, normalized_shape=(3, 5)), lambda x, y: x / rms(x, (1, 2))
  ),
  "softmax": (lambda g, x, y: g.softmax(x), lambda x, y: special.softmax(x, axis=-1)),
  "softmax along 0": (lambda g, x, y: g.softmax(x, 0), lambda x, y: special.softmax(x, axis=0)),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation(name, rng):
  build, meaning = OPERATIONS[name]
  graph = mi.new_kernel_graph()
  out = build(graph, *(graph.new_input(dims=d, dtype=mi.float16) for d in (X, Y)))
  region = whole_region(graph.program())
  assert check_terms(region, rng) is None
  arrays = {"x0": rng.standard_normal(X), "x1": rng.standard_normal(Y)}
  read = {i.tensor.name for i in region.inputs}
  got = interpret_steps(region, {k: v for k, v in arrays.items() if k in read}, rounded=False)
  want = meaning(*arrays.values())
  assert out.dims == want.shape and out.dtype is DType.F16
  np.testing.assert_allclose(got[out.name], want, rtol=1e-12)


def test_group_query_attention_of_the_readme():
  region = whole_region(saved_references.references()["gqa_bs1.json"].program())
  assert [i.tensor.name for i in region.inputs] == ["x2", "x1", "x0"]
  assert [o.tensor.shape for o in region.outputs] == [(2, 256, 64)]


def test_norm_and_matmul_of_the_readme():
  """The weight of the README has the wrong shape: one line names both."""
  graph = mi.new_kernel_graph()
  x = graph.new_input(dims=(16, 4096), dtype=mi.float16)
  w = graph.new_input(dims=(406, 4096), dtype=mi.float16)
  with refused("GRAPH_OPERAND", r"matmul of \(16, 4096\) and \(406, 4096\)"):
    graph.matmul(graph.rms_norm(x), w)


REFUSED = {
  "ranks of a sum": (
    lambda g, x, y: g.add(x, g.new_input((5,), "float16")),
    r"add of \(2, 3, 5\) and \(5,\): dimensions must be equal, or 1",
  ),
  "dimensions of a product": (
    lambda g, x, y: g.mul(x, y), r"mul of \(2, 3, 5\) and \(2, 5, 3\)"
  ),
  "batches": (
    lambda g, x, y: g.matmul(x, g.new_input((1, 5, 3), "float16")),
    r"matmul of \(2, 3, 5\) and \(1, 5, 3\).*equal leading dimensions",
  ),
  "vectors": (
    lambda g, x, y: g.matmul(g.new_input((5,), "float16"), g.new_input((5,), "float16")),
    r"matmul of \(5,\) and \(5,\)",
  ),
  "types": (
    lambda g, x, y: g.matmul(x, g.new_input(Y, "bfloat16")),
    r"\(2, 3, 5\) of f16 and \(2, 5, 3\) of bf16: the element types must be equal",
  ),
  "a dimension that is not there": (
    lambda g, x, y: g.reduction(x, 3), r"reduction of \(2, 3, 5\) along dimension 3"
  ),
  "a norm over other dimensions": (
    lambda g, x, y: g.rms_norm(x, (3,)), r"rms_norm of \(2, 3, 5\) over \(3,\)"
  ),
  "a foreign tensor": (
    lambda g, x, y: g.exp(mi.new_kernel_graph().new_input((2,), "float16")),
    "exp takes tensors of this graph",
  ),
  "no tensor": (lambda g, x, y: g.exp(3), "exp takes tensors of this graph, not 3"),
  "an empty input": (lambda g, x, y: g.new_input((0, 3), "float16"), r"shape \(0, 3\)"),
  "a type": (lambda g, x, y: g.new_input((2,), "int8"), "dtype 'int8' is not one of float16"),
  "strides": (
    lambda g, x, y: g.new_input((4, 6), mi.float16, strides=(1, 4)),
    r"an input of shape \(4, 6\) has strides \(6, 1\), not \(1, 4\)",
  ),
  "an output twice": (
    lambda g, x, y: [g.mark_output(z) for z in [g.exp(x)] * 2], "which is marked already"
  ),
  "an input as output": (lambda g, x, y: g.mark_output(x), "mark_output of x0, which is an inp"),
  "two results and no output": (
    lambda g, x, y: [g.exp(x), g.exp(y), g.program()], "2 results are unread: say mark_output"
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
  build, line = REFUSED[name]
  graph = mi.new_kernel_graph()
  operands = (graph.new_input(dims=d, dtype="float16") for d in (X, Y))
  with refused("GRAPH_OPERAND", line):
    build(graph, *operands)


def test_dense_strides_and_spellings_of_a_type():
  graph = mi.new_kernel_graph()
  made = [
    graph.new_input((4, 6), mi.bfloat16, strides=(6, 1)),
    graph.new_input((4, 6), "bfloat16"),
    graph.new_input((4, 6), np.float32),
    graph.new_input((4, 6), np.dtype(np.float64)),
    graph.new_input((4, 6), "torch.float16"),
  ]
  want = [DType.BF16, DType.BF16, DType.F32, DType.F64, DType.F16]
  assert [x.dtype for x in made] == want


def test_outputs_are_in_the_order_of_their_marks():
  graph = mi.new_kernel_graph()
  x = graph.new_input((4, 6), mi.float16)
  first, second = graph.exp(x), graph.square(x)
  graph.mark_output(second)
  graph.mark_output(first)
  assert graph.program().outputs == (second.name, first.name)
