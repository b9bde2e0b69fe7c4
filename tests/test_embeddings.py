"""Embeddings of tokens, to the end: what reads the rows that ids name reads them in the table."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from small_models import Net, check_kernels, matches, replaced_ops

import mirage_onnx
from mirage_onnx.comparisons import verify
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.candidates import candidate
from mirage_onnx.match.repeated import RegionMaker

pytestmark = pytest.mark.usefixtures("searched_once")

WORDS, PLACES, D = 7, 5, 64
SHAPES = [(), (3,), (1, 4), (2, 3), (2, 1), (2, 1, 3)]


def words(net, *shape, dtype=np.int64):
  """Word, position and type added up, and their norm."""
  sizes, ids = (WORDS, PLACES, 2), [net.input(*shape, dtype=dtype) for _ in range(3)]
  tables = [net.weight(n, D) for n in sizes]
  word, place, kind = (net.Gather(t, i) for t, i in zip(tables, ids, strict=True))
  x = net.Add(net.Add(word, kind), place)
  return net.LayerNormalization(x, net.weight(D), net.weight(D))


def twice(net, *shape, dtype=np.int64):
  """What a norm reads, and what is added behind it."""
  x = net.Mul(net.Gather(net.weight(WORDS, D), net.input(*shape, dtype=dtype)), 8.0)
  return net.Add(net.MatMul(net.rms(x, net.weight(D)), net.weight(D, D)), x)


def cast(net, *shape):
  """Ids of 32 bits, in other dimensions, that the model widens."""
  ids = net.Cast(net.input(*shape, dtype=np.int32), to=onnx.TensorProto.INT64)
  x = net.Gather(net.weight(WORDS, D), net.Reshape(ids, net.constant([-1], np.int64)))
  return net.Tanh(net.Exp(x))


def computed(net, *shape):
  """The table is what the model computes."""
  table = net.Tanh(net.Neg(net.input(WORDS, D)))
  return net.Exp(net.Neg(net.Gather(table, net.input(*shape, dtype=np.int64))))


def optimized(model, **how):
  # ONNX Runtime's kernels are faster at these sizes: the margin takes ours anyway.
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0, **how)
  assert any(op.startswith("Gather_") for op in replaced_ops(result))
  return result


def tables_of(model):
  """Rows of the tables that the ids, by name, pick from, in order of the inputs."""
  made = {o: n for n in model.graph.node for o in n.output}
  sizes = {i.name: i.dims[0] for i in model.graph.initializer if i.dims}
  found = {}
  for n in model.graph.node:
    if n.op_type == "Gather":
      ids = n.input[1]
      while ids in made:
        ids = made[ids].input[0]
      found[ids] = sizes.get(n.input[0], WORDS)
  return found


def of_a_run(model, rng, sizes=None):
  """Values with ids from either end that come again, none beside the table."""
  tables, found = tables_of(model), {}
  for i in model.graph.input:
    kind, dims = i.type.tensor_type.elem_type, i.type.tensor_type.shape.dim
    shape = tuple((sizes or {}).get(d.dim_param, d.dim_value) for d in dims)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    n = tables.get(i.name, 1)
    x = rng.integers(-n, n, shape) if dtype.kind == "i" else rng.standard_normal(shape)
    found[i.name] = np.asarray(x).astype(dtype)
  return found


@pytest.mark.parametrize("build", [words, twice])
@pytest.mark.parametrize(
  ("dtype", "shape"),
  [*((np.int64, shape) for shape in SHAPES), (np.int32, ()), (np.int32, (2, 3))],
  ids=lambda of: of.__name__ if isinstance(of, type) else str(of),
)
def test_rows_are_read_in_the_table(build, dtype, shape, rng):
  net = Net(seed=3, opset=18)
  model = net.model(build(net, *shape, dtype=dtype))
  result = optimized(model)
  check_kernels(model, result, of_a_run(model, rng), atol=4e-3)
  assert "Gather" not in {n.op_type for n in result.model.graph.node}


@pytest.mark.parametrize("build", [cast, computed])
def test_ids_and_tables_of_the_model(build, rng):
  net = Net(seed=3, opset=18)
  model = net.model(build(net, 2, 3))
  check_kernels(model, optimized(model), of_a_run(model, rng), atol=4e-3)


@pytest.mark.parametrize("build", [words, twice])
@pytest.mark.parametrize("dims", [("batch", "seq"), ("batch", 1), (1, "seq"), (2, "seq")])
def test_as_many_as_a_run_says(build, dims, rng):
  net = Net(seed=3, opset=18)
  model = net.model(build(net, *dims))
  names = [d for d in dims if isinstance(d, str)]
  result = optimized(model, shapes={n: [1, 3] for n in names})
  assert "Gather" not in {n.op_type for n in result.model.graph.node}
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  plain = ReferenceEvaluator(model)
  for sizes in ({"batch": 1, "seq": 1}, {"batch": 2, "seq": 3}, {"batch": 3, "seq": 7}):
    values = of_a_run(model, rng, sizes)
    (got,), (want,) = session.run(None, values), plain.run(None, values)
    assert got.shape == want.shape
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=4e-3, atol=8e-3)
  assert all(mirage_onnx.launches(session).values())


def test_a_table_does_not_grow_with_the_ids(tmp_path):
  """``verify`` counts the whole table at every size: 512 rows beside 3 x 7 ids (was: SOURCE_MISMATCH)."""
  net = Net(seed=3, opset=18)
  source, path = tmp_path / "in.onnx", tmp_path / "out.onnx"
  onnx.save(net.model(words(net, "batch", "seq")), source)
  sizes = {"batch": [1, 3], "seq": [1, 7]}
  mirage_onnx.optimize(source, path, target="h200", workers=1, margin=-20.0, shapes=sizes)
  report = verify(source, path, shapes=sizes, emulate=True)
  assert report.passed and report.nodes[0].launches


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ids_that_are_not_there(dtype, rng):
  """The nearest row is read, nothing beside the table (the emulator would tell)."""
  net = Net(seed=3, opset=18)
  model = net.model(words(net, 2, 3, dtype=dtype))
  session = mirage_onnx.InferenceSession(optimized(model).model.SerializeToString(), emulate=True)
  values, tables = of_a_run(model, rng), tables_of(model)
  most = np.iinfo(dtype).max
  beside = {x: np.array([[n, -n - 1, 0], [most, -most, 1]], dtype) for x, n in tables.items()}
  near = {x: np.array([[n - 1, 0, 0], [n - 1, 0, 1]], dtype) for x, n in tables.items()}
  (got,), (nearest,) = (session.run(None, values | ids) for ids in (beside, near))
  assert got.tobytes() == nearest.tobytes()


def test_ids_of_other_dimensions_are_refused_in_a_run(rng):
  """Ids that are not as many as what they are added to."""
  net = Net(seed=3, opset=18)
  x = net.Gather(net.weight(WORDS, D), net.input("batch", "seq", dtype=np.int64))
  model = net.model(net.Tanh(net.Add(x, net.input("batch", "seq", D))))
  result = optimized(model, shapes={"batch": [2], "seq": [3]})
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  values = of_a_run(model, rng, {"batch": 2, "seq": 3})
  (other,) = (n for n, x in values.items() if x.dtype != np.int64)
  session.run(None, values)
  with pytest.raises(Exception, match="2"):
    session.run(None, values | {other: np.zeros((3, 2, D), np.float16)})


def test_ids_in_dimensions_that_do_not_nest():
  """Ids of 4x6 that the model makes 2x12 rows: no axes are dimensions of both."""
  net = Net(seed=3, opset=18)
  ids = net.Reshape(net.input(4, 6, dtype=np.int64), net.constant([24], np.int64))
  x = net.Reshape(net.Gather(net.weight(WORDS, D), ids), net.constant([2, 12, D], np.int64))
  program = import_model(load_model(net.model(net.Tanh(net.Exp(net.Mul(x, net.input(2, 1, D)))))))
  nodes = frozenset(n.name for n in program.nodes)
  refused = candidate(RegionMaker(program), nodes, frozenset(program.outputs))
  assert str(refused).startswith("OP_FORM: x0 has other dimensions than the rows that it names")


def test_cones_that_pick_rows_take_the_place_of_no_other():
  """What is offered is all that is offered of rows picked elsewhere, and more."""

  def offered(table, ids, axis):
    net = Net(seed=3, opset=18)
    x = net.Gather(net.weight(*table), net.input(ids, dtype=np.int64), axis=axis)
    for _ in range(3):
      y = net.MatMul(net.rms(x, net.weight(D)), net.weight(D, 3 * D))
      x = net.Add(net.MatMul(net.Mul(y, net.Sigmoid(y)), net.weight(3 * D, D)), x)
    return {(c.nodes, c.outputs) for c in matches(net.model(x)).candidates}

  other, found = offered((3, WORDS), D, 1), offered((WORDS, D), 3, 0)
  assert other < found
  assert all(any(n.startswith("Gather_") for n in nodes) for nodes, _ in found - other)
