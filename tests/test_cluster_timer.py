"""Regions that GPUs of a Ray cluster time are chosen as those timed here, also where nodes go away."""

import pickle
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import stand_ins
from fake_gpu import Drawn, FakeGpu
from ray_nodes import cluster  # noqa: F401  (a fixture)

import mirage_onnx
from mirage_onnx import cluster_timer
from mirage_onnx.cluster_timer import ClusterTimer, timing_on
from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.target import get_target
from mirage_onnx.tune import device, machine, measure
from mirage_onnx.tune.machine import Machine

MODEL = Path(__file__).resolve().parents[1] / "models" / "rmsnorm_linear.onnx"
REGION = stand_ins.region(nodes=("a",))


ASKED = []


class Bench:
  """Of a region: notes in ``ASKED`` what it is asked, and where."""

  def __init__(self, loaded, region, target, draws=None):
    self.where, self.open, self.thread = threading.current_thread().name, True, None

  def __enter__(self):
    return self

  def __exit__(self, *error):
    self.open = False
    ASKED.append(("closed", self.where))

  def ready(self):
    pass

  alone = measure.GpuBench.alone

  def complaints(self, some):
    assert self.open and self.thread in (None, threading.get_ident())
    self.thread = threading.get_ident()
    ASKED.append(("complaints", len(some)))
    if "refused" in some:
      raise RejectionError("INCONCLUSIVE", "nothing to compare with", ("a",))
    if "failed" in some:
      raise MemoryError("out of it")
    return [None] * len(some)

  def times_us(self, some, samples, *, beside_ort):
    assert self.open and self.thread == threading.get_ident()
    return np.ones((len(some) + beside_ort, samples))


class Nodes:
  """Ray, as far as it is asked; actors are here. ``lost``: numbers of questions at which a node goes away."""

  def __init__(self, machines, lost=()):
    self.machines, self.lost = list(machines), lost
    self.actors, self.killed, self.questions = [], [], 0
    self.exceptions = SimpleNamespace(RayError=ConnectionError)

  def cluster_resources(self):
    return {"GPU": float(len(self.machines)), "CPU": 4.0}

  def remote(self, **how):
    assert how["num_gpus"] == 1 and how["max_restarts"] == 0

    def made(kind):
      def actor(module):
        number = len(self.actors)
        self.actors.append(kind(module))
        return Actor(self, number)

      return SimpleNamespace(remote=actor)

    return made

  def put(self, value):
    return value

  def wait(self, asked, num_returns, timeout):
    return list(asked), []

  def get(self, one):
    return one()

  def kill(self, actor):
    self.killed.append(actor.number)


class Actor:
  def __init__(self, ray, number):
    self.ray, self.number = ray, number

  def __getattr__(self, method):
    def call(*given):
      if method == "facts":
        (source, _), here = cluster_timer._facts()
        which = f"GPU{self.number}" if self.number else here
        return lambda: pickle.dumps(((source, self.ray.machines[self.number]), which))
      if method == "ask":
        self.ray.questions += 1
        if self.ray.questions in self.ray.lost:
          raise ConnectionError("the node is gone")
      value = getattr(self.ray.actors[self.number], method)(*given)
      return lambda: value

    return SimpleNamespace(remote=call)


@pytest.fixture
def nodes(monkeypatch):
  ASKED.clear()
  own = Machine("a GPU", "1", "2", "3")
  monkeypatch.setattr(machine, "present_machine", lambda: own)
  monkeypatch.setattr(measure, "GpuBench", Bench)
  monkeypatch.setattr(cluster_timer, "_sent", lambda loaded: b"a model")
  monkeypatch.setattr(cluster_timer._Gpu, "_loaded", lambda self, model: model)
  monkeypatch.setattr("mirage_onnx.tune.kept_bench.kernel_text", str)

  def made(machines, **how):
    found = Nodes([own.text if m else {"gpu": "another"} for m in machines], **how)
    monkeypatch.setattr(cluster_timer, "connected", lambda workers: found)
    return found

  return made


def bench_of(timer, loaded="model"):
  return timer(loaded, REGION, "target", lambda: Bench(loaded, REGION, "target"))


def is_here(bench):
  return not isinstance(bench, cluster_timer.ClusterBench)


def test_only_other_nodes_with_the_same_gpu_are_asked(nodes):
  ray, timer = nodes([True, True, False]), ClusterTimer("auto")
  benches = [bench_of(timer) for _ in range(4)]
  # The first GPU is the one here, the third one of another kind.
  assert ray.killed == [0, 2] and len(timer._gpus) == 1
  assert sorted(map(is_here, benches)) == [False, False, True, True]
  for bench in benches:
    with bench as b:
      assert b.complaints(["x", "y"]) == [None, None]
      assert b.times_us(["y"], 5, beside_ort=True).shape == (2, 5)
  assert not +timer._busy and ASKED.count(("complaints", 2)) == 4
  assert len([a for a in ASKED if a[0] == "closed"]) == 4


