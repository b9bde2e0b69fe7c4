"""Types and shapes of every value."""

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper
from protos import new_node, typed
from subgraph_models import chosen, scanned
from subgraph_models import model as of_subgraphs

from mirage_onnx import onnx_process
from mirage_onnx.importer import load_model
from mirage_onnx.ir import DType, Tensor

F32 = np.float32


def test_every_name_has_a_tensor(bench):
  nodes = [
    new_node("Shape", "x", "s"),
    new_node("Gather", "s i", "d"),
    new_node("MatMul", "x w", "a"),
    new_node("TopK", "a k", "top at"),
  ]
  model = bench.model(
    nodes, {"x": (np.float16, [2, 4])}, ["top", "d"],
    {"w": np.ones((4, 8), np.float16), "k": np.array([3]), "i": np.array(0)},
  )  # fmt: skip
  tensors = load_model(model).tensors
  assert set(tensors) == {"x", "s", "d", "a", "top", "at", "w", "k", "i"}
  assert tensors["a"] == Tensor("a", DType.F16, (2, 8))
  assert tensors["s"] == Tensor("s", DType.I64, (2,))
  assert tensors["d"] == Tensor("d", DType.I64, ())
  assert tensors["top"] == Tensor("top", DType.F16, (2, 3))


def test_symbolic_dimensions_keep_their_names(bench):
  node = new_node("MatMul", "x w", "y")
  model = bench.model(node, {"x": (F32, ["batch", None, 4])}, ["y"], {"w": np.ones((4, 8), F32)})
  tensors = load_model(model).tensors
  assert tensors["y"].shape[0] == tensors["x"].shape[0] == "batch"
  assert isinstance(tensors["y"].shape[1], str)
  assert tensors["y"].shape[2] == 8


def test_shapes_computed_in_the_graph(bench):
  """Inference follows Shape -> Slice -> Concat -> Reshape by value."""
  nodes = [
    new_node("Shape", "x", "s"),
    new_node("Slice", "s zero one", "head"),
    new_node("Concat", "head tail", "target", axis=0),
    new_node("Reshape", "x target", "y"),
  ]
  model = bench.model(
    nodes, {"x": (F32, [2, 12])}, ["y"],
    {"zero": np.array([0]), "one": np.array([1]), "tail": np.array([3, -1])},
  )  # fmt: skip
  assert load_model(model).tensors["y"].shape == (2, 3, 4)


@pytest.mark.parametrize(
  ("onnx_type", "dtype"),
  [(TensorProto.BFLOAT16, DType.BF16), (TensorProto.DOUBLE, DType.F64), (TensorProto.INT8, DType.I8),
   (TensorProto.STRING, None), (TensorProto.BOOL, DType.BOOL)],
)  # fmt: skip
def test_types(bench, onnx_type, dtype):
  node = new_node("Identity", "x", "y")
  tensors = load_model(bench.model(node, {"x": (onnx_type, [2])}, ["y"])).tensors
  assert tensors["y"] == Tensor("y", dtype, (2,))


def test_sequences_have_no_shape(bench):
  node = new_node("SequenceConstruct", "x", "y")
  tensors = load_model(bench.model(node, {"x": (F32, [2])}, ["y"])).tensors
  assert tensors["y"] == Tensor("y", None, None)


def test_names_of_dimensions(bench):
  """Those that inference finds go before those of the file, and these before new ones."""
  nodes = [
    new_node("Relu", "x", "a"),
    new_node("NonZero", "x", "b"),
    new_node("Cast", "b", "c", to=TensorProto.FLOAT),
    new_node("Foo", "x", "d", domain="my.domain"),
    new_node("NonZero", "d", "e"),
  ]
  model = bench.model(nodes, {"x": (F32, ["n", 4])}, ["e"], domains=["my.domain"])
  for name, shape in (("a", ["unk__0", 4]), ("b", [2, "found"]), ("d", ["n", "unk__1"])):
    kind = TensorProto.INT64 if name == "b" else TensorProto.FLOAT
    model.graph.value_info.append(typed(name, kind, shape))
  tensors = load_model(model).tensors
  assert [tensors[k].shape for k in "abcd"] == [
    ("n", 4),
    (2, "found"),
    (2, "found"),
    ("n", "unk__1"),
  ]
  assert tensors["e"].shape[1] not in ("n", "found", "unk__1", "unk__0")


def test_unknown_rank(bench):
  node = new_node("Relu", "x", "y")
  model = bench.model(node, {"x": (F32, [2])}, ["y"])
  model.graph.input[0].type.tensor_type.ClearField("shape")
  assert load_model(model).tensors["x"] == Tensor("x", DType.F32, None)
  assert bench.barrier(model) == "RANK_UNKNOWN: Relu: the shape of 'x' is not known"


