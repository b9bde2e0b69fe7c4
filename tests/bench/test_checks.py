"""The checks notice a wrong result, and say what they could not run."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from coverage_table import checks
from coverage_table.checks import (
  IN_FP32,
  NOT_RUN,
  WITH_A_FUNCTION,
  Check,
  Nodes,
  beside_a_function,
  check_stock,
  emulated,
)
from onnx import helper, numpy_helper
from small_models import Net

import mirage_onnx


@pytest.fixture
def saved(tmp_path):
  """Files of models, in order."""

  def save(*models):
    paths = [tmp_path / f"{i}.onnx" for i in range(len(models))]
    for model, path in zip(models, paths, strict=True):
      onnx.save(model, path)
    return paths

  return save


def scaled(factor, dtype=np.float16, columns=8):
  net = Net(dtype)
  return net.model(net.Mul(net.input(4, columns), factor))


def test_equal(saved):
  check = check_stock(*saved(scaled(2.0), scaled(2.0)))
  assert check.result == "identical" and not check.is_wrong
  assert check.inputs == 2 and check.needed_rtol == 0


def test_one_unit_in_the_last_place(saved):
  check = check_stock(*saved(scaled(2.0), scaled(2.002)))
  assert check.result == "FAILED" and check.is_wrong
  assert check.needed_rtol is not None and 0 < check.needed_rtol < 2e-3
  assert "differs by" in check.note


def gelu(net):
  x = net.input(1, 64)
  y = net.Gelu(net.MatMul(x, net.weight(64, 128)), approximate="tanh")
  return net.model(net.Mul(y, net.MatMul(x, net.weight(64, 128))))


def test_what_functions_do_is_told_apart(net, saved):
  """It computes a Gelu of this form in other steps when the model has any function, called or not."""
  model = gelu(net)
  check = check_stock(*saved(model, in_function(model)))
  assert check.result == WITH_A_FUNCTION and not check.is_wrong
  assert check.needed_rtol is not None and 0 < check.needed_rtol < 1e-3
  assert "differs by" in check.note
  beside = beside_a_function(model)
  assert beside.graph == model.graph and len(beside.functions) == 1
  assert beside_a_function(beside) == beside
  assert check_stock(*saved(model, beside)).result == WITH_A_FUNCTION


def test_another_difference_is_none_of_a_function(net, saved):
  """A weight differs by a unit in its last place, in fp32, too: no function does that."""
  model = gelu(net)
  wrong = in_function(model)
  weight = wrong.graph.initializer[0]
  values = numpy_helper.to_array(weight).copy()
  values[:, 0] = np.nextafter(values[:, 0], np.float16(9))
  weight.CopyFrom(numpy_helper.from_array(values, weight.name))
  assert check_stock(*saved(model, wrong)).is_wrong


def test_rounding_by_onnxruntime_is_told_apart(net, saved, monkeypatch):
  """What no function explains: the same bits as fp32 models."""
  monkeypatch.setattr(checks, "beside_a_function", lambda proto, _: proto)
  model = gelu(net)
  check = check_stock(*saved(model, in_function(model)))
  assert check.result == IN_FP32 and not check.is_wrong
  assert check.needed_rtol is not None and 0 < check.needed_rtol < 1e-3
  assert "differs by" in check.note


def in_function(model):
  graph, opset = model.graph, helper.make_opsetid("", 20)
  read = [v.name for v in (*graph.input, *graph.initializer)]
  made = [v.name for v in graph.output]
  function = helper.make_function("local", "F", read, made, list(graph.node), [opset])
  found = onnx.ModelProto()
  found.CopyFrom(model)
  del found.graph.node[:]
  found.graph.node.append(helper.make_node("F", read, made, domain="local"))
  found.functions.append(function)
  found.opset_import.append(helper.make_opsetid("local", 1))
  return found


def test_other_shape(saved):
  check = check_stock(*saved(scaled(2.0), scaled(2.0, columns=9)))
  assert check.is_wrong


def test_original_that_does_not_run_here(saved):
  model = scaled(2.0, ml_dtypes.bfloat16)
  check = check_stock(*saved(model, model))
  assert check.result == IN_FP32 and not check.is_wrong
  assert "Could not find an implementation" in check.note
  wrong = check_stock(*saved(model, scaled(2.0625, ml_dtypes.bfloat16)))
  assert wrong.is_wrong and "in fp32 " in wrong.note


def test_kernels(saved):
  """Right, then with another gamma in the original: the kernel is wrong of that."""
  net, other = Net(), Net()
  model = net.model(net.rms(net.input(8, 64), net.weight(64)))
  wrong = other.model(other.rms(other.input(8, 64), other.Mul(other.weight(64), 1.5)))
  made = mirage_onnx.optimize(model, target="h200", workers=1).model
  paths = saved(model, made, wrong)
  nodes = Nodes(*paths[:2])
  assert nodes.total == len(nodes.cuts) == 1
  check = nodes.check(nodes.cuts[0])
  assert check.result == "passed" and check.needed_rtol < 8e-3
  assert Nodes(paths[2], paths[1]).check(nodes.cuts[0]).is_wrong


def test_no_custom_node(saved):
  assert Nodes(*saved(scaled(2.0), scaled(2.0))).total == 0
  assert emulated([], 0, 0).result == "none"


def test_of_several_kernels():
  right, wrong = Check("passed", 1, 1e-3), Check("FAILED", 1, None, "y: NaN")
  assert emulated([right, right], 9, 1) == Check("passed", 2, 1e-3, "2 of 3 different kernels ran (9 nodes)")
  assert emulated([right, wrong], 9, 0).is_wrong
  assert emulated([], 2, 2).result == "time" and NOT_RUN != "time"
