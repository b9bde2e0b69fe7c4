"""Names of dimensions that inference loses, followed through the graph, against ONNX Runtime."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from protos import new_node
from refused import refused

from mirage_onnx.errors import MirageError
from mirage_onnx.importer import import_model, inferring, load_model, sized_values

F32, I64 = TensorProto.FLOAT, TensorProto.INT64
WEIGHTS = {
  "zero": np.array(0), "one": np.array(1), "axis": np.array([0]), "four": np.array([4]),
  "sixteen": np.array([16]), "minus": np.array([-1]), "ones": np.array([1, 1, 1, 1]), "step": np.array(1),
  "table": np.zeros((100, 8), np.float32), "from": np.array([0]), "rows": np.array([12]),
}  # fmt: skip


def built(nodes, inputs, outputs):
  used = {i for n in nodes for i in n.input}
  graph = helper.make_graph(
    nodes, "g",
    [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
    [helper.make_tensor_value_info(o, t, None) for o, t in outputs.items()],
    [numpy_helper.from_array(a, n) for n, a in WEIGHTS.items() if n in used],
  )  # fmt: skip
  return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def shapes(model, *names):
  tensors = load_model(model).tensors
  return [tensors[n].shape for n in names]


def sizes_of_run(model, sizes):
  """The shapes of the outputs; None where the run fails."""
  values = {
    i.name: np.zeros(
      [d.dim_value or sizes[d.dim_param] for d in i.type.tensor_type.shape.dim],
      helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type),
    )
    for i in model.graph.input
  }
  try:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [y.shape for y in session.run(None, values)]
  except Exception:  # onnxruntime has classes of its own
    return None


#: As exporters write it: [batch, seq, 64] as [batch, seq, 4, 16], by its own Shape.
HEADS = [
  new_node("Shape", "x", "s"), new_node("Gather", "s zero", "b", axis=0),
  new_node("Gather", "s one", "l", axis=0), new_node("Unsqueeze", "b axis", "b1"),
  new_node("Unsqueeze", "l axis", "l1"), new_node("Concat", "b1 l1 four sixteen", "to", axis=0),
]  # fmt: skip
X, M = (F32, ["batch", "seq", 64]), (F32, ["batch", 1, 1, "seq"])
#: A mask over the heads: Expand to what Where and Equal make of a shape.
EXPANDED = [
  *HEADS, new_node("Reshape", "x to", "y"), new_node("Concat", "b1 minus l1 l1", "wanted", axis=0),
  new_node("Equal", "wanted minus", "free"), new_node("Where", "free ones wanted", "target"),
  new_node("Expand", "m target", "z"),
]  # fmt: skip


def test_shapes_that_a_graph_computes():
  model = built(EXPANDED, {"x": X, "m": M}, {"y": F32, "z": F32})
  assert shapes(model, "y", "z") == [("batch", "seq", 4, 16), ("batch", 1, "seq", "seq")]
  for batch, seq in ((1, 1), (1, 40), (7, 1), (5, 6)):
    run = sizes_of_run(model, {"batch": batch, "seq": seq})
    assert run == [(batch, seq, 4, 16), (batch, 1, seq, seq)]


def test_counting_up_to_a_size():
  """Range, a sum, ConstantOfShape; what is added up is a name of its own, the same wherever it is found."""
  nodes = [
    *HEADS, new_node("Add", "l one", "more"), new_node("Range", "zero more one", "r"),
    new_node("Unsqueeze", "more axis", "m1"), new_node("ConstantOfShape", "m1", "c"),
    new_node("Range", "zero l one", "places"),
  ]  # fmt: skip
  model = built(nodes, {"x": X}, {"r": I64, "c": F32, "places": I64})
  assert shapes(model, "r", "c", "places") == [("seq + 1",), ("seq + 1",), ("seq",)]
  assert sizes_of_run(model, {"batch": 2, "seq": 5}) == [(6,), (6,), (5,)]


def sliced(*more):
  nodes = [*HEADS[:1], new_node("Gather", "s rows1", "l", axis=0), new_node("Slice", "table from l", "p")]
  nodes[1].input[1] = "at"
  return [new_node("Constant", "", "at", value=numpy_helper.from_array(np.array([1]))), *nodes, *more]


def test_a_slice_of_a_table_has_a_size_of_its_own():
  model = built(sliced(), {"x": (F32, ["batch", "seq", 8])}, {"p": F32})
  ((rows, width),) = shapes(model, "p")
  assert rows not in ("seq", "batch") and isinstance(rows, str) and width == 8
  assert sizes_of_run(model, {"batch": 1, "seq": 200}) == [(100, 8)]


def test_what_positions_are_added_to_keeps_its_size():
  """A longer sequence would not run: the Add fails."""
  nodes = sliced(new_node("Add", "x p", "y"))
  model = built(nodes, {"x": (F32, ["batch", "seq", 8])}, {"y": F32})
  ((rows, _), y) = shapes(model, "p", "y")
  assert y == ("batch", "seq", 8) and rows != "seq"
  assert sizes_of_run(model, {"batch": 2, "seq": 99}) == [(2, 99, 8)]
  assert sizes_of_run(model, {"batch": 2, "seq": 101}) is None


def test_what_is_1_or_n_is_neither():
  """Of broadcasting: a run may have either."""
  model = built([new_node("Add", "x y", "z")], {"x": (F32, ["a", 4]), "y": (F32, ["b", 4])}, {"z": F32})
  ((rows, _),) = shapes(model, "z")
  assert rows not in ("a", "b")


def test_a_comparison_that_a_run_decides_is_not_followed():
  """Where(seq == 4, 1, seq) is no size that can be named."""
  nodes = [
    *HEADS, new_node("Equal", "l1 four", "is4"), new_node("Where", "is4 axis1 l1", "n"),
    new_node("ConstantOfShape", "n", "c"),
  ]  # fmt: skip
  nodes[-2].input[1] = "minus"
  nodes.insert(-1, new_node("Abs", "n", "n1"))
  nodes[-1].input[0] = "n1"
  model = built(nodes, {"x": X}, {"c": F32})
  ((n,),) = shapes(model, "c")
  assert isinstance(n, str) and n != "seq"
  assert sizes_of_run(model, {"batch": 1, "seq": 4}) == [(1,)]
  assert sizes_of_run(model, {"batch": 1, "seq": 5}) == [(5,)]


def test_regions_are_made_across_them():
  """The program has the inputs' names only, so a mask and scores of one shape can be fused."""
  nodes = [*EXPANDED, new_node("Add", "scores z", "masked"), new_node("Exp", "masked", "e")]
  scores = (F32, ["batch", 4, "seq", "seq"])
  program = import_model(load_model(built(nodes, {"x": X, "m": M, "scores": scores}, {"e": F32})))
  assert set(program.primes.values()) == {"batch", "seq"}
  barriers = {n.op_type for n in program.nodes if n.barrier}
  assert not barriers & {"Add", "Exp", "Expand"}


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs_of_sizes(seed):
  """Every named dimension is that of a run, whatever the graph computes, or the run fails."""
  rng = np.random.default_rng(seed)
  model = random_graph(rng)
  tensors = load_model(model).tensors
  names = [o.name for o in model.graph.output]
  ran = 0
  for a, b in ((1, 1), (3, 5), (4, 4), (12, 1), (2, 17)):
    found = sizes_of_run(model, {"a": a, "b": b})
    ran += found is not None
    for name, shape in zip(names, found or (), strict=False):
      for have, d in zip(shape, tensors[name].shape or (), strict=False):
        known = {"a": a, "b": b, "a + 1": a + 1, "b + 1": b + 1, "a + b": a + b}.get(d, d)
        assert isinstance(known, str) or known == have, (name, shape, tensors[name].shape)
  assert ran or seed


