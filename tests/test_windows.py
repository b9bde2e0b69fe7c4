"""Conv taken apart, from model to session: one region of its product or none, its times, its kernels."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper
from slow_nodes import choose_slow, near
from small_models import feeds, run_model
from window_models import patches

import mirage_onnx
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.importer.constants import known_values
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.cuts import PREDICTED, TIMED
from mirage_onnx.tune.node_models import distinct_nodes, node_feeds, node_model, whole_name
from mirage_onnx.tune.node_times import in_parts
from mirage_onnx.tune.ort_run import region_feeds, region_model

BEHIND = ("product", "sum", "back")


def small(**how):
  return load_model(
    patches(**{"image": (32, 32), "window": (8, 8), "columns": 64, "dtype": np.float16, **how})
  )


def of_product(loaded, limits=TIMED):
  found = find_candidates(import_model(loaded), limits).candidates
  return [c for c in found if any(n.endswith("/product") for n in c.nodes)], found


@pytest.mark.parametrize("limits", [TIMED, PREDICTED])
@pytest.mark.parametrize("bias", [True, False])
def test_a_region_has_all_from_the_product_on_or_nothing(limits, bias):
  loaded = small(behind=True, bias=bias)
  own, every = of_product(loaded, limits)
  for c in every:
    parts = {n.rpartition("/")[2] for n in c.nodes if "/" in n}
    assert not parts or parts == {"weights", "columns", *BEHIND} - (set() if bias else {"sum"})
  (y,) = (n.output[0] for n in loaded.proto.graph.node if n.name.startswith("Conv") and "/" not in n.name)
  (rows,) = (i for n in loaded.proto.graph.node if n.op_type == "Concat" for i in n.input[1:])
  # Where nothing is timed, and so nothing known of parts, there is the border that there was.
  border, last = rows if limits is TIMED else y, loaded.given.graph.output[0].name
  assert {o for c in own for o in c.outputs} == {border, last}
  (behind,) = (c for c in every if c.outputs == {last} and c not in own)
  assert border in behind.reads


def test_nobody_computes_the_product_again():
  """The sum of two layers has it in no region of its own, but where the first one is read."""
  model = patches((32, 32), (8, 8), 3, 64, dtype=np.float16, behind=True)
  y = model.graph.output[0].name
  model.graph.node.extend(
    [helper.make_node("Sigmoid", [y], ["t"], "t"), helper.make_node("Add", [y, "t"], ["z"], "z")]
  )
  model.graph.output[0].name = "z"
  own, _ = of_product(load_model(model))
  assert own and not any(c.nodes & {"t", "z"} for c in own)


def test_a_part_is_worth_what_the_whole_takes_less_what_stays():
  loaded = small()
  program = import_model(loaded)
  names = [n.name for n in program.nodes]
  found = [n for same in distinct_nodes(loaded, program, names).values() for n in same]
  values = known_values(loaded)
  whole = next(n for n in found if n.parts)
  assert whole.parts == tuple(names) and whole.node.op_type == "Conv"
  for n in found:
    model = node_model(loaded, program, n.node, values, n.parts)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert all(np.isfinite(y).all() for y in session.run(None, node_feeds(n.node, program, values)))
  assert [n.op_type for n in node_model(loaded, program, whole.node, values, whole.parts).graph.node] == [
    "Conv"
  ]
  turned, product, total, back = (next(n for n in names if n.endswith(f"/{p}")) for p in ("turned", *BEHIND))
  alone = {turned: 5.0, product: 10.0, total: 2.0, back: 3.0}

  def shared(us):
    times = in_parts({**alone, whole_name(names): us, "x": 1.0}, loaded, program)
    assert times.pop("x") == 1.0
    return times

  assert shared(100.0) == {turned: 5.0, product: 95.0, total: 0.0, back: 0.0}
  # Slower than the whole together: who has one side of them has the other's time to make up for.
  assert shared(12.0) == {turned: 0.0, product: 7.0, total: 0.0, back: 0.0}
  assert shared(17.0) == {turned: 2.0, product: 12.0, total: 0.0, back: 0.0}
  assert shared(4.0) == {turned: 0.0, product: 0.0, total: 0.0, back: 0.0}
  assert in_parts(alone, loaded, program) == dict.fromkeys(alone, 0.0)


@pytest.mark.parametrize("batch", [2, "batch"])
def test_onnxruntime_has_the_whole_in_a_race(batch):
  """With the image of which the rows are that our kernel reads."""
  loaded = small(bias=True, batch=batch, behind=batch == 2)
  own, _ = of_product(loaded)
  for c in own:
    model = region_model(loaded, c.region)
    ops = [n.op_type for n in model.graph.node]
    assert ops[0] == "Conv" and "MatMul" not in ops
    (rows,) = (i for i in c.region.given if not i.is_weight)
    shape = c.region.shape(rows.source)
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    feeds_of = region_feeds(loaded, c.region, {rows.source.name: data})
    (image,) = feeds_of.values()
    assert image.shape == (shape[0], 3, 32, 32)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    got = session.run([c.region.outputs[0].source.name], feeds_of)[0]
    parts = ort.InferenceSession(loaded.proto.SerializeToString(), providers=["CPUExecutionProvider"])
    if c.outputs == {loaded.proto.graph.output[0].name}:
      want = parts.run(None, {loaded.proto.graph.input[0].name: image})[0]
      np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=2e-3, atol=2e-3)


@pytest.fixture
def slow_products(monkeypatch):
  """A prediction chooses what takes ONNX Runtime 300 us."""
  choose_slow(monkeypatch, {"MatMul"}, other_us=0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("searched_once", "slow_products")
@pytest.mark.parametrize(
  "how",
  [
    {"behind": True},
    {"batch": "batch"},
    {"bias": False},
    {"image": (96,), "window": (8,)},
    {"dtype": np.float32},
  ],
  ids=str,
)
def test_kernels_of_the_product(how):
  """Rows are put in order in front of it."""
  model = patches(**{"image": (32, 32), "window": (8, 8), "columns": 64, "dtype": np.float16, **how})
  sizes = {"shapes": {"batch": [4]}} if "batch" in how else {}
  result = mirage_onnx.optimize(model, target="h100", workers=1, **sizes)
  ops = [n.op_type for n in result.model.graph.node]
  assert "Conv" not in ops and "MatMul" not in ops and ops[:3] == ["Reshape", "Transpose", "Reshape"]
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  for batch in (2, 5, 0) if "batch" in how else (2,):
    values = feeds(model, np.random.default_rng(0))
    values = {n: np.resize(v, (batch, *v.shape[1:])) for n, v in values.items()}
    wants = run_model(model, values)
    near(run_model(result.model, values), wants)
    near(session.run(None, values), wants)
  counts = mirage_onnx.launches(session)
  assert counts and all(n >= 1 for n in counts.values())


def of_a_run(net, x):
  """Weights and bias are inputs."""
  return [net.Conv(x, net.input(64, 3, 8, 8), net.input(64), strides=[8, 8])]


def shared(net, x):
  """Two have the same weights, and their results are one region's."""
  w = net.weight(64, 3, 8, 8, scale=0.1)
  return [net.Add(net.Conv(x, w, strides=[8, 8]), net.Conv(net.Tanh(x), w, strides=[8, 8]))]


def read_twice(net, x):
  y = net.Conv(x, net.weight(64, 3, 8, 8, scale=0.1), strides=[8, 8])
  return [y, net.Tanh(y)]


def chain(net, x):
  """The first product writes the rows of the second."""
  y = net.Relu(net.Conv(x, net.weight(64, 3, 4, 4, scale=0.1), strides=[4, 4]))
  return [net.Conv(y, net.weight(128, 64, 2, 2, scale=0.05), strides=[2, 2])]


@pytest.mark.slow
@pytest.mark.usefixtures("searched_once", "slow_products")
@pytest.mark.parametrize("made", [of_a_run, shared, read_twice, chain])
def test_kernels_among_others(net, made):
  model = net.model(*made(net, net.input(2, 3, 32, 32)))
  result = mirage_onnx.optimize(model, target="h100", workers=1)
  ops = [n.op_type for n in result.model.graph.node]
  assert not {"Conv", "MatMul"} & {*ops} and ops.count("MuGraph_0") == 1
  assert ops.count("Transpose") == (2 if made is shared else 1)
  values = feeds(model, np.random.default_rng(0))
  wants = run_model(model, values)
  near(run_model(result.model, values), wants)
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  near(session.run(None, values), wants)
