"""What a rewritten model looks like, and that it computes the same bits without our library."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from protos import new_node, typed

from mirage_onnx.rewrite.model import BUNDLE_NAME, BodyMaker, rewrite_model
from mirage_onnx.rewrite.replacement import Replacement, WeightUse

DOMAIN = "ai.mirage.v1.sm90a"


def initializers(model):
  return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def add_output(model, name, kind=TensorProto.FLOAT16):
  model.graph.output.append(typed(name, kind, None))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("workspace", [False, True])
@pytest.mark.parametrize("kmajor", [False, True])
def test_the_bits_are_those_of_the_original(toy, x, dtype, workspace, kmajor):
  model = toy.build(1, dtype)
  region = toy.region(0, workspace=workspace, kmajor=kmajor)
  result = rewrite_model(model, [region], toy.bundle)
  onnx.checker.check_model(result, full_check=True)
  assert toy.same(model, result, h0=x(5, dtype))


def test_the_custom_node_and_its_function(toy):
  result = rewrite_model(toy.build(), [toy.region(0)], toy.bundle)
  (node,) = result.graph.node
  assert (node.domain, node.op_type, node.name) == (DOMAIN, "MuGraph_0", "mirage/0/l0_pow")
  assert list(node.input) == [BUNDLE_NAME, "h0", "l0_gamma", "l0_w.kmajor"]
  assert list(node.output) == ["h1", "mirage/0/l0_pow/workspace"]
  assert {p.key: p.value for p in node.metadata_props} == {
    "pkg.mirage_onnx.region": ",".join(toy.region(0).nodes)
  }
  (function,) = result.functions
  assert (function.domain, function.name, function.overload) == (DOMAIN, "MuGraph_0", "")
  assert list(function.input) == ["bundle", "i0", "i1", "i2"]
  assert list(function.output) == ["o0", "workspace"]
  assert {(o.domain, o.version) for o in function.opset_import} == {("", 20)}
  assert {(o.domain, o.version) for o in result.opset_import} == {("", 20), (DOMAIN, 1)}
  assert [n.op_type for n in function.node] == [
    *("Transpose", "Constant", "Constant", "Constant"),
    *("Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul", "MatMul"),
    *("Constant", "ConstantOfShape"),
  ]
  assert [p.key for p in result.metadata_props] == ["mirage_onnx.version"]


def test_weights_and_constants(toy):
  model = toy.build()
  result = rewrite_model(model, [toy.region(0)], toy.bundle)
  before, after = initializers(model), initializers(result)
  assert list(after) == ["l0_gamma", "l0_w.kmajor", BUNDLE_NAME]
  assert np.array_equal(after["l0_w.kmajor"], before["l0_w"].T)
  assert after[BUNDLE_NAME].tobytes() == toy.bundle
  assert after[BUNDLE_NAME].dtype == np.uint8


def test_target_suffix(toy):
  result = rewrite_model(toy.build(), [toy.region(0)], toy.bundle, target_suffix="sm80")
  assert result.graph.node[0].domain == result.functions[0].domain == "ai.mirage.v1.sm80"


def test_the_argument_is_not_modified_and_results_are_deterministic(toy):
  model = toy.build(2)
  before = model.SerializeToString(deterministic=True)
  results = [
    rewrite_model(model, [toy.region(0), toy.region(1)], toy.bundle).SerializeToString(deterministic=True)
    for _ in range(2)
  ]
  assert results[0] == results[1]
  assert model.SerializeToString(deterministic=True) == before
  assert rewrite_model(model, [], b"").SerializeToString(deterministic=True) == before


def test_equal_layers_share_one_function(toy, x):
  model = toy.build(3)
  regions = [toy.region(i) for i in range(3)]
  assert len({BodyMaker(model).body(r).key for r in regions}) == 1
  result = toy.rewritten(model, x(), regions)
  assert len(result.functions) == 1
  assert [n.op_type for n in result.graph.node] == ["MuGraph_0"] * 3
  assert [n.name for n in result.graph.node] == [f"mirage/0/l{i}_pow" for i in range(3)]
  assert sum(t.name == BUNDLE_NAME for t in result.graph.initializer) == 1


def test_layers_in_another_node_order_still_share(toy, x):
  """The model's order of independent nodes is an accident of its exporter."""
  model = toy.build(2)
  nodes = {n.name: n for n in model.graph.node}
  # gamma * div needs both; make div's operands commute in time: sqrt before a second branch
  for i in range(2):
    nodes[f"l{i}_scale"].CopyFrom(helper.make_node("Neg", [f"h{i}"], [f"l{i}_scale"], name=f"l{i}_scale"))
    nodes[f"l{i}_linear"].input[:] = [f"l{i}_scale", f"l{i}_w"]
    nodes[f"l{i}_linear"].output[:] = [f"l{i}_product"]
    model.graph.node.add().CopyFrom(
      helper.make_node("Add", [f"l{i}_product", f"l{i}_div"], [f"h{i + 1}"], name=f"l{i}_end")
    )
  order = [f"l0_{s}" for s in ("pow", "mean", "add", "sqrt", "div", "scale", "linear", "end")]
  order += [f"l1_{s}" for s in ("scale", "linear", "pow", "mean", "add", "sqrt", "div", "end")]
  found = {n.name: onnx.NodeProto.FromString(n.SerializeToString()) for n in model.graph.node}
  del model.graph.node[:]
  model.graph.node.extend(found[name] for name in order)
  regions = [
    replace(toy.region(i), nodes=tuple(order[8 * i : 8 * i + 8]), inputs=(f"h{i}", f"l{i}_w"))
    for i in range(2)
  ]
  result = toy.rewritten(model, x(), regions)
  assert len(result.functions) == 1


