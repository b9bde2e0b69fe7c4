"""Checks of instances in processes say what they say here, of a model in memory and of one in a file."""

import time

import onnx
import pytest
from unlike_layers import GOLDEN, SAFE, instances, layers

from mirage_onnx import deadline
from mirage_onnx.importer import load_model
from mirage_onnx.superopt.kept_folder import KeptFolder
from mirage_onnx.tune import instance_processes as module
from mirage_onnx.tune.instance_processes import InstanceProcesses
from mirage_onnx.tune.instances import InstanceChecks
from mirage_onnx.verify.instance_checks import check_instances
from mirage_onnx.verify.weights import ModelWeights


@pytest.mark.parametrize("in_file", [False, True])
def test_the_same_verdicts(tmp_path, in_file):
  model = layers(1, 60, 1)
  path = tmp_path / "m.onnx"
  onnx.save(model, path)
  loaded, regions = load_model(path if in_file else model), [c.region for c in instances(model)]
  weights = ModelWeights(loaded)
  with InstanceProcesses(loaded, weights, 1) as apart:
    for graph in (GOLDEN.ugraph, SAFE):
      want = check_instances(regions, graph, GOLDEN.params, weights)
      assert apart(regions, graph, GOLDEN.params, weights) == want
    assert apart.asked == 2
    assert any(check_instances(regions, GOLDEN.ugraph, GOLDEN.params, weights))


def test_many_are_checked_by_several_processes(monkeypatch):
  model = layers(1, 60, 1, 0.5, 60)
  loaded, regions = load_model(model), [c.region for c in instances(model)]
  weights = ModelWeights(loaded)
  want = check_instances(regions, GOLDEN.ugraph, GOLDEN.params, weights)
  assert any(want) and not all(want)
  monkeypatch.setattr(module, "SIDE_BY_SIDE", 2)
  with InstanceProcesses(loaded, weights, 2) as apart:
    assert apart(regions, GOLDEN.ugraph, GOLDEN.params, weights) == want
    assert apart.asked == 3 and len(apart._started) == 2
    with pytest.raises(deadline.OverdueError), deadline.until(time.monotonic() - 1.0):
      apart(regions, GOLDEN.ugraph, GOLDEN.params, weights)
    assert apart([], GOLDEN.ugraph, GOLDEN.params, weights) == ()


def test_late_and_lost(monkeypatch):
  """What is late is late here as well; a process that has ended leaves the check to who asks."""
  model = layers(1, 60)
  loaded, regions = load_model(model), [c.region for c in instances(model)]
  weights = ModelWeights(loaded)
  with InstanceProcesses(loaded, weights, 1) as apart:
    with pytest.raises(deadline.OverdueError), deadline.until(time.monotonic() - 1.0):
      apart(regions, GOLDEN.ugraph, GOLDEN.params, weights)
    apart._started[0].kill()
    found = apart(regions, GOLDEN.ugraph, GOLDEN.params, weights)
    assert found == check_instances(regions, GOLDEN.ugraph, GOLDEN.params, weights) and apart.asked == 0
    apart(regions, SAFE, GOLDEN.params, weights)
    assert apart.asked == 1, "another one has begun"
  monkeypatch.setattr(module, "MAX_COPIED_BYTES", 1)
  with InstanceProcesses(loaded, weights, 1) as apart:
    assert apart(regions, GOLDEN.ugraph, GOLDEN.params, weights) == found and not apart._started


def test_whoever_asks_about_instances_asks_them(tmp_path):
  model = layers(1, 60)
  loaded, some = load_model(model), instances(model)
  checks = InstanceChecks(ModelWeights(loaded), KeptFolder(tmp_path, {}))
  program = type("Program", (), {"ugraph": GOLDEN.ugraph, "params": GOLDEN.params})()
  with checks.apart(loaded, 1):
    there = checks.verdicts(some, program)
    assert checks._apart.asked == 1
  assert checks._apart is None
  assert there == InstanceChecks(ModelWeights(loaded)).verdicts(some, program)