def test_a_kernel_is_sent_once(nodes, monkeypatch):
  nodes([True, True])
  timer, sent = ClusterTimer("auto"), []
  ask = timer.ask
  monkeypatch.setattr(timer, "ask", lambda at, m, *g: sent.append(pickle.loads(g[1])[3]) or ask(at, m, *g))
  with bench_of(timer) as bench:
    bench.complaints(["x", "y"])
    bench.times_us(["y", "x"], 3, beside_ort=False)
  assert [sorted(s) for s in sent] == [["x", "y"], []]


def test_what_a_node_says_of_a_region_is_what_is_said_here(nodes):
  nodes([True, True])
  with bench_of(ClusterTimer("auto")) as bench:
    with pytest.raises(RejectionError) as refused:
      bench.complaints(["refused"])
    assert refused.value.rejection == Rejection("INCONCLUSIVE", "nothing to compare with", ("a",))
    with pytest.raises(RuntimeError, match="MemoryError: out of it"):
      bench.complaints(["failed"])


@pytest.mark.parametrize("gpus", [2, 3])
def test_a_node_that_goes_away_is_asked_no_more(nodes, gpus):
  """Another one is, with all that it needs; without another one the GPU here."""
  ray, timer = nodes([True] * gpus, lost=(2,)), ClusterTimer("auto")
  with bench_of(timer) as bench:
    assert bench.complaints(["x"]) == [None]
    assert bench.complaints(["x", "y"]) == [None, None]  # the node is gone
    assert bench.times_us(["x"], 3, beside_ort=True).shape == (2, 3)
    assert (bench._at is None) == (gpus == 2)
  assert ray.questions == (2 if gpus == 2 else 4)
  left = [bench_of(timer) for _ in range(4)]
  assert sum(not is_here(b) for b in left) == (0 if gpus == 2 else 2)


def test_numbers_and_predictions_ask_no_cluster(nodes):
  for workers, measured in ((None, True), (8, True), ("auto", False)):
    with timing_on(workers, measured=measured):
      assert not measure._elsewhere
  with timing_on("auto", measured=True):
    assert len(measure._elsewhere) == 1
  assert not measure._elsewhere


@pytest.mark.slow
def test_a_cluster_of_which_a_node_is_killed_writes_the_same(cluster, monkeypatch, tmp_path):  # noqa: F811
  """Regions are timed here and on the second node, which is gone after its first answer.

  All is the same but the record of what was looked at: which of the regions that stay had been timed before
  another one had won is a matter of who was ready first, on one machine, too.
  """
  FakeGpu(monkeypatch).us = Drawn()
  monkeypatch.setattr(machine, "present_machine", lambda: Machine("a fake", "0", "0", "0"))
  import ray

  # A node is a GPU; this process is at the first one.
  monkeypatch.setattr(device, "gpu_id", lambda: ray.get_runtime_context().get_node_id())
  monkeypatch.setattr("mirage_onnx.asked_targets.asked_target", lambda name: (get_target("h200"), True))
  asked, lost = [], []
  real, other = ClusterTimer.ask, ClusterTimer.other

  def ask(self, at, method, *given):
    found = real(self, at, method, *given)
    asked.append(pickle.loads(found)[0])
    if len(asked) == 1:
      cluster.remove_node(cluster.second, allow_graceful=False)
    return found

  monkeypatch.setattr(cluster_timer, "MEASURE", "ray_timer")
  monkeypatch.setattr(ClusterTimer, "ask", ask)
  monkeypatch.setattr(ClusterTimer, "other", lambda self, at: lost.append(at) or other(self, at))
  outputs = []
  for n, workers in enumerate((None, "auto")):
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / f"cache{n}"))
    output = tmp_path / f"{n}" / "out.onnx"
    output.parent.mkdir()
    how = {"target": "local", "model_check": False, "budget_s": 200.0}
    report = mirage_onnx.optimize(MODEL, output, workers=workers, **how).report
    model = onnx.load(output)
    assert [p.key for p in model.metadata_props] == ["mirage_onnx.version", "mirage_onnx.report"]
    del model.metadata_props[1]
    replaced = [(r["ops"], r["measured_us"], r["ugraph"]) for r in report["regions"] if r["choice"]]
    outputs.append((model.SerializeToString(deterministic=True), replaced))
  assert asked == ["value"] and lost == [0], "the second node timed, and went away"
  assert outputs[0] == outputs[1]
  assert outputs[0][1]
