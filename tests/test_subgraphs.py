"""If, Loop and Scan: what they run is optimized like the graph around them, and with it."""

import numpy as np
import onnx
import pytest
import subgraph_models
from onnx import TensorProto, helper, numpy_helper
from refused import refused
from small_models import Net, feeds, run_model

import mirage_onnx
from mirage_onnx.api import diff, explain
from mirage_onnx.custom_op.compare import compare_models
from mirage_onnx.custom_op.sources import check_sources
from mirage_onnx.custom_op.steps import LeftOut
from mirage_onnx.importer import import_model, load_model, opening

KINDS = {"If": subgraph_models.chosen, "Loop": subgraph_models.repeated, "Scan": subgraph_models.scanned}


def holder(model):
  return next(n for n in model.graph.node if n.op_type in KINDS)


def custom(graph):
  return [n for n in graph.node if n.op_type.startswith("MuGraph_")]


def condition(model):
  return next(v.name for v in model.graph.input if v.type.tensor_type.elem_type == TensorProto.BOOL)


@pytest.fixture(scope="module", params=KINDS)
def optimized(request):
  model = subgraph_models.model(KINDS[request.param])
  return model, mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0)


def test_kernels_inside_and_outside(optimized):
  """Of every graph; the function bodies have the original's bits, and all that is run launches kernels."""
  model, result = optimized
  if holder(model).op_type != "Loop":  # of whose results inference tells no shape, which the checker asks for
    onnx.checker.check_model(result.model)
  graphs = [a.g for a in holder(result.model).attribute if a.HasField("g")]
  assert custom(result.model.graph) and all(map(custom, graphs))
  names = [n.name for g in (result.model.graph, *graphs) for n in custom(g)]
  assert len(set(names)) == len(names) == result.report["model"]["custom_nodes"]
  values = feeds(model, np.random.default_rng(0))
  runs = [values]
  if holder(model).op_type == "If":
    runs = [values | {condition(model): np.array(c)} for c in (True, False)]
  total = dict.fromkeys(names, 0)
  for given in runs:
    wants, bodies = run_model(model, given), run_model(result.model, given)
    assert [x.tobytes() for x in bodies] == [x.tobytes() for x in wants]
    session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
    for got, want in zip(session.run(None, given), wants, strict=True):
      error = np.linalg.norm(got.astype(float) - want) / np.linalg.norm(want.astype(float))
      assert error < 2e-3
    for name, count in mirage_onnx.launches(session).items():
      total[name] += count
  assert all(total.values()), total
  times = {"If": 1, "Loop": 3, "Scan": 4}[holder(model).op_type]
  inside = [total[n.name] for g in graphs for n in custom(g)]
  assert all(n % times == 0 for n in inside), total  # one launch or more in each of its runs


def test_the_rest_stays(optimized):
  """Names, inputs and results of subgraphs; weights in another order and the bundle are outside."""
  model, result = optimized
  one, two = holder(model), holder(result.model)
  assert (one.input, one.output, one.name) == (two.input, two.output, two.name)
  for a, b in zip(one.attribute, two.attribute, strict=True):
    if not a.HasField("g"):
      assert a == b
      continue
    assert (
      a.g.name == b.g.name and list(a.g.input) == list(b.g.input) and list(a.g.output) == list(b.g.output)
    )
    assert not {t.name for t in b.g.initializer} - {t.name for t in a.g.initializer}
    made = {o for n in b.g.node for o in n.output}
    assert {v.name for v in a.g.output} <= made | {v.name for v in a.g.input}
  assert "mirage.bundle" in {t.name for t in result.model.graph.initializer}
  row = next(r for r in result.report["regions"] if r["reason"] == "SUBGRAPH")
  assert "optimized for themselves" in row["reason_text"]


def test_what_verify_diff_and_explain_see(optimized, tmp_path):
  """Every custom node is checked by itself, whatever branch is taken; diff and explain have its nodes."""
  model, result = optimized
  a, b = tmp_path / "a.onnx", tmp_path / "b.onnx"
  onnx.save(model, a)
  onnx.save(result.model, b)
  graphs = [result.model.graph, *(x.g for x in holder(result.model).attribute if x.HasField("g"))]
  names = {n.name for g in graphs for n in custom(g)}
  found = compare_models(str(a), str(b), emulate=True, draws=1, left_out=LeftOut(edges=True))
  assert found.passed and {r.node for r in found.regions} == names
  paths = {n.path for n in found.nodes}
  assert "emulated" in paths and paths <= {"emulated", "not run"}
  rows = diff(a, b).nodes
  assert {r.node for r in rows} == names and all(r.replaces and r.ops for r in rows)
  inner = next(r.replaces[0] for r in rows if any(r.node == n.name for n in custom(graphs[-1])))
  assert inner in explain(model, inner, target="h200", margin=-20.0).region.nodes