def test_operator_whose_inference_crashes(bench):
  nodes = [
    new_node("Foo", "x", "u", domain="my.domain"),
    new_node("RegexFullMatch", "u", "y", pattern="a"),
  ]
  model = bench.model(nodes, {"x": (F32, [2])}, ["y"], opset=20, domains=["my.domain"])
  assert load_model(model).tensors["y"] == Tensor("y", None, None)


def test_functions_that_onnx_cannot_look_into(bench):
  """A body may hold what only ONNX Runtime knows; outside it types go on where declared."""
  body = [
    new_node("SimplifiedLayerNormalization", "a a", "u"),
    new_node("Relu", "u", "b"),
  ]
  nodes = [
    new_node("F", "x", "u", domain="my.domain"),
    new_node("Relu", "x", "y"),
  ]
  model = bench.model(nodes, {"x": (F32, [2])}, ["u", "y"], domains=["my.domain"])
  opsets = [helper.make_opsetid("", 20)]
  model.functions.append(helper.make_function("my.domain", "F", ["a"], ["b"], body, opsets))
  program = bench.program(model)
  assert [n.barrier and n.barrier.code for n in program.nodes] == ["CUSTOM_DOMAIN", None]


@pytest.mark.parametrize("name", [("my.domain", "F"), ("com.microsoft", "Gelu")])
def test_functions_that_onnx_can_look_into(bench, name):
  """Also those that are called as an operator is whose results have other shapes."""
  body = [new_node("Transpose", "a", "b")]
  node = new_node(name[1], "x", "y", domain=name[0])
  model = bench.model(node, {"x": (F32, [2, 3])}, ["y"], domains=[name[0]])
  opsets = [helper.make_opsetid("", 20)]
  model.functions.append(helper.make_function(*name, ["a"], ["b"], body, opsets))
  assert load_model(model).tensors["y"].shape == (3, 2)


def test_negative_dimensions_are_unknown(bench):
  model = bench.model(new_node("Relu", "x", "y"), {"x": (F32, [-1, 3])}, ["y"])
  assert load_model(model).tensors["x"].shape == ("x:0", 3)


def test_attributes_of_unknown_domains_are_not_sent_around(monkeypatch):
  """Trees are hundreds of megabytes of attributes: shape inference took 8 s and 3 GB for nothing."""
  sent = []
  real = onnx_process.Onnx.inferred

  def inferred(self, model, **how):
    sent.append(model.ByteSize())
    return real(self, model, **how)

  monkeypatch.setattr(onnx_process.Onnx, "inferred", inferred)
  trees = helper.make_node(
    "TreeEnsembleRegressor", ["x"], ["t"], domain="ai.onnx.ml", n_targets=1, nodes_values=[0.5] * (1 << 16)
  )
  nodes = [trees, helper.make_node("Reshape", ["t", "s"], ["r"]), helper.make_node("Exp", ["r"], ["y"])]
  graph = helper.make_graph(
    nodes, "g", [typed("x", TensorProto.FLOAT, [4, 8])], [typed("y", TensorProto.FLOAT, None)],
    [helper.make_tensor("s", TensorProto.INT64, [2], [2, 2])],
  )  # fmt: skip
  opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
  loaded = load_model(helper.make_model(graph, opset_imports=opsets))
  assert sent and max(sent) < 2000 < loaded.given.ByteSize()
  assert loaded.tensors["t"].shape is None and loaded.tensors["s"].shape == (2,)
  assert loaded.given.graph.node[0] == trees


def _graphs(graph):
  yield graph
  for node in graph.node:
    for a in node.attribute:
      if a.HasField("g"):
        yield from _graphs(a.g)


@pytest.mark.parametrize("elements", [None, TensorProto.UNDEFINED], ids=["no type", "no element type"])
@pytest.mark.parametrize("inner", [None, chosen, scanned], ids=["flat", "If", "Scan"])
def test_values_that_say_no_type_have_the_one_that_is_inferred(inner, elements):
  """Of such a model nothing was replaced: what it says of its values was taken for all that is known."""
  model = of_subgraphs(inner or (lambda net, x: net.Tanh(net.Exp(x))))
  plain = load_model(model)
  other = ModelProto()
  other.CopyFrom(model)
  for graph in _graphs(other.graph):
    said = {v.name for v in (*graph.input, *graph.output)}
    for name in [o for n in graph.node for o in n.output if o not in said]:
      value = graph.value_info.add(name=name)
      if elements is not None:
        value.type.tensor_type.elem_type = elements
  found = load_model(other)
  assert sum(len(g.value_info) for g in _graphs(other.graph)) > 2
  assert found.tensors == plain.tensors and None not in {t.dtype for t in found.tensors.values()}