def random_graph(rng):
  """Sizes of x [a, b, 4] and y [b, 12], what arithmetic makes of them, and tensors of these shapes."""
  nodes = []
  scalars, tensors = ["zero", "one"], ["x", "y"]

  def add(op, inputs, **attributes):
    name = f"v{len(nodes)}"
    nodes.append(new_node(op, inputs, name, **attributes))
    return name

  for t, rank in (("x", 3), ("y", 2)):
    shape = add("Shape", t)
    for place in ("zero", "one")[:rank]:
      scalars.append(add("Gather", f"{shape} {place}", axis=0))
  outputs = {}
  for _ in range(10):
    kind = rng.integers(7)
    a, b = rng.choice(scalars, 2)
    if kind < 2:
      scalars.append(add(str(rng.choice(["Add", "Mul", "Sub", "Div"])), f"{a} {b}"))
    elif kind == 2:
      ends = [add("Unsqueeze", f"{s} axis") for s in (a, b)]
      target = add("Concat", " ".join(ends), axis=0)
      free = add("Equal", f"{target} minus")
      made = add("Where", f"{free} axis {target}")
      outputs[add("Expand", f"one {made}")] = I64
    elif kind == 3:
      outputs[add("Range", f"zero {a} one")] = I64
    elif kind == 4:
      end = add("Unsqueeze", f"{a} axis")
      tensors.append(add("Slice", f"{rng.choice(['y', 'table12'])} from {end}"))
    elif kind == 5:
      tensors.append(add("Add", " ".join(rng.choice(tensors, 2))))
    else:
      end = add("Unsqueeze", f"{a} axis")
      target = add("Concat", f"{end} minus", axis=0)
      tensors.append(add("Reshape", f"{rng.choice(tensors)} {target}"))
  outputs |= dict.fromkeys([t for t in tensors if t.startswith("v")], F32)
  for n in nodes:
    n.input[:] = ["table" if i == "table12" else i for i in n.input]
  if any("table" in n.input for n in nodes):
    WEIGHTS["table"] = np.zeros((100, 12), np.float32)
  try:
    return built(nodes, {"x": (F32, ["a", "b", 12]), "y": (F32, ["b", 12])}, outputs or {scalars[-1]: I64})
  finally:
    WEIGHTS["table"] = np.zeros((100, 8), np.float32)


