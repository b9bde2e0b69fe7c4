"""The checks notice a wrong result, and say what they could not run."""

import ml_dtypes
import numpy as np
import onnx
from coverage_table.checks import BY_NODE, IN_FP32, NOT_RUN, check_emulated, check_stock
from onnx import helper
from small_models import Net

import mirage_onnx


def scaled(factor, dtype=np.float16, columns=8):
  net = Net(dtype)
  return net.model(net.Mul(net.input(4, columns), factor))


def test_equal():
  check = check_stock(scaled(2.0), scaled(2.0))
  assert check.result == "identical" and not check.is_wrong
  assert check.inputs == 8 and check.needed_rtol == 0


def test_one_unit_in_the_last_place():
  check = check_stock(scaled(2.0), scaled(2.002))
  assert check.result == "FAILED" and check.is_wrong
  assert check.needed_rtol is not None and 0 < check.needed_rtol < 2e-3
  assert "differs by" in check.note


def test_rounding_by_onnxruntime_is_told_apart(net):
  """It computes a Gelu of this form in other steps when any function holds it."""
  x = net.input(1, 64)
  y = net.Gelu(net.MatMul(x, net.weight(64, 128)), approximate="tanh")
  model = net.model(net.Mul(y, net.MatMul(x, net.weight(64, 128))))
  check = check_stock(model, in_function(model))
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


def test_other_shape():
  check = check_stock(scaled(2.0), scaled(2.0, columns=9))
  assert check.is_wrong and check.note.startswith("SHAPES_DIFFER")


def test_original_that_does_not_run_here():
  model = scaled(2.0, ml_dtypes.bfloat16)
  for check, result in (
    (check_stock(model, model), IN_FP32),
    (check_emulated(model, model), NOT_RUN),
  ):
    assert check.result == result and not check.is_wrong
    assert "Could not find an implementation" in check.note
  wrong = check_stock(model, scaled(2.0625, ml_dtypes.bfloat16))
  assert wrong.is_wrong and "in fp32 t" in wrong.note


def test_kernels_of_an_original_that_does_not_run_here():
  net = Net(ml_dtypes.bfloat16)
  model = net.model(net.rms(net.input(8, 64), net.weight(64)))
  check = check_emulated(model, mirage_onnx.optimize(model, target="h200", workers=1).model)
  assert check.result == BY_NODE and check.inputs > 1 and check.needed_rtol < 8e-3
  assert check.note.startswith("1 of 1 custom nodes ran")


def test_no_custom_node():
  check = check_emulated(scaled(2.0), scaled(2.0))
  assert check.result == "none" and "no kernel ran" in check.note
