"""Which nodes are left out and why; captured names; names of steps."""

import numpy as np
import onnx
import pytest
from onnx import helper
from protos import new_node, typed

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.importer.load import OPSETS
from mirage_onnx.importer.semantics import NOT_IN_ONNX, SEMANTICS

F32 = np.float32


def test_unknown_operator(bench):
  model, _ = bench.one("Hardmax", [np.ones(3, F32)])
  assert bench.barrier(model) == "OP_UNKNOWN: Hardmax: what it computes is not known here"


def test_operator_of_a_later_opset(bench):
  for opset, op in ((19, "Gelu"), (22, "RMSNormalization"), (23, "Swish")):
    arrays = [np.ones((2, 3), F32), np.ones(3, F32)][: 2 if op == "RMSNormalization" else 1]
    model, _ = bench.one(op, arrays, opset=opset)
    assert bench.barrier(model) == f"OP_UNKNOWN: {op}: does not exist in opset {opset}"


def test_operator_in_another_domain(bench):
  model, _ = bench.one("Relu", [np.ones(3, F32)], domain="my.domain")
  assert bench.barrier(model) == "CUSTOM_DOMAIN: Relu: belongs to domain 'my.domain'"


def test_function_of_the_model(bench):
  """A function may be called like an operator: it is not that operator."""
  for domain in ("", "my.domain"):
    model, _ = bench.one("Softsign", [np.ones(3, F32)], domain=domain)
    model.functions.append(
      helper.make_function(
        domain, "Softsign", ["a"], ["b"], [new_node("Neg", "a", "b")],
        [helper.make_opsetid("", 20)],
      )
    )  # fmt: skip
    assert bench.barrier(model).startswith(
      "CUSTOM_DOMAIN: Softsign: is a function of the model (onnx.inliner."
    )


def test_names_of_dimensions(bench):
  """Names are lowered as numbers; a Reshape to -1 is a product, and unequal names are refused."""
  nodes = [
    new_node("MatMul", "x w", "y"),
    new_node("Reshape", "y rows", "z"),
    new_node("Add", "y other", "s"),
    new_node("Reshape", "y odd", "u"),
  ]
  inputs = {"x": (F32, ["batch", None, 4]), "other": (F32, ["rest", 1, 8])}
  weights = {"w": np.ones((4, 8), F32), "rows": np.array([-1, 8]), "odd": np.array([8, -1, 1])}
  model = bench.model(nodes, inputs, ["y", "z", "s", "u"], weights)
  program = bench.program(model)
  rows, features = program.numbers("z")
  assert features == 8 and rows == np.prod(program.numbers("y")[:2])
  sized = program.sized(dict.fromkeys(program.primes.values(), 5) | {"batch": 3})
  assert [sized.tensors[n].shape for n in "xyz"] == [(3, 5, 4), (3, 5, 8), (15, 8)]
  assert bench.barrier(model, 2) == ("DYNAMIC_DIM: Add: whether batch is rest shows only a run")
  assert bench.barrier(model, 3).startswith("DYNAMIC_DIM: Reshape: regroups dimensions: batchx")


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_empty_input_and_weight(bench, shape):
  """Exporters write an empty cache like this; only what touches it stays."""
  nodes = [
    new_node("Concat", "x w", "a", axis=len(shape) - 1),
    new_node("Neg", "e", "b"),
    new_node("Mul", "w w", "c"),
    new_node("Relu", "x", "y"),
  ]
  model = bench.model(
    nodes, {"x": (F32, [3] * len(shape)), "e": (F32, shape)}, ["a", "b", "c", "y"],
    {"w": np.zeros(shape, F32)},
  )  # fmt: skip
  codes = [n.barrier and n.barrier.code for n in bench.program(model).nodes]
  assert codes == ["ZERO_SIZE", "ZERO_SIZE", "ZERO_SIZE", None]
  assert bench.barrier(model, 2) == "ZERO_SIZE: Mul: 'w' holds no elements"


def test_empty_value(bench):
  nodes = [
    new_node("Slice", "x i i", "a"),
    new_node("Relu", "a", "y"),
  ]
  model = bench.model(nodes, {"x": (F32, [4])}, ["y"], {"i": np.array([1])})
  assert bench.barrier(model, 1) == "ZERO_SIZE: Relu: 'a' holds no elements"


