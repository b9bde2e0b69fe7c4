"""A lock gives the same model again: several nodes of a region, regions in one node, sizes of a run."""

import json
from dataclasses import replace

import onnx
import pytest
from small_models import Net

import mirage_onnx
from mirage_onnx import locking, pipeline
from mirage_onnx.errors import MirageError, Rejection
from mirage_onnx.importer import load_model
from mirage_onnx.target import H200
from mirage_onnx.tune import beside, replay
from mirage_onnx.tune.lock import read_lock, write_lock
from mirage_onnx.tune.race import Measured

OPTIONS = pipeline.Options(H200, margin=-20.0)


def projections(net):
  """A norm in front of two projections."""
  x = net.rms(net.input(4, 64))
  return net.model(*(net.Relu(net.MatMul(x, net.weight(64, n))) for n in (96, 48)))


def layers(net, width=64):
  """The same region twice, with weights of its own."""
  x = net.input(4, width)
  for _ in range(2):
    x = net.Tanh(net.MatMul(net.rms(x), net.weight(width, width)))
  return net.model(x)


def replayed(loaded, run, tmp_path, options=OPTIONS):
  """The lock of a run, through a file, and what is made of it."""
  out = tmp_path / "out.onnx"
  out.write_bytes(run.model.SerializeToString(deterministic=True))
  lock = locking.lock_of(run, loaded, options, None, out)
  write_lock(tmp_path / "lock", lock)
  assert read_lock(tmp_path / "lock") == lock
  again = pipeline.run(loaded, replace(options, lock=lock))
  return lock, again, again.model.SerializeToString(deterministic=True) == out.read_bytes()


def test_every_instance(tmp_path):
  loaded = load_model(layers(Net(seed=2)))
  run = pipeline.run(loaded, OPTIONS)
  assert len(run.chosen) > len({o.region.key for _, o in run.chosen})
  lock, again, same = replayed(loaded, run, tmp_path)
  assert same and len(lock.nodes) == len(again.chosen) > len(lock.regions)
  assert again.times == run.times


def test_an_instance_that_is_unsafe_with_its_weights_is_refused(tmp_path, monkeypatch):
  """Though the program is proven for the region: its other instance overflows, say."""
  loaded = load_model(layers(Net(seed=2)))
  lock, _, same = replayed(loaded, pipeline.run(loaded, OPTIONS), tmp_path)
  assert same
  asked = []

  def verdicts(self, instances, program):
    asked.extend(instances)
    return (*(None for _ in instances[1:]), Rejection("RANGE", "it overflows"))

  monkeypatch.setattr(replay.InstanceChecks, "verdicts", verdicts)
  with pytest.raises(MirageError, match="RANGE: it overflows") as error:
    pipeline.run(loaded, replace(OPTIONS, lock=lock))
  assert error.value.code == "LOCK_INVALID" and asked


def test_a_program_that_the_emulator_finds_wrong_is_refused(tmp_path, monkeypatch):
  loaded = load_model(layers(Net(seed=2)))
  lock, _, _ = replayed(loaded, pipeline.run(loaded, OPTIONS), tmp_path)
  wrong = lambda self, region, candidate: ("emulated", Rejection("KERNEL_WRONG", "off by 2"))  # noqa: E731
  monkeypatch.setattr("mirage_onnx.tune.emulated.Emulated.__call__", wrong)
  with pytest.raises(MirageError, match="KERNEL_WRONG: off by 2"):
    pipeline.run(loaded, replace(OPTIONS, lock=lock, emulate=True))


def test_regions_in_one_node(tmp_path, monkeypatch):
  """What was joined is in no match: it is made of its nodes again."""
  loaded = load_model(projections(Net(seed=2)))
  run = pipeline.run(loaded, OPTIONS)
  timed = [(c, replace(o, measured=Measured(5.0, 9.0, 1))) for c, o in run.chosen]
  fast = lambda loaded, region, compiled, *_: (compiled[0], Measured(3.0, 20.0, 1))  # noqa: E731
  monkeypatch.setattr(beside, "measure_region", fast)
  chosen, outcomes = beside.with_siblings(loaded, run.program, timed, H200)
  assert len(chosen) < len(timed)
  joined = replace(run, chosen=chosen, outcomes={**run.outcomes, **outcomes})
  joined = pipeline.with_these(joined, loaded, OPTIONS, range(len(chosen)))
  options = replace(OPTIONS, measure=True)
  lock, again, same = replayed(loaded, joined, tmp_path, options)
  assert same and lock.options.measured
  assert [o.measured for _, o in again.chosen] == [o.measured for _, o in chosen]


def test_sizes_of_a_run(tmp_path):
  net = Net(seed=7)
  x = net.rms(net.input("batch", "seq", 64))
  onnx.save(net.model(net.Add(net.MatMul(x, net.weight(64, 48)), 0.5)), tmp_path / "in.onnx")
  where = {"lock": tmp_path / "lock", "workers": 1}
  shapes = {"batch": (1, 4), "seq": (2, 24)}
  paths = tmp_path / "in.onnx", tmp_path / "out.onnx"
  first = mirage_onnx.optimize(*paths, target="h200", margin=-20.0, shapes=shapes, **where)
  want = paths[1].read_bytes()
  paths[1].unlink()
  second = mirage_onnx.optimize(*paths, locked=True, **where)
  assert paths[1].read_bytes() == want
  rows = [[r["sizes"] for r in x.report["regions"] if r["status"] == "replaced"] for x in (first, second)]
  assert rows[0] == rows[1] and rows[0][0]
  with pytest.raises(MirageError, match="--shapes is"):
    mirage_onnx.optimize(*paths, locked=True, shapes={"batch": (1, 4)}, **where)


def test_weights_in_files(tmp_path):
  """Turned copies are streamed to a data file, whose name is its hash: it is in the model's bytes."""
  model = layers(Net(seed=2), 1024)
  onnx.save(model, tmp_path / "in.onnx", save_as_external_data=True, size_threshold=64, location="in.data")
  paths, where = (tmp_path / "in.onnx", tmp_path / "out.onnx"), {"lock": tmp_path / "lock", "workers": 1}
  mirage_onnx.optimize(*paths, target="h200", margin=-20.0, external="copy", **where)
  want = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
  assert any(name.endswith(".data") and name != "in.data" for name in want)
  for name in want:
    if name.startswith("out."):
      (tmp_path / name).unlink()
  mirage_onnx.optimize(*paths, locked=True, **where)
  assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == want
  assert json.loads((tmp_path / "lock").read_text())["options"]["external"] == "copy"
