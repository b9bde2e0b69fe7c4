"""The demo's check of what was replaced, and that its expectations can be met by its models."""

from collections import Counter
from pathlib import Path

import demo
import numpy as np
import onnx
import pytest

from mirage_onnx.report.schema import RegionReport, Report

MODELS = Path(__file__).parents[1] / "models"


def report(*ops, count=1, status="replaced"):
  regions = [
    RegionReport(
      id=f"r{i}",
      ops=names,
      count=count,
      status=status,
      reason=None,
      choice=None,
      ugraph=None,
      predicted_us=None,
      measured_us=None,
      baseline_us=None,
      search=None,
      proof=None,
    )
    for i, names in enumerate(ops)
  ]
  return Report(schema=1, input=None, output=None, target=None, seconds=None, regions=regions)


TYPES = {"m1": "MatMul", "m2": "MatMul", "a1": "Add", "a2": "Add", "g": "Gelu"}
PAIR = {"MatMul": 1, "Add": 1}


def test_instances():
  assert demo.instances_of(PAIR, report(["m1", "a1"]), TYPES) == 1
  assert demo.instances_of(PAIR, report(["m1", "a1", "m2", "a2", "g"]), TYPES) == 2
  assert demo.instances_of(PAIR, report(["m1", "a1"], count=3), TYPES) == 3
  assert demo.instances_of(PAIR, report(["m1"], ["a1"]), TYPES) == 0
  assert demo.instances_of(PAIR, report(["m1", "a1"], status="kept"), TYPES) == 0


def test_unmet_says_what():
  model = demo.Model((demo.Expectation("linear + bias", PAIR, 2),))
  assert demo.unmet(model, report(["m1", "a1", "m2", "a2"]), TYPES) == []
  assert demo.unmet(model, report(["m1", "a1"]), TYPES) == [
    "linear + bias: 1 of 2 expected instances replaced"
  ]


@pytest.mark.parametrize("name", demo.MODELS)
def test_expectations_are_possible(name):
  """One region over the whole model would meet them."""
  types = {node.name: node.op_type for node in onnx.load(MODELS / f"{name}.onnx").graph.node}
  assert demo.unmet(demo.MODELS[name], report(list(types)), types) == []
  assert demo.unmet(demo.MODELS[name], report(), types)
  used = {op for e in demo.MODELS[name].expected for op in e.ops}
  assert used <= set(Counter(types.values()))


def test_error_of_something_not_finite_is_infinite():
  want = [np.ones(3)]
  assert demo.worst_error([np.array([1, 1, np.nan])], want) == np.inf
  assert demo.worst_error([np.ones(3)], want) == 0
