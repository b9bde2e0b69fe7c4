"""Integers and booleans that a rounding decides are no difference, and all others are one."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from small_models import Net

from mirage_onnx.custom_op.compare import compare_models
from mirage_onnx.custom_op.shaken import RUNS, Shaken, shaken

ROWS, WIDTH, CLASSES = 16, 256, 2048


def classifier(kind=""):
  """Scores, their maximum's place and what lies between two numbers; ``other order`` rounds the weights."""
  net = Net(np.float16)
  x, w = net.input(ROWS, WIDTH), (net.rng.standard_normal((WIDTH, CLASSES)) / 16).astype(np.float16)
  if kind == "other order":
    product = net.MatMul(x, net.constant(w * np.float16(3)))
  else:
    product = net.Mul(net.MatMul(x, net.constant(w)), net.constant(3.0))
  y = net.Relu(net.Add(product, net.constant(1.0)))
  low = net.constant(0.55 if kind == "threshold" else 0.5)
  found = net.And(net.Greater(y, low), net.Less(y, net.constant(1.5)))
  place = getattr(net, "ArgMin" if kind == "least" else "ArgMax")(y, axis=-1, keepdims=0)
  if kind == "next":
    place = net.Add(place, net.constant(1, np.int64))
  model = net.model(y)
  for name, type_ in ((place, TensorProto.INT64), (found, TensorProto.BOOL)):
    model.graph.output.append(onnx.helper.make_tensor_value_info(name, type_, None))
  names = {y: "y", place: "place", found: "found"}
  for node in model.graph.node:
    for field in (node.input, node.output):
      field[:] = [names.get(n, n) for n in field]
  for value in model.graph.output:
    value.name = names[value.name]
  return model


def compared(kind, **options):
  first, second = (classifier(k).SerializeToString() for k in ("", kind))
  result = compare_models(first, second, **options)
  return result, {o.name: o for o in result.outputs}


def test_what_a_rounding_decides():
  """Of 32,768 elements that lie between, a few; on every kind of input."""
  result, outputs = compared("other order")
  assert result.passed
  assert not outputs["found"].identical
  assert "hang on how the original is rounded" in outputs["found"].reason


def test_a_tolerance_that_is_given_is_not_stretched():
  result, outputs = compared("other order", rtol=1e-2)
  assert not result.passed
  assert outputs["y"].passed
  assert outputs["found"].reason == "integers and booleans must be equal"


@pytest.mark.parametrize(("kind", "name"), [("threshold", "found"), ("next", "place"), ("least", "place")])
def test_a_fault_is_one_all_the_same(kind, name):
  result, outputs = compared(kind)
  assert not result.passed
  assert [n for n, o in outputs.items() if not o.passed] == [name]
  assert "instead of" in outputs[name].reason


def test_what_has_no_float_is_not_shaken():
  net = Net(np.float16)
  ids = net.input(4, dtype=np.int64)
  table = net.weight(64, 32)
  rows = net.Gather(table, ids)
  model = net.model(net.Add(rows, net.Cast(net.Shape(ids), to=TensorProto.FLOAT16)))
  made = shaken(model).graph.node
  assert [n.op_type for n in made].count("RandomNormalLike") == 1


def test_runs_differ_and_are_the_same_again():
  model, feeds = classifier(), {"x0": np.ones((ROWS, WIDTH), np.float16)}
  first, second = ([r["y"] for r in Shaken(model, None).runs(feeds)] for _ in range(2))
  assert len(first) == RUNS
  assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
  assert not np.array_equal(first[0], first[1])
  error = np.concatenate([np.ravel(r[first[0] > 1] / first[0][first[0] > 1] - 1) for r in first[1:]])
  assert 2e-3 < np.std(error) < 1e-2


def test_what_onnxruntime_does_not_run_is_not_asked():
  model = classifier()
  model.graph.node[0].op_type = "NoSuchOperator"
  assert list(Shaken(model, None).runs({})) == []
