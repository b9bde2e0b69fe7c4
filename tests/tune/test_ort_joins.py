"""Which nodes ONNX Runtime computes in the kernel of another, and what they take there."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from small_models import Net

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.target import H200
from mirage_onnx.tune import baseline
from mirage_onnx.tune.baseline import Table, alone_us, node_times_us
from mirage_onnx.tune.operator_grid import TimesGrid
from mirage_onnx.tune.ort_joins import Guest, folded, joined

GRID = TimesGrid.of({
  "fp16": {
    "MatMul": [[m, k, n, 5.0] for m in (1, 4096) for k in (1, 4096) for n in (1, 4096)],
    "Bias": [[1, 2.0], [1 << 24, 2.0]], "AddRow": [[1, 3.0], [1 << 24, 3.0]],
    "Mul": [[1, 4.0], [1 << 24, 4.0]], "Sigmoid": [[1, 3.5], [1 << 24, 3.5]],
    "QuickGelu": [[1, 4.5], [1 << 24, 4.5]],
    "Softmax": [[1, 1, 6.0], [4096, 1, 6.0], [1, 4096, 6.0], [4096, 4096, 6.0]],
    "BiasSoftmax": [[1, 1, 7.0], [4096, 1, 7.0], [1, 4096, 7.0], [4096, 4096, 7.0]],
    "AddMiddle": [[1, 2.5], [1 << 24, 2.5]],
  }
})  # fmt: skip
TABLE = Table("a test", {}, (), GRID)


def of(net, *outputs):
  """Operator -> the operator of its host, and of both; and the times."""
  program = import_model(load_model(net.model(*outputs)))
  ops = {n.name: n.op_type for n in program.nodes}
  guests = {ops[n]: Guest(ops[g.host], g.joint) for n, g in joined(program).items()}
  return guests, {ops[n]: us for n, us in node_times_us(program, TABLE).items()}


@pytest.fixture
def net():
  return Net()


def test_a_bias_costs_a_product_what_both_take_more(net):
  found, us = of(net, net.Add(net.MatMul(net.input(8, 64), net.weight(64, 64)), net.weight(64)))
  assert found == {"Add": Guest("MatMul", "Bias")}
  assert us == pytest.approx({"MatMul": 5.0, "Add": 2.0})


def test_alone_it_costs_the_rest(net, monkeypatch):
  monkeypatch.setattr(baseline, "ranking_table", lambda target: TABLE)
  y = net.Add(net.MatMul(net.input(8, 64), net.weight(64, 64)), net.weight(64))
  program = import_model(load_model(net.model(y)))
  ((_, (host, us)),) = alone_us(program, replace(H200, name="a test")).items()
  assert host == program.nodes[0].name and us == pytest.approx(1.0)


def test_a_sum_that_others_read_is_not_joined(net):
  x = net.Add(net.input(8, 64), net.input(8, 64))
  normed = net.LayerNormalization(x, net.weight(64), net.weight(64))
  assert of(net, normed, net.Exp(x))[0] == {}
  other = Net()
  x = other.Add(other.input(8, 64), other.input(8, 64))
  assert of(other, other.LayerNormalization(x, other.weight(64), other.weight(64)))[0] == {
    "Add": Guest("LayerNormalization", "SkipLayerNormalization")
  }


def test_scales_and_transposes_before_a_product_cost_nothing(net):
  q, k = net.input(2, 16, 64), net.input(2, 16, 64)
  turned = net.Mul(net.Reshape(net.Transpose(k, perm=[0, 2, 1]), [2, 64, 16]), 0.5)
  found, us = of(net, net.MatMul(q, turned))
  assert found == {"Mul": Guest("MatMul"), "Transpose": Guest("MatMul")}
  assert us["Mul"] == us["Transpose"] == 0.0


def test_another_transpose_is_one(net):
  q, k = net.input(2, 16, 4, 64), net.input(2, 4, 64, 16)
  assert of(net, net.MatMul(net.Transpose(q, perm=[0, 2, 1, 3]), k))[0] == {}


@pytest.mark.parametrize(("mask", "is_joined"), [((1, 1, 16, 16), True), ((2, 1, 16, 16), False)])
def test_a_mask_of_the_first_dimensions_is_added_in_the_softmax(net, mask, is_joined):
  y = net.Softmax(net.Add(net.input(2, 4, 16, 16), net.input(*mask)))
  found, us = of(net, y)
  assert found == ({"Add": Guest("Softmax", "BiasSoftmax")} if is_joined else {})
  assert us == pytest.approx({"Softmax": 6.0, "Add": 1.0 if is_joined else 2.5})


def test_a_gate_of_its_own_value(net):
  x, y = net.input(8, 64), net.input(8, 64)
  found, us = of(net, net.Mul(x, net.Sigmoid(x)))
  assert found == {"Sigmoid": Guest("Mul", "QuickGelu")}
  assert us == pytest.approx({"Mul": 4.0, "Sigmoid": 0.5})
  other = Net()
  x, y = other.input(8, 64), other.input(8, 64)
  assert of(other, other.Mul(y, other.Sigmoid(x)))[0] == {}


def test_what_was_not_measured_takes_what_its_like_does(net):
  x = net.input(8, 64)
  assert of(net, net.Mul(x, net.input(8, 1)))[1] == pytest.approx({"Mul": 4.0})  # MulColumn
  other = Net(np.float32)
  x = other.input(8, 64)
  assert of(other, other.Mul(x, other.input(8, 64)))[1] == pytest.approx({"Mul": 4.0})  # as many bytes
  other = Net()
  assert of(other, other.CumSum(other.input(8, 64), other.constant(0, np.int64)))[1] == {}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_what_is_made_of_constants_takes_nothing(dtype, tmp_path):
  """Positions that an exporter computes: ONNX Runtime folds them, of fp16 what its CPU provider moves."""
  net = Net(dtype)
  places = net.Transpose(net.weight(64, 8), perm=[1, 0])
  y = net.Mul(net.Sin(places), net.weight(64))
  model = net.model(net.Exp(net.Add(net.input(8, 64), y)))
  program = import_model(load_model(model))
  found = {n.op_type for n in program.nodes if n.name in folded(program)}
  options = ort.SessionOptions()
  options.optimized_model_filepath = str(tmp_path / "seen.onnx")
  ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
  seen = {n.op_type for n in onnx.load(options.optimized_model_filepath).graph.node}
  assert found == {"Transpose", "Sin", "Mul"} - seen
  times = node_times_us(program, TABLE)
  assert all(times[name] == 0 for name in folded(program))
