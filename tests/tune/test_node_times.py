"""Single nodes as models, and what is asked of the GPU about them."""

import threading
import time
from concurrent.futures import Future

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from cached_steps import cached_step
from projecting_models import LENGTH, projecting

from mirage_onnx import pipeline
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.importer.constants import known_values
from mirage_onnx.importer.split_projections import parts_of_one
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.cuts import TIMED
from mirage_onnx.superopt.kept_folder import KeptFolder
from mirage_onnx.target import H200
from mirage_onnx.tune import measure, node_times
from mirage_onnx.tune.machine import Machine
from mirage_onnx.tune.node_models import distinct_nodes, node_feeds, node_model, whole_name
from mirage_onnx.tune.node_times import (
  WRITES,
  ask_nodes,
  first_longer_us,
  in_parts,
  node_us,
  share_of,
  timed_beside,
)
from mirage_onnx.tune.ort_run import shared_caches


@pytest.fixture
def layers(net):
  """Two equal layers of a norm, a product and a Softmax behind a reshape."""
  x = net.input(6, 32)
  for _ in range(2):
    x = net.Softmax(net.MatMul(net.rms(x), net.weight(32, 32)), axis=-1)
  loaded = load_model(net.model(net.Reshape(x, net.const(np.array([3, 64])))))
  return loaded, import_model(loaded)


def test_equal_nodes_are_one_and_run_alone(layers):
  loaded, program = layers
  found = distinct_nodes(loaded, program, [n.name for n in program.nodes])
  counts = {same[0].node.op_type: len(same) for same in found.values()}
  assert counts["MatMul"] == 2 and counts["Softmax"] == 2 and "Reshape" not in counts
  values = known_values(loaded)
  for first, *_ in found.values():
    model = node_model(loaded, program, first.node, values)
    onnx.checker.check_model(model)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for y in session.run(None, node_feeds(first.node, program, values)):
      assert np.isfinite(y.astype(np.float64)).all()


def test_nodes_of_indices_are_not_asked(net):
  ids = net.input(4, dtype=np.int64)
  loaded = load_model(net.model(net.Tanh(net.Gather(net.weight(16, 8), ids))))
  program = import_model(loaded)
  found = distinct_nodes(loaded, program, [n.name for n in program.nodes])
  assert [same[0].node.op_type for same in found.values()] == ["Tanh"]


def test_most_bytes_first_until_the_time_is_over(layers, tmp_path):
  loaded, program = layers
  nodes = distinct_nodes(loaded, program, [n.name for n in program.nodes])
  asked = []

  def clock(n):
    asked.append(n)
    return np.array([[9.0] * node_times.SAMPLES, [17.0] * node_times.SAMPLES])

  store = KeptFolder(tmp_path, {"gpu": "x"})
  found = ask_nodes(nodes, clock, store, time.monotonic() + 60)
  moved = [len(nodes[n.text]) * n.moved_bytes for n in asked]
  assert moved == sorted(moved, reverse=True) and len(asked) == len(nodes)
  assert set(found.values()) == {2.0}
  again = ask_nodes(nodes, lambda n: pytest.fail("asked again"), store, time.monotonic() + 60)
  assert again == found
  assert ask_nodes(nodes, clock, store, time.monotonic() - 1) == {}


def test_what_fails_at_a_node_is_unknown_of_this_node(layers, tmp_path):
  loaded, program = layers
  nodes = distinct_nodes(loaded, program, [n.name for n in program.nodes])

  def clock(n):
    if n.node.op_type == "MatMul":
      raise RuntimeError("out of memory")
    return np.full((2, node_times.SAMPLES), 4.0)

  found = ask_nodes(nodes, clock, KeptFolder(tmp_path, {}), time.monotonic() + 60)
  types = {n.name: n.op_type for n in program.nodes}
  assert found and "MatMul" not in {types[n] for n in found}