def test_a_wrong_weight_in_a_branch_is_found(tmp_path):
  """Where the branch is taken, and where it is not."""
  model = subgraph_models.model(subgraph_models.chosen)
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0).model
  a, b = tmp_path / "a.onnx", tmp_path / "b.onnx"
  onnx.save(model, a)
  branch = next(x.g for x in holder(result).attribute if x.name == "then_branch")
  stored = {t.name: t for t in result.graph.initializer if t.name.endswith(".kmajor")}
  node, weight = next((n, stored[i]) for n in custom(branch) for i in n.input if i in stored)
  weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float16(1.5), weight.name))
  onnx.save(result, b)
  values = feeds(model, np.random.default_rng(0))
  for c in (True, False):
    given = values | {condition(model): np.array(c)}
    found = compare_models(str(a), str(b), emulate=True, inputs=given)
    wrong = {r.node for r in found.regions if not r.output.passed}
    assert not found.passed and wrong == {node.name}
    assert all(o.passed for o in found.outputs) != c


def test_what_is_run_again_counts_again():
  """The time of a body is taken as often as it is run, where that is known."""
  few, many = (
    mirage_onnx.optimize(
      subgraph_models.model(lambda net, x, n=n: subgraph_models.repeated(net, x, n)), target="h200", workers=1
    ).report["model"]["before_us"]
    for n in (1, 11)
  )
  program = import_model(load_model(subgraph_models.model(subgraph_models.repeated)))
  assert set(program.repeats.values()) == {3}
  assert many > 2 * few


def test_shapes_of_what_a_loop_carries():
  """One that grows is known of no size, also behind the Loop; one that stays is."""
  for grows in (False, True):
    net = Net(np.float32)
    x = net.input(4, 64)
    inner = Net(np.float32, prefix="in_")
    y = inner.Concat("had", x, axis=0) if grows else inner.Relu("had")
    on = inner.Identity("on")
    body = subgraph_models.subgraph(
      inner, "body",
      [("i", TensorProto.INT64, []), ("on", TensorProto.BOOL, []), ("had", None, [4, 64])],
      [(on, TensorProto.BOOL, []), (y, None, None)],
    )  # fmt: skip
    out = net.Loop(net.constant(3, np.int64), net.constant(True, np.bool_), x, body=body)
    loaded = load_model(net.model(net.Exp(out)))
    inside = loaded.tensors[f"{out}:body/had"]
    if grows:
      assert inside.shape[1] == 64 and isinstance(inside.shape[0], str)
    else:
      assert inside.shape == (4, 64)
    assert loaded.tensors[out].shape == inside.shape or grows


def test_inner_graphs_of_inner_graphs():
  """A Loop in a branch: its body reads the graph around the If by way of the branch."""
  net = Net(np.float32, seed=1)
  x = subgraph_models.layer(net, net.input(subgraph_models.ROWS, subgraph_models.HIDDEN))
  then = Net(np.float32, prefix="then_", seed=3)
  y = subgraph_models.repeated(then, then.Relu(x))
  same = Net(np.float32, prefix="else_")
  shape = [subgraph_models.ROWS, subgraph_models.HIDDEN]
  branches = {
    "then_branch": subgraph_models.subgraph(then, "a", [], [(y, None, shape)]),
    "else_branch": subgraph_models.subgraph(same, "b", [], [(same.Identity(x), None, shape)]),
  }
  taken = net.input(dtype=np.bool_)
  model = net.model(net.If(taken, **branches))
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0)
  loop = next(n for a in holder(result.model).attribute for n in a.g.node if n.op_type == "Loop")
  inside = custom(next(a.g for a in loop.attribute if a.HasField("g")))
  assert inside
  values = feeds(model, np.random.default_rng(0))
  for c in (True, False):
    given = values | {taken: np.array(c)}
    (want,), (body,) = run_model(model, given), run_model(result.model, given)
    assert body.tobytes() == want.tobytes()
    session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
    np.testing.assert_allclose(session.run(None, given)[0], want, rtol=1e-3, atol=1e-3)
    counts = mirage_onnx.launches(session)
    assert all((counts[n.name] >= 3) == c for n in inside)


def branch(name, node, kind=TensorProto.FLOAT):
  out = helper.make_tensor_value_info(node.output[0], kind, None)
  return helper.make_graph([node], name, [], [out])


