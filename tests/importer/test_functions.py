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


@pytest.mark.parametrize("inside", [False, True])
def test_outputs_that_an_attribute_counts(bench, inside):
  """onnx makes 2**40 of them: 850 bytes of model took all memory that there was."""
  split = helper.make_node("Split", ["a" if inside else "x"], ["b" if inside else "y"], num_outputs=1 << 28)
  plain = bench.model(split, {"x": (F32, [2])}, ["y"])
  model = calling(bench, [function("f", split)]) if inside else plain
  said = "MODEL_LIMIT: node 'Split' counts 268435456 outputs, at most 65536 are made"
  assert refusal(model) == said