def test_nodes_are_timed_while_regions_are_looked_for(layers, tmp_path, monkeypatch):
  """What turns out to be in no region is not asked about any more, and is no part of the answer."""
  loaded, program = layers
  types = {n.name: n.op_type for n in program.nodes}
  asked, seen = [], threading.Event()

  def clock(n):
    asked.append(n.node.op_type)
    seen.set()
    return np.full((2, node_times.SAMPLES), 4.0)

  monkeypatch.setattr(node_times, "gpu_clock", lambda *_: clock)
  monkeypatch.setattr(node_times, "present_machine", lambda: Machine("x", "", "", ""))
  monkeypatch.setattr(node_times, "cache_folder", lambda name: tmp_path)
  products = {n for n, op in types.items() if op == "MatMul"}

  def find():
    assert seen.wait(20)
    return "found"

  more = {"until": time.monotonic() + 60}
  found, us = timed_beside(find, lambda f: products, loaded, program, types, H200, **more)
  assert found == "found" and us.keys() == products
  first = [*asked]
  _, again = timed_beside(lambda: "", lambda f: products, loaded, program, types, H200, **more)
  assert again == us and asked.count("MatMul") == first.count("MatMul")
  with pytest.raises(ValueError, match="no regions"):
    timed_beside(lambda: int("no regions"), lambda f: products, loaded, program, types, H200, **more)


def test_large_weights_count_cold():
  times = np.array([[20.0, 21.0, 22.0], [40.0, 41.0, 42.0]])
  assert node_us(times, 0) == 5.0
  assert node_us(times, 1 << 20) == 21.0
  assert node_us(times[::-1], 0) == 0.0  # noise
  assert node_us(times, 1 << 20, 3.0) == 18.0 and node_us(times, 1 << 20, 30.0) == 5.0


def test_what_the_first_kernel_takes_longer_is_no_part_of_a_node():
  small = [np.array([[3.0 + k] * 3, [3.0 + k + 4 * k] * 3]) for k in (1.0, 2.0, 4.0)]
  assert first_longer_us(small) == 3.0
  assert first_longer_us(small[:2]) == 0.0


def test_regions_are_chosen_by_what_was_measured(layers, monkeypatch):
  """A time that the table does not have is what a region is worth."""
  loaded, program = layers
  names = {n.name: n.op_type for n in program.nodes}
  asked = []

  def measured(loaded, program, some, target, *, until, useful):
    asked.extend(some)
    return {n: 1e4 for n in some if names[n] == "Softmax"}

  monkeypatch.setattr(node_times, "measured_node_us", measured)
  options = pipeline.Options(H200, measure=True, budget_s=0.0)
  run = pipeline.run(loaded, options)
  assert asked and all(names[n] != "Reshape" for n in asked)
  worth = [o.baseline_us for o in run.outcomes.values() if any(names[n] == "Softmax" for n in o.region.nodes)]
  assert worth and min(worth) >= 1e4


def test_a_step_with_a_cache_is_asked_and_shared_out():
  """One operator, two nodes of the graph that is searched; its lengths are of a cache that is half full."""
  loaded = load_model(cached_step(2, 2, 2, 32, 40))
  program = import_model(loaded)
  found = distinct_nodes(loaded, program, [n.name for n in program.nodes])
  ((_, both),) = found.items()
  assert [n.node.name for n in both] == ["it", "it/attended"] and both[0].weight_bytes > 2 * 2 * 2 * 40 * 32
  values = known_values(loaded)
  model = node_model(loaded, program, both[0].node, values)
  feeds = node_feeds(both[0].node, program, values)
  assert feeds["lengths"].tolist() == [19, 19] and feeds["total"] == 20
  assert shared_caches(model.graph) == {"present_k": "past_k", "present_v": "past_v"}
  session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
  assert all(np.isfinite(y.astype(float)).all() for y in session.run(None, feeds))
  shared = in_parts({"it": 20.0, "it/attended": 20.0, "other": 3.0}, loaded, program)
  assert shared == {"it": 4.0, "it/attended": 16.0, "other": 3.0}