@pytest.fixture
def conditional(bench):
  def branch(node):
    out = typed(node.output[0], 1, [3])
    return helper.make_graph([node], "branch", [], [out])

  nodes = [
    new_node("Relu", "x", "a", name="before"),
    new_node(
      "If", "c", "y", name="it",
      then_branch=branch(new_node("Add", "a w", "t")),
      else_branch=branch(new_node("Neg", "a", "e")),
    ),
  ]  # fmt: skip
  return bench.model(nodes[::-1], {"x": (F32, [3]), "c": (bool, [])}, ["y"],
                     {"w": np.ones(3, F32)})  # fmt: skip


def test_subgraphs_and_what_they_capture(bench, conditional):
  """Captured values count as inputs, constants do not: for the order, and as consumers."""
  program = bench.program(conditional)
  assert [n.name for n in program.nodes] == ["before", "it", "y:else_branch/Neg_0", "y:then_branch/Add_0"]
  assert program.nodes[1].inputs == ("c", "a")
  assert program.nodes[3].inputs == ("y:then_branch/a", "w") and program.outputs[0] == "y"
  assert program.consumers()["a"] == ("it",)
  assert bench.barrier(conditional, 1) == (
    "SUBGRAPH: If: its else_branch and then_branch (2 nodes, which read 2 values from outside) are "
    "optimized for themselves: no kernel reaches across their borders"
  )
  assert program.tensors["y"].shape == (3,)


def test_undefined_name_in_a_subgraph(bench, conditional):
  conditional.graph.node[0].attribute[0].g.node[0].input[0] = "ghost"
  with pytest.raises(Exception, match="node 'it' reads 'ghost', which nothing defines"):
    load_model(conditional)


def test_names_of_steps(bench):
  """Inner values are numbered under the output; the last one is the output."""
  model, _ = bench.one("Softmax", [np.ones((2, 3), F32)], outputs=["probabilities"])
  (node,) = bench.program(model).nodes
  assert [s.output.name for s in node.steps] == [
    "probabilities/0", "probabilities/1", "probabilities/2", "probabilities/3", "probabilities",
  ]  # fmt: skip
  assert node.name == "it" and node.inputs == ("x0",) and node.outputs == ("probabilities",)


def test_barriers_between_lowered_nodes(bench):
  """A program goes on behind a node that is not understood."""
  nodes = [
    new_node("Relu", "x", "a"),
    new_node("IsInf", "a", "b"),
    new_node("Where", "b x a", "c"),
    new_node("Neg", "c", "y"),
  ]
  program = bench.program(bench.model(nodes, {"x": (F32, [3])}, ["y"]))
  assert [n.barrier and n.barrier.code for n in program.nodes] == [
    None, "OP_FORM", None, None,
  ]  # fmt: skip


def test_import_is_deterministic(bench, conditional):
  assert import_model(load_model(conditional)) == import_model(load_model(conditional))


def test_every_rule_is_of_a_known_operator():
  """No line of the table is dead by a typing error."""
  from onnxruntime.capi import onnxruntime_pybind11_state as state

  theirs = {(s.domain, s.name) for s in state.get_all_operator_schema()}
  for domain, op in SEMANTICS:
    if domain == "" and op not in NOT_IN_ONNX:
      assert onnx.defs.has(op, OPSETS[-1], "")
    else:
      assert (domain, op) in theirs


def test_names_that_are_this_programs_own(bench):
  """A constant of such a name holds 0, 1, 2, .. to a kernel, which reads nothing of it."""
  arrays = np.ones((2, 3), np.float32), np.array([2, 1, 0], np.int32)
  nodes = [
    helper.make_node("Cast", ["mirage.places.3"], ["z"], to=onnx.TensorProto.FLOAT),
    helper.make_node("Add", ["x", "z"], ["y"]),
  ]
  model = bench.model(nodes, {"x": (np.float32, (2, 3))}, ["y"], {"mirage.places.3": arrays[1]})
  assert bench.barrier(model) == "OP_FORM: Cast: 'mirage.places.3' is a name of this program's own"