def test_two_plans_are_two_functions(toy, x):
  model = toy.build(2)
  result = rewrite_model(model, [toy.region(1, plan=1, workspace=False), toy.region(0, plan=0)], toy.bundle)
  assert [f.name for f in result.functions] == ["MuGraph_0", "MuGraph_1"]
  assert [n.op_type for n in result.graph.node] == ["MuGraph_0", "MuGraph_1"]
  assert toy.same(model, result, h0=x())


def test_a_weight_used_elsewhere_stays_in_both_forms(toy, x):
  model = toy.build()
  model.graph.node.append(new_node("MatMul", "h0 l0_w", "other", name="other"))
  add_output(model, "other")
  result = toy.rewritten(model, x())
  assert {"l0_w", "l0_w.kmajor"} <= set(initializers(result))


def test_a_weight_of_two_regions_is_stored_once(toy, x):
  model = toy.build(2)
  nodes = {n.name: n for n in model.graph.node}
  nodes["l1_linear"].input[1] = "l0_w"
  second = replace(toy.region(1), inputs=("h1", "l1_gamma", "l0_w"), weights=(WeightUse("l0_w", (1, 0)),))
  result = toy.rewritten(model, x(), [toy.region(0), second])
  assert "l0_w" not in initializers(result)
  assert "l0_w.kmajor" in initializers(result)
  assert sum("kmajor" in name for name in initializers(result)) == 1
  assert "l1_w" in initializers(result), "it was unused before: not our business"


def test_constants_from_constant_nodes(toy, x):
  model = toy.build()
  for name in ("two", "eps", "axes", "l0_w"):
    (tensor,) = [t for t in model.graph.initializer if t.name == name]
    node = helper.make_node("Constant", [], [name], name=f"make_{name}", value=tensor)
    model.graph.node.insert(0, node)
    model.graph.initializer.remove(tensor)
  result = toy.rewritten(model, x())
  assert [n.op_type for n in result.graph.node] == ["MuGraph_0"]
  assert "l0_w.kmajor" in initializers(result)


def test_graph_outputs_inside_a_region_are_its_outputs(toy, x):
  model = toy.build(2)
  add_output(model, "l0_div")
  first = replace(toy.region(0), outputs=("h1", "l0_div"))
  result = toy.rewritten(model, x(), [first, toy.region(1, plan=1)])
  assert list(result.graph.node[0].output[:2]) == ["h1", "l0_div"]
  assert [o.name for o in result.graph.output] == ["h2", "l0_div"]