def test_turns_end(monkeypatch):
  monkeypatch.setattr(inferring, "MOST_TURNS", 0)
  model = built(EXPANDED, {"x": X, "m": M}, {"y": F32, "z": F32})
  ((*_, last),) = shapes(model, "z")
  assert last != "seq"


@pytest.mark.parametrize(("limit", "most"), [("MOST_SIZES", 3), ("MOST_IN_ALL", 5)])
def test_sizes_that_are_followed_are_counted(monkeypatch, limit, most):
  """A shape of more elements than a tensor has dimensions is nobody's; Python takes time for each."""
  monkeypatch.setattr(sized_values, limit, most)  # the shape of the mask has four elements
  model = built(EXPANDED, {"x": X, "m": M}, {"y": F32, "z": F32})
  ((*_, last),) = shapes(model, "z")
  assert last != "seq"


def test_a_node_that_no_run_gets_through():
  """Sizes that are found out show it as declared ones would; nothing of it is told to inference."""
  nodes = [*HEADS, new_node("Reshape", "x to", "y"), new_node("MatMul", "y z", "w")]
  inputs = {"x": X, "z": (F32, ["batch", "seq", 5, 3])}  # 16 times 5
  with refused("MODEL_INVALID", "Incompatible dimensions"):
    load_model(built(nodes, inputs, {"w": F32}))


def test_what_inference_refuses_is_not_told_again(monkeypatch):
  model = built(EXPANDED, {"x": X, "m": M}, {"y": F32, "z": F32})
  known, asked = inferring.known_of, []

  def once(*arguments):
    asked.append(arguments[4] if len(arguments) > 4 else ())
    if len(asked) == 1:
      raise MirageError("MODEL_LIMIT", "the time is over")
    return known(*arguments)

  monkeypatch.setattr(inferring, "known_of", once)  # load_model has the first of its own
  tensors = load_model(model).tensors
  assert len(asked) == 1 and asked[0] and tensors["z"].shape[3] != "seq"
