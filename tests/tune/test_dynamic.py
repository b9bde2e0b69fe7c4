"""The choice for many sizes: points, instances that lose beside others, and measurements."""

import numpy as np
import onnxruntime as ort
import pytest
from small_models import Net, search_region

from mirage_onnx.compiler.candidates import Compiled
from mirage_onnx.errors import MirageError, Rejection
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.target import H200
from mirage_onnx.tune import tuning
from mirage_onnx.tune.declared_sizes import MOST_POINTS, checked_sizes, declared_sizes
from mirage_onnx.tune.dynamic import Dynamic
from mirage_onnx.tune.measure import Measured
from mirage_onnx.tune.ort_run import region_model
from mirage_onnx.tune.outcome import Outcome


def test_points(net):
  names = [f"n{i}" for i in range(5)]
  program = import_model(load_model(net.model(net.Tanh(net.input(*names, 8)))))
  found = declared_sizes(program, {"n0": [1, 2, 3, 4, 5, 6, 7]})
  assert len(found.points) <= MOST_POINTS + 1 and found.typical in found.points
  assert found.points[0] == dict.fromkeys(names, 1)
  assert found.points[-1] == {**dict.fromkeys(names, 256), "n0": 7}
  assert {p["n0"] for p in found.points} >= {1, 7}
  many = import_model(load_model(Net.model(net, net.Add(net.Tanh(net.input("a", 1)), 1.0))))
  assert set(declared_sizes(many, {}).typical) == {*names, "a"}
  for sizes in ({"a": []}, {"a": [0]}, {"a": [True]}):
    with pytest.raises(MirageError, match="'a'"):
      checked_sizes(sizes)


def test_formulas_of_other_names(net):
  """They have the sizes that the names make, unless the user says others."""
  names = ("past", "seq", "past + seq", "Min(512, seq)", "other + 1")
  program = import_model(load_model(net.model(*(net.Tanh(net.input(n, 8)) for n in names))))
  found = declared_sizes(program, {"seq": [4, 1024]})
  assert all(p["past + seq"] == p["past"] + p["seq"] for p in (*found.points, found.typical))
  assert all(p["Min(512, seq)"] == min(512, p["seq"]) for p in (*found.points, found.typical))
  assert found.sizes["Min(512, seq)"] == (4, 512) and found.sizes["seq"] == (4, 1024)
  assert found.sizes["other + 1"] == (1, 16, 256)  # nothing is called other
  assert {(p["past"], p["seq"]) for p in found.points} == {(p, s) for p in (1, 16, 256) for s in (4, 1024)}
  said = declared_sizes(program, {"Min(512, seq)": [7]})
  assert {p["Min(512, seq)"] for p in said.points} == {7}


def two_layers():
  net = Net()
  x = net.rms(net.input("batch", 64))
  return net, net.MatMul(x, net.weight(64, 32)), net.MatMul(x, net.weight(64, 48))


@pytest.mark.parametrize(("node_us", "lost"), [(9.0, 0), (0.6, 1), (0.1, 1)])
def test_losers(node_us, lost):
  """Each wins with the norm to itself; where they share its time, both may not."""
  net, *ends = two_layers()
  program = import_model(load_model(net.model(*ends)))
  declared = declared_sizes(program, {"batch": [2, 64]})

  def times(sizes):
    us = node_us if sizes["batch"] == 2 else 9.0
    return {n.name: us for n in program.nodes if "Mul" not in n.name}

  dynamic = Dynamic(program, declared, times, H200, 0.0)
  found = [c for c in find_candidates(program).candidates if len(c.outputs) == 1]
  chosen = []
  for end in ends:
    c = max((c for c in found if end in c.outputs), key=lambda c: len(c.nodes))
    best = search_region(c.region).candidates[0].candidate
    chosen.append((c, Outcome(c.region, (c,), 0.0, compiled=Compiled(best, (), ()))))
  refused = [o.rejection for o in dynamic.losers(chosen).values()]
  assert len(refused) == lost
  assert all(r and r.code == "NOT_FASTER" and "at batch=2: " in r.reason for r in refused)
  assert len(dynamic.losers(chosen[:1])) == 1  # the norm stays, for the other layer


def test_region_alone_where_the_model_computes_a_shape():
  net = Net(np.float32)
  x = net.input("n", "m", 8)
  shape = net.Concat(net.Slice(net.Shape(x), [0], [2]), [2, 4], axis=0)
  y = net.Exp(net.Reshape(net.Mul(net.Tanh(x), 0.5), shape))
  loaded = load_model(net.model(y))
  (region,) = (c.region for c in find_candidates(import_model(loaded)).candidates)
  model = region_model(loaded, region)
  (fed,) = model.graph.input
  values = np.random.default_rng(0).standard_normal(region.shape(region.inputs[0].tensor))
  feeds = {fed.name: values.astype(np.float32)}
  made, whole = (
    ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    for m in (model, loaded.proto)
  )
  assert np.array_equal(made.run(None, feeds)[0], whole.run(None, feeds)[0])


def test_measured_elsewhere(monkeypatch):
  """What wins at the typical sizes is timed at the smallest and largest too."""
  net, end, _ = two_layers()
  loaded = load_model(net.model(end))
  program = import_model(loaded)
  declared = declared_sizes(program, {"batch": [2, 64, 512, 1 << 30]})
  dynamic = Dynamic(program, declared, lambda sizes: {}, H200, 0.0)
  region = find_candidates(program, sizes=declared.typical).candidates[-1].region
  seen = []

  def measure(loaded, region, *rest):
    seen.append(region.extents[next(iter(region.runtime))])  # type: ignore[attr-defined]
    return None, Rejection("NOT_FASTER", "slow", ()) if seen[-1] == 2 else Measured(1, 2, 1)

  monkeypatch.setattr(tuning, "measure_region", measure)
  compiled = Compiled(None, (), ())  # type: ignore[arg-type]
  outcome = Outcome(region, (), 0.0, compiled=compiled, measured=Measured(1, 2, 1))
  found = tuning.elsewhere(loaded, outcome, compiled, dynamic, H200)
  assert seen == [2] and found.compiled is None and found.rejection is not None
  assert found.rejection.reason == "at batch=2: slow"