def test_a_capture_by_a_subgraph_is_a_use(toy, x, with_if):
  model = with_if(toy.build(), "l0_div")
  result = toy.rewritten(model, x(), [replace(toy.region(0), outputs=("h1", "l0_div"))])
  assert [n.name for n in result.graph.node] == ["mirage/0/l0_pow", "choice"]


def test_types_are_written_for_every_output(toy, x):
  model = toy.build(2)
  del model.graph.value_info[:]
  result = toy.rewritten(model, x(), [toy.region(0), toy.region(1)])
  types = {v.name: v.type.tensor_type for v in result.graph.value_info}
  assert types["h1"].elem_type == TensorProto.FLOAT16
  assert [d.dim_param or d.dim_value for d in types["h1"].shape.dim] == ["batch", toy.hidden]
  assert types["mirage/0/l1_pow/workspace"].elem_type == TensorProto.UINT8


def test_unnamed_nodes(toy, x):
  model = toy.build()
  names = []
  for index, node in enumerate(model.graph.node):
    if index % 2:
      node.name = ""
    names.append(node.name or f"{node.op_type}_{index}")
  result = toy.rewritten(model, x(), [replace(toy.region(0), nodes=tuple(names))])
  assert [n.name for n in result.graph.node] == ["mirage/0/l0_pow"]


def test_names_that_are_taken_get_a_number(toy, x):
  model = toy.build()
  taken = [
    new_node("Neg", "h0", "l0_w.kmajor", name="mirage/0/l0_pow"),
    new_node("Neg", "l0_w.kmajor", "mirage/0/l0_pow/workspace", name="n"),
  ]
  model.graph.node.extend(taken)
  add_output(model, "mirage/0/l0_pow/workspace")
  result = toy.rewritten(model, x())
  node = result.graph.node[0]
  assert (node.name, node.input[3]) == ("mirage/0/l0_pow.1", "l0_w.kmajor.1")


def test_an_initializer_that_is_a_graph_input_stays(toy, x):
  model = toy.build()
  model.graph.input.append(typed("l0_gamma", TensorProto.FLOAT16, [toy.hidden]))
  model.graph.input.append(typed("unused", TensorProto.FLOAT16, [toy.hidden]))
  model.graph.initializer.append(numpy_helper.from_array(np.zeros(toy.hidden, np.float16), "unused"))
  result = rewrite_model(model, [toy.region(0)], toy.bundle)
  assert [i.name for i in result.graph.input] == ["h0", "l0_gamma", "unused"]
  assert {"l0_gamma", "unused"} <= set(initializers(result))
  gamma = np.full(toy.hidden, 3, np.float16)
  assert toy.same(model, result, h0=x(), l0_gamma=gamma)


@pytest.mark.parametrize(("before", "after"), [(4, 8), (8, 8), (10, 10), (13, 13)])
def test_ir_version(toy, x, before, after):
  model = toy.build()
  model.ir_version = before
  result = toy.rewritten(model, x())
  assert result.ir_version == after


def test_gemm_with_transposed_weight_and_scalar_region(toy, x):
  """[N,K] weights are K-major as they are; a constant region of Gemm keeps its attributes."""
  model = toy.build()
  nodes = {n.name: n for n in model.graph.node}
  nodes["l0_linear"].CopyFrom(new_node("Gemm", "l0_scale l0_w", "h1", name="l0_linear", transB=1, alpha=0.5))
  region = replace(toy.region(0), weights=(WeightUse("l0_w", (0, 1)),))
  result = toy.rewritten(model, x(), [region])
  assert list(result.graph.node[0].input)[3] == "l0_w"