def test_a_branch_of_which_types_are_not_known():
  """It stays as it is, and the reason says so; the other one is opened."""
  net = Net(np.float32)
  x = net.input(8, 64)
  net.inputs.append(helper.make_tensor_value_info("words", TensorProto.STRING, [3]))
  odd = helper.make_graph(
    [helper.make_node("Equal", ["words", "words"], ["s"]), helper.make_node("Cast", ["s"], ["n"], to=1)],
    "odd", [], [helper.make_tensor_value_info("n", TensorProto.FLOAT, None)],
  )  # fmt: skip
  plain = branch("plain", helper.make_node("Relu", [x], ["r"]))
  net.nodes.append(
    helper.make_node("If", [net.input(dtype=np.bool_)], ["y"], "it", then_branch=odd, else_branch=plain)
  )
  program = import_model(load_model(net.model("y")))
  (held,) = (n for n in program.nodes if n.op_type == "If")
  assert "run as they are: the type of 'words', which it reads, is not known" in held.barrier.reason
  assert [n.op_type for n in program.nodes] == ["If", "Relu"]


def with_wrong_sizes():
  """An If of which it, and its branches, are declared at sizes that they do not have: ONNX Runtime warns."""
  model = subgraph_models.model(subgraph_models.chosen)
  graphs = [a.g for a in holder(model).attribute]
  for graph, rows in zip((*graphs, model.graph), (subgraph_models.ROWS, 1, 3), strict=True):
    (output,) = graph.output
    output.type.tensor_type.elem_type = TensorProto.FLOAT16
    del output.type.tensor_type.shape.dim[:]
    for size in (rows, subgraph_models.HIDDEN + 1):
      output.type.tensor_type.shape.dim.add(dim_value=size)
  return model


def test_what_branches_declare_and_do_not_have_is_not_believed():
  model = with_wrong_sizes()
  found = load_model(model).tensors[model.graph.output[0].name]
  assert found.shape == (subgraph_models.ROWS, subgraph_models.HIDDEN)


@pytest.mark.slow
def test_what_branches_declare_and_do_not_have_keeps_no_kernel_out():
  model = with_wrong_sizes()
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0)
  assert all(custom(a.g) for a in holder(result.model).attribute)
  values = feeds(model, np.random.default_rng(0))
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  for got, want in zip(session.run(None, values), run_model(model, values), strict=True):
    assert np.linalg.norm(got.astype(float) - want) / np.linalg.norm(want.astype(float)) < 2e-3


def test_results_of_a_scan_have_the_rank_that_nodes_of_ours_tell_nobody():
  """ONNX Runtime's Scan refuses a body whose result has no shape; a body may leave it to inference."""
  inner = Net(np.float32, prefix="in_")
  state = inner.Tanh(inner.Add("had", "slice"))
  out = inner.Mul(state, inner.Sigmoid(inner.Sub(state, "slice")))
  row, free = ("had", None, [32]), [(state, None, None), (out, None, None)]
  body = subgraph_models.subgraph(inner, "body", [row, ("slice", None, [32])], free)
  net = Net(np.float32)
  given = [net.input(32), net.input(3, 32)]
  net.nodes.append(helper.make_node("Scan", given, ["last", "all"], "scan", body=body, num_scan_inputs=1))
  model = net.model("last", "all")
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-100.0)
  (body,) = (a.g for a in holder(result.model).attribute if a.HasField("g"))
  assert custom(body)
  values = feeds(model, np.random.default_rng(0))
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  for got, want in zip(session.run(None, values), run_model(model, values), strict=True):
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def nested_reader(model):
  """A custom node of a subgraph that reads a weight and two tensors of one type."""
  graphs = [a.g for a in holder(model).attribute if a.HasField("g")]
  return next(n for g in graphs for n in custom(g) if n.op_type.startswith("MuGraph_") and len(n.input) == 4)


def test_interfaces_of_nested_nodes_follow_from_the_original(optimized):
  model, result = optimized
  original, nodes = model.SerializeToString(), result.report["model"]["custom_nodes"]
  said = check_sources(result.model.SerializeToString(), strict=True, original=original)
  assert f"the interfaces of {nodes} of {nodes} nodes follow from the original" in said.text
  altered = onnx.ModelProto()
  altered.CopyFrom(result.model)
  node = nested_reader(altered)
  node.input[2], node.input[3] = node.input[3], node.input[2]
  with refused("SOURCE_MISMATCH", match=f"node '{node.name}': its input 2 is "):
    check_sources(altered.SerializeToString(), strict=True, original=original)


def test_graphs_beyond_the_most_stay_closed(monkeypatch):
  monkeypatch.setattr(opening, "MOST_SECTIONS", 1)
  flat = load_model(subgraph_models.model(subgraph_models.chosen)).flat
  assert [s.attribute for s in flat.sections] == ["else_branch"]
  ((node, why),) = flat.holders.values()
  assert node.op_type == "If" and why == "1 subgraphs come before it, and no more are opened"
