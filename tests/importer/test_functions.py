"""Functions of a model are counted before they are followed."""

import time

import pytest
from onnx import ModelProto, helper

from mirage_onnx.importer import load_model
from mirage_onnx.importer.functions import MOST_NODES, check_functions
from tests.importer.refusals import F32, refusal

OPSETS = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]


def call(name, x, y):
  return helper.make_node(name, [x], [y], domain="local")


def function(name, *nodes):
  return helper.make_function("local", name, ["a"], ["b"], nodes, OPSETS)


def doubling(count):
  """f0, and functions that each call the one before twice: 2**count nodes."""
  made = [function("f0", helper.make_node("Relu", ["a"], ["b"]))]
  for i in range(1, count):
    made.append(function(f"f{i}", call(f"f{i - 1}", "a", "t"), call(f"f{i - 1}", "t", "b")))
  return made


def calling(bench, functions, node=None):
  model = bench.model(node or call(functions[-1].name, "x", "y"), {"x": (F32, [2])}, ["y"], domains=["local"])
  model.functions.extend(functions)
  return model


@pytest.mark.parametrize("count", [18, 40, 90])
def test_functions_that_double(bench, count):
  """onnx takes 7 s for 20 of them, and twice as long for each more."""
  model = calling(bench, doubling(count))
  start = time.process_time()
  text = refusal(model)
  assert text.startswith("MODEL_LIMIT: the calls of its functions stand for ")
  assert time.process_time() - start < 0.5


def test_below_the_limit(bench):
  loaded = load_model(calling(bench, doubling(10)))
  assert loaded.tensors["y"].shape == (2,)


def test_calls_in_graphs_that_nodes_hold(bench):
  """A call in a branch, and functions whose nodes hold branches."""
  functions = doubling(20)
  branch = helper.make_graph([call("f19", "x", "r")], "b", [], [helper.make_tensor_value_info("r", 1, [2])])
  node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
  model = calling(bench, functions, node)
  model.graph.input.append(helper.make_tensor_value_info("c", 9, []))
  assert refusal(model).startswith("MODEL_LIMIT")
  inner = helper.make_graph([call("f19", "a", "r")], "b", [], [helper.make_tensor_value_info("r", 1, [2])])
  held = function("held", helper.make_node("If", ["a"], ["b"], then_branch=inner, else_branch=inner))
  assert refusal(calling(bench, [*functions, held])).startswith("MODEL_LIMIT")


def test_what_nobody_calls_counts_too(bench):
  model = calling(bench, doubling(30), call("f1", "x", "y"))
  assert refusal(model).startswith("MODEL_LIMIT")


def test_a_cycle_is_left_to_onnx(bench):
  functions = [function("f", call("g", "a", "b")), function("g", call("f", "a", "b"))]
  assert refusal(calling(bench, functions)).startswith("MODEL_INVALID: Cycle detected")


def test_many_calls_of_small_functions():
  """The limit is on nodes, and counting them takes no time of its own."""
  model = ModelProto()
  functions = [function("f0", helper.make_node("Relu", ["a"], ["b"]))]
  model.functions.extend(functions)
  model.graph.node.extend(call("f0", "x", f"y{i}") for i in range(3000))
  check_functions(model)
  assert MOST_NODES > 10 * 3000


@pytest.mark.parametrize("count", [1 << 28, 0, 2, -1])
@pytest.mark.parametrize("inside", [False, True])
def test_outputs_that_an_attribute_counts(bench, inside, count):
  """onnx makes 2**28 of them in all memory that there is, and ends the process where they are too few."""
  split = helper.make_node("Split", ["a" if inside else "x"], ["b" if inside else "y"], num_outputs=count)
  plain = bench.model(split, {"x": (F32, [2])}, ["y"])
  model = calling(bench, [function("f", split)]) if inside else plain
  said = f"MODEL_INVALID: node 'Split' counts {count} outputs and has 1"
  assert refusal(model) == said


@pytest.mark.parametrize("equation", ["\\0", "ij,j1->i", "i..j", "ij->jk->i", "\u00e9"])
def test_an_equation_that_is_none(bench, equation):
  """Inference of onnx never ended at some of them."""
  node = helper.make_node("Einsum", ["x"], ["y"], equation=equation)
  assert "the equation" in refusal(bench.model(node, {"x": (F32, [2, 2])}, ["y"]))


@pytest.mark.parametrize("equation", ["ij->ji", " i j -> j i ", "...ij->...ji", "ij", "ii->i", "ij,jk->ik"])
def test_equations(bench, equation):
  node = helper.make_node("Einsum", ["x"] * (1 + equation.count(",")), ["y"], equation=equation)
  load_model(bench.model(node, {"x": (F32, [2, 2])}, ["y"]))


def test_operators_of_others_count_what_they_like(bench):
  nodes = [helper.make_node("Split", ["x"], ["y"], domain="theirs", num_outputs=5),
           helper.make_node("Einsum", ["x"], ["z"], domain="theirs", equation="\0")]  # fmt: skip
  model = bench.model(nodes, {"x": (F32, [2])}, ["y", "z"])
  model.opset_import.add(domain="theirs", version=1)
  assert len(load_model(model).proto.graph.node) == 2