def test_three_dimensional_weight(toy, rng):
  w = rng.standard_normal((2, 4, 6)).astype(np.float16)
  model = helper.make_model(
    helper.make_graph(
      [new_node("MatMul", "x w", "m", name="mm"),
       new_node("Relu", "m", "y", name="relu")],
      "g",
      [typed("x", TensorProto.FLOAT16, [2, 3, 4])],
      [typed("y", TensorProto.FLOAT16, [2, 3, 6])],
      [numpy_helper.from_array(w, "w")],
    ),
    opset_imports=[helper.make_opsetid("ai.onnx", 18)],
    ir_version=8,
  )  # fmt: skip
  x = rng.standard_normal((2, 3, 4)).astype(np.float16)
  for perm, name in (((0, 2, 1), "w.kmajor"), ((2, 0, 1), "w.perm2_0_1")):
    region = Replacement(("mm", "relu"), ("x", "w"), (WeightUse("w", perm),), ("y",), False, 0)
    result = rewrite_model(model, [region], toy.bundle)
    assert np.array_equal(initializers(result)[name], w.transpose(perm))
    assert toy.same(model, result, x=x)


def test_a_region_that_calls_a_function_of_the_model(toy, x):
  model = toy.build()
  square = helper.make_function(
    "lib", "Square", ["a"], ["b"], [new_node("Mul", "a a", "b")],
    [helper.make_opsetid("", 20)],
  )  # fmt: skip
  model.functions.append(square)
  model.opset_import.append(helper.make_opsetid("lib", 1))
  first = model.graph.node[0]
  first.op_type, first.domain = "Square", "lib"
  del first.input[1:]
  result = toy.rewritten(model, x())
  imports = {(o.domain, o.version) for o in result.functions[1].opset_import}
  assert imports == {("", 20), ("lib", 1)}


def test_a_large_constant_is_one_more_input(toy, x):
  """The kernel does not read it; the function does, which captures nothing."""
  model = toy.build(hidden=toy.hidden * 2)
  region = replace(toy.region(0), inputs=("h0", "l0_gamma"), weights=())
  feeds = np.concatenate([x(), x()], axis=1)
  result = toy.rewritten(model, feeds, [region])
  (node,) = result.graph.node
  assert list(node.input) == [BUNDLE_NAME, "h0", "l0_gamma", "l0_w"]
  (function,) = result.functions
  assert list(function.input) == ["bundle", "i0", "i1", "i2"]
  small = toy.rewritten(toy.build(), x(), [region])
  assert len(small.graph.node[0].input) == 3  # 512 bytes are in the body


@pytest.mark.parametrize("how", ["initializer", "constant", "folded"])
def test_instances_share_a_body_whose_large_constants_differ(toy, x, how):
  """Whoever holds them: an initializer, a Constant node, or nodes that compute what never changes."""
  model, width = toy.build(2, hidden=2 * toy.hidden), 2 * toy.hidden
  weights = {t.name: t for t in model.graph.initializer}
  folded = {}
  for name in ("l0_w", "l1_w"):
    if how == "initializer":
      continue
    model.graph.initializer.remove(weights[name])
    if how == "constant":
      made = [helper.make_node("Constant", [], [name], name=f"make_{name}", value=weights[name])]
    else:
      weights[name].name = name + ".half"
      model.graph.initializer.append(weights[name])
      made = [helper.make_node("Identity", [name + ".half"], [name], name=f"make_{name}")]
      folded[name] = numpy_helper.from_array(numpy_helper.to_array(weights[name]), name)
    for node in made:
      model.graph.node.insert(0, node)
  regions = [replace(toy.region(i), inputs=(f"h{i}", f"l{i}_gamma"), weights=()) for i in range(2)]
  first, second = map(BodyMaker(model, folded=folded).body, regions)
  assert (first.key, first.operands) == (second.key, ("l0_w",))
  result = rewrite_model(model, regions, toy.bundle, maker=BodyMaker(model, folded=folded))
  assert [n.op_type for n in result.graph.node].count("MuGraph_0") == 2
  feeds = np.random.default_rng(0).standard_normal((5, width)).astype(np.float16)
  assert toy.same(model, result, h0=feeds)
