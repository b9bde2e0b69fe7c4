"""Integers and booleans that a rounding decides are no difference, and all others are one."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from small_models import Net

from mirage_onnx.custom_op.compare import compare_models
from mirage_onnx.custom_op.difference import OutputDifference
from mirage_onnx.custom_op.shaken import RUNS, Shaken, shaken, undecided

ROWS, WIDTH, CLASSES = 16, 256, 2048


def classifier(kind="", opset=20):
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
  model.opset_import[0].version = opset
  return model


def compared(kind, opset=20, **options):
  first, second = (classifier(k, opset).SerializeToString() for k in ("", kind))
  result = compare_models(first, second, **options)
  return result, {o.name: o for o in result.outputs}


@pytest.mark.parametrize("opset", [20, 23])  # of the second onnxruntime has no operator for random numbers
def test_what_a_rounding_decides(opset):
  """Of 32,768 elements that lie between, a few; on every kind of input."""
  result, outputs = compared("other order", opset)
  assert result.passed
  assert not outputs["found"].identical
  assert "hang on how the original is rounded" in outputs["found"].reason


def test_a_tolerance_that_is_given_is_not_stretched():
  result, outputs = compared("other order", rtol=1e-2)
  assert not result.passed
  assert outputs["y"].passed
  assert outputs["found"].reason == "integers and booleans must be equal"


@pytest.mark.parametrize(
  ("kind", "name", "opset"),
  [("threshold", "found", 20), ("next", "place", 20), ("least", "place", 20), ("next", "place", 23)],
)
def test_a_fault_is_one_all_the_same(kind, name, opset):
  result, outputs = compared(kind, opset)
  assert not result.passed
  assert [n for n, o in outputs.items() if not o.passed] == [name]
  assert "instead of" in outputs[name].reason


def with_integers(net, floats, place):
  """A model of floats and of integers made of them."""
  model = net.model(floats)
  model.graph.output.append(onnx.helper.make_tensor_value_info(place, TensorProto.INT64, None))
  return model.SerializeToString()


def normed(seed):
  """Of all places the largest of a norm whose exponent is a stored number."""
  net = Net(np.float32, seed=seed)
  h = net.MatMul(net.input(ROWS, WIDTH), net.weight(WIDTH, 64))
  apart = net.Sub(h, net.ReduceMean(h, [-1]))
  spread = net.Sqrt(net.ReduceMean(net.Pow(apart, net.constant(2.0)), [-1]))
  y = net.Div(apart, net.Add(spread, net.constant(1e-6)))
  return with_integers(net, net.ReduceMean(y, [-1]), net.ArgMax(y, axis=-1))


def counted(factor):
  """Exact numbers, as of positions."""
  net = Net(np.float32)
  ids = net.input(64, dtype=np.int64)
  y = net.Mul(net.Cast(ids, to=TensorProto.FLOAT), net.constant(factor))
  return with_integers(net, net.Mul(y, net.constant(0.0)), net.Cast(net.Floor(y), to=TensorProto.INT64))


def enlarged(shift):
  """Resize takes its scales as they are, or not at all."""
  net = Net(np.float32)
  y = net.Resize(
    net.MatMul(net.input(1, 3, 16, 16), net.weight(16, 16)), "", net.constant([1.0, 1.0, 2.0, 2.0])
  )
  place = net.ArgMax(y, axis=1)
  return with_integers(net, y, net.Add(place, net.constant(shift, np.int64)))


@pytest.mark.parametrize(("make", "right", "wrong"), [(normed, 1, 2), (counted, 2.0, -5.0), (enlarged, 0, 1)])
def test_a_decided_integer_may_not_change(make, right, wrong):
  assert compare_models(make(right), make(right)).passed
  result = compare_models(make(right), make(wrong))
  assert not result.passed
  (failed,) = (o for o in result.outputs if not o.passed and o.dtype == "int64")
  assert "instead of" in failed.reason


def test_only_what_a_run_finds_is_excused():
  want, runs = np.array([5, 5, 5, 5]), [{"y": np.array([5, 7, 5, 7])}, {"y": np.array([5, 5, 5, 9])}]
  found = OutputDifference("y", "int64", False, False, 1.0, None, 0.0, "normal 0")

  def passes(got, share=0.0, runs=runs):
    return undecided(found, want, np.array(got), "y", iter(runs), share).passed

  assert passes([5, 7, 5, 9]) and not passes([5, 8, 5, 5]) and not passes([7, 5, 5, 5])
  assert passes([5, 8, 5, 5], 0.25) and not passes([5, 8, 5, -1], 0.25)
  assert not passes([5, 7, 5, 5], 1.0, []) and not passes([5, 5, 5, 9], runs=[runs[0], {}])


def test_what_has_no_float_is_not_shaken():
  net = Net(np.float16)
  ids = net.input(4, dtype=np.int64)
  table = net.weight(64, 32)
  rows = net.Gather(table, ids)
  model = net.model(net.Add(rows, net.Cast(net.Shape(ids), to=TensorProto.FLOAT16)))
  made = shaken(model).graph.node
  assert [n.op_type for n in made].count("RandomNormalLike") == 1


@pytest.mark.parametrize("opset", [20, 22, 23])
def test_runs_differ_and_are_the_same_again(opset):
  model, feeds = classifier(opset=opset), {"x0": np.ones((ROWS, WIDTH), np.float16)}
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


def eight_bits(kind=""):
  """Activations of 8 bits between two products; ``near`` is off by some units roundoff in front of them."""
  net = Net(np.float32)
  x, w = net.input(ROWS, WIDTH), (net.rng.standard_normal((WIDTH, WIDTH)) / 16).astype(np.float32)
  product = net.Mul(net.MatMul(x, net.constant(w)), net.constant(3.00003 if kind == "near" else 3.0))
  scale, zero = net.constant(np.float32(0.1)), net.constant(np.int8(3), np.int8)
  packed = net.QuantizeLinear(product, scale, zero)
  second = net.rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 16
  second *= np.float32(1.02 if kind == "fault" else 1)
  model = net.model(net.MatMul(net.DequantizeLinear(packed, scale, zero), net.constant(second)))
  model.graph.node[-1].output[0] = model.graph.output[0].name = "y"
  return model


def test_floats_behind_activations_of_8_bits():
  """One element of these that is rounded the other way moves a row by more than fp32 has errors."""
  first, second, wrong = (eight_bits(k).SerializeToString() for k in ("", "near", "fault"))
  (output,) = compare_models(first, second).outputs
  assert (
    output.passed and "hangs on how the original is rounded" in output.reason and output.needed_rtol > 1e-4
  )
  (output,) = compare_models(first, wrong).outputs
  assert not output.passed
  assert not Shaken(classifier(), None).hangs("y") and Shaken(classifier(), None).hangs("place")