def test_a_part_of_a_step_is_timed_beside_its_share(monkeypatch):
  """Both parts were faster than the whole, and slower together."""
  loaded = load_model(cached_step(2, 2, 2, 32, 40))
  shares = [share_of(loaded, nodes) for nodes in ({"it"}, {"it/attended"}, {"it", "it/attended"}, {"x"})]
  assert shares == [WRITES, 1 - WRITES, 1.0, 1.0]
  found = find_candidates(import_model(loaded), TIMED).candidates
  monkeypatch.setattr(measure, "looked_us", lambda gpu, arms, samples: np.full((len(arms), samples), 10.0))
  for c in found:
    bench = measure.GpuBench(loaded, c.region, H200, lambda: [({}, None)])
    bench.__dict__.update(_gpu=None, _ort=None, _timed=lambda c: c)
    share = WRITES if c.nodes == {"it"} else 1 - WRITES
    times = bench.times_us([None, None], 3, beside_ort=True)
    assert times.tolist() == [[10.0 * share] * 3, [10.0] * 3, [10.0] * 3]
    assert bench.times_us([None], 3, beside_ort=False).tolist() == [[10.0] * 3]


def test_parts_are_asked_with_the_whole_and_each_other(tmp_path):
  """Where one of them is of use: what the others take is part of what it is worth."""
  loaded = load_model(projecting())
  program = import_model(loaded)
  (parts,) = parts_of_one(loaded.proto, loaded.node_names)
  nodes = distinct_nodes(loaded, program, [n.name for n in program.nodes])
  asked = []

  def clock(n):
    asked.append(n.node.name)
    return np.full((2, node_times.SAMPLES), 5.0)

  for wanted in ({parts[0]}, {*parts[1:]}, {n.name for n in program.nodes} - {*parts}):
    useful = Future()
    useful.set_result(wanted)
    asked.clear()
    found = ask_nodes(
      nodes, clock, KeptFolder(tmp_path / str(len(wanted)), {}), time.monotonic() + 60, useful
    )
    own = {*parts, whole_name(parts)}
    assert found.keys() & own == (own if wanted & {*parts} else set()) == {*asked} & own


@pytest.mark.parametrize("how", [{}, {"mask": "keys"}, {"mask": "ends"}], ids=str)
def test_an_operator_of_three_nodes_is_asked_as_a_whole(how):
  """The parts are asked, too, and have what the whole takes; what hides keys hides none."""
  loaded = load_model(projecting(**how))
  program = import_model(loaded)
  (parts,) = parts_of_one(loaded.proto, loaded.node_names)
  found = [n for same in distinct_nodes(loaded, program, parts).values() for n in same]
  assert [n.parts for n in found] == [(), (), (), parts]
  values, models = known_values(loaded), []
  for n in found:
    models.append(node_model(loaded, program, n.node, values, n.parts))
    feeds = node_feeds(n.node, program, values)
    session = ort.InferenceSession(models[-1].SerializeToString(), providers=["CPUExecutionProvider"])
    assert all(np.isfinite(y).all() for y in session.run(None, feeds))
    assert all((x == (1 if x.ndim == 2 else LENGTH)).all() for x in feeds.values() if x.dtype == np.int32)
  (whole,) = models[-1].graph.node
  assert whole.op_type == "Attention" and found[-1].weight_bytes == sum(n.weight_bytes for n in found[:-1])
  asked = {n.node.name: us for n, us in zip(found, (4.0, 1.0, 5.0, 20.0), strict=True)}
  by_part = lambda *us: dict(zip(parts, us, strict=True))  # noqa: E731
  assert in_parts({**asked, "x": 1.0}, loaded, program) == {**by_part(8.0, 2.0, 10.0), "x": 1.0}
  del asked[parts[2]]
  assert in_parts(asked, loaded, program) == by_part(4.0, 1.0, 15.0)
  assert distinct_nodes(loaded, program, ["x"]) == {}