@pytest.mark.parametrize("end", [(1 << 31) - 1, (1 << 63) - 1])
def test_slices_that_readers_understand_in_two_ways(bench, end):
  """Backwards "to the end" from the first element: nothing to ONNX, one element to ONNX Runtime."""
  parts = {"start": [0], "end": [end], "axis": [1], "step": [-1]}
  again = ["s", "start", "end", "start", "step"]
  nodes = [
    helper.make_node("Slice", ["x", *parts], ["y"]),
    helper.make_node("Shape", ["x"], ["s"]),
    helper.make_node("Slice", again, ["first"]),
  ]
  weights = {n: np.array(v, np.int64) for n, v in parts.items()}
  model = bench.model(nodes, {"x": (np.float32, [2, 3])}, ["y", "first"], weights)
  theirs = bench.run(model, {"x": np.zeros((2, 3), np.float32)})
  assert theirs["y"].shape == (2, 1) and theirs["first"].tolist() == [2]
  loaded = load_model(model)
  assert loaded.tensors["y"].shape is None and "first" not in loaded.folded


@pytest.mark.parametrize("op", ["Squeeze", "Unsqueeze"])
@pytest.mark.parametrize("opset", [7, 10, 11])
def test_axes_below_0_of_old_opsets(bench, op, opset):
  """Before opset 11 ONNX has none and ONNX Runtime takes them: to onnx's inference nothing is moved."""
  model, feeds = bench.one(op, [np.ones((3, 1), np.float32)], opset=opset, axes=[-1])
  (got,) = bench.run(model, feeds).values()
  assert got.shape == {"Squeeze": (3,), "Unsqueeze": (3, 1, 1)}[op]
  assert load_model(model).tensors["y0"].shape == (None if opset < 11 else got.shape)


def test_parts_of_no_elements(bench):
  """ONNX Runtime leaves them out whatever they are beside that; onnx's inference takes their batch of 1."""
  nodes = [
    helper.make_node("Concat", ["none", "x"], ["y"], axis=1),
    helper.make_node("Relu", ["y"], ["r"]),
    helper.make_node("Concat", ["like", "four"], ["z"], axis=1),
  ]
  weights = {"none": np.ones((1, 0, 4), np.float32), "like": np.ones((2, 0, 4), np.float32)}
  weights["four"] = np.ones((2, 4, 4), np.float32)
  model = bench.model(nodes, {"x": (np.float32, ["batch", 3, 4])}, ["r", "z"], weights)
  theirs = bench.run(model, {"x": np.ones((2, 3, 4), np.float32)})
  assert (theirs["r"].shape, theirs["z"].shape) == ((2, 3, 4), (2, 4, 4))
  found = load_model(model).tensors
  assert (found["y"].shape, found["r"].shape, found["z"].shape) == (None, None, (2, 4, 4))


POOL = {"kernel_shape": [2], "auto_pad": "SAME_UPPER"}
MHA = "MultiHeadAttention"
OTHERWISE = {
  "PRelu": ("", {}, [(4, 1, 3), (5, 1)]),
  "Einsum": ("", {"equation": "ij,ij->i"}, [(1, 3), (2, 3)]),
  "STFT": ("", {}, [(1, 128, 1), (), None, ()]),
  "MaxPool": ("", {**POOL, "strides": [3], "dilations": [2]}, [(1, 2, 6)]),
  MHA: ("com.microsoft", {"num_heads": 2}, [(1, 3, 4), (1, 5, 4), (1, 5, 8)]),
}  # fmt: skip


@pytest.mark.parametrize("op", OTHERWISE)
def test_results_that_onnx_infers_otherwise(bench, op):
  """Kernels behind these had the shape of onnx's inference, and refused what a run brought."""
  domain, attributes, shapes = OTHERWISE[op]
  arrays = [None if s is None else np.ones(s, np.float32) for s in shapes]
  weights = ()
  if op == "STFT":
    arrays[1], arrays[3], weights = np.array(8), np.array(16), (1, 3)
  model, feeds = bench.one(op, arrays, weights, domain=domain, **attributes)
  assert bench.run(model, feeds)["y0"].shape != shapes[0]
  assert load_model(model).tensors["y0"].shape is None


@pytest.mark.parametrize(
  ("op", "domain", "attributes", "shapes", "made"),
  [
    ("PRelu", "", {}, [(4, 5, 3), (5, 1)], (4, 5, 3)),
    ("Einsum", "", {"equation": "...ij,kj->...ik"}, [(2, 1, 3), (2, 3)], (2, 1, 2)),
    ("MaxPool", "", {**POOL, "strides": [2]}, [(1, 2, 5)], (1, 2, 3)),
    (MHA, "com.microsoft", {"num_heads": 2}, [(1, 3, 4), (1, 2, 5, 2), (1, 2, 5, 2)], (1, 3, 4)),
  ],
)  # fmt: skip
def test_their_usual_forms_are_inferred(bench, op, domain, attributes, shapes, made):
  arrays = [np.ones(s, np.float32) for s in shapes]
  model, feeds = bench.one(op, arrays, domain=domain, **attributes)
  assert bench.run(model, feeds)["y0"].shape == made
  assert load_model(model).tensors["y0"].shape == made
