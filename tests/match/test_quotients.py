"""Quotients that are 0 where they are no number, in regions and alone."""

import numpy as np
import pytest
from small_models import Net, matches, region_of, replaced_ops, run_model

import mirage_onnx
from mirage_onnx.verify.interpret_steps import interpret_steps

LEAST = np.finfo(np.float32).min
ROWS = 6


def guarded(net, p, how):
  if how == "isnan":
    return net.Where(net.IsNaN(p), 0.0, p)
  if how == "not isnan":
    return net.Where(net.Not(net.IsNaN(p)), p, 0.0)
  return net.Where(net.Equal(p, p), p, 0.0)


def model_of(how="isnan", dtype=np.float32, quotient="softmax"):
  net = Net(dtype, opset=18)
  x = net.Add(net.input(ROWS, 24), net.input(24))
  if quotient == "softmax":
    p = net.Softmax(x)
  elif quotient == "spelled":
    e = net.Exp(net.Sub(x, net.ReduceMax(x, [-1])))
    p = net.Div(e, net.ReduceSum(e, [-1]))
  else:
    p = net.Div(x, net.ReduceSum(x, [-1]))
  return net.model(net.Mul(guarded(net, p, how), 2.0))


def values(model, rng):
  """Rows of numbers, without some, without any, of the least number alone and beside those without."""
  x = rng.standard_normal((ROWS, 24)).astype(np.float32)
  x[1, ::3] = x[2] = x[4, 1:] = x[5] = -np.inf
  x[3] = x[5, 3] = LEAST
  return dict(zip((i.name for i in model.graph.input), (x, np.zeros(24, np.float32)), strict=True))


def ops(model):
  return {s.op for s in region_of(model).steps}


@pytest.mark.parametrize("quotient", ["softmax", "spelled"])
@pytest.mark.parametrize("how", ["isnan", "not isnan", "equal"])
def test_no_number_is_compared_with_itself(how, quotient, rng):
  model = model_of(how, quotient=quotient)
  region = region_of(model)
  assert "rmax" in ops(model) and not ops(model) & {"equal", "select"}
  data = values(model, rng)
  own = {i.tensor.name: data[i.tensor.name].astype(float) for i in region.inputs}
  (want,) = run_model(model, data)
  with np.errstate(all="ignore"):
    got = interpret_steps(region, own, rounded=False)[region.outputs[0].tensor.name]
  assert not want[2].any() and (want[3] > 0).all() and want[5, 3] == 2
  np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-5, atol=1e-7)


def test_rows_without_numbers_in_a_kernel(rng):
  model = model_of()
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0)
  assert replaced_ops(result) == {n.name for n in model.graph.node}
  data = values(model, rng)
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  (want,), (got,) = run_model(model, data), session.run(None, data)
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)
  assert list(mirage_onnx.launches(session).values()) == [1]


def other_value(net, p):
  return net.Where(net.IsNaN(p), 0.5, p)


def other_way_round(net, p):
  return net.Where(net.IsNaN(p), p, 0.0)


def of_another(net, p):
  return net.Where(net.IsNaN(net.Mul(p, 2.0)), 0.0, p)


@pytest.mark.parametrize("build", [other_value, other_way_round, of_another])
def test_what_is_no_zero_in_place_of_the_quotient_stays(build):
  net = Net(np.float32, opset=18)
  model = net.model(build(net, net.Softmax(net.Add(net.input(4, 24), net.input(24)))))
  assert "equal" in ops(model)


def test_another_quotient_stays():
  """It may be NaN for other reasons than that all is nothing."""
  assert "equal" in ops(model_of(quotient="sum"))


def test_a_quotient_that_others_read_stays_beside_it():
  net = Net(np.float32, opset=18)
  p = net.Softmax(net.Add(net.input(4, 24), net.input(24)))
  found = matches(net.model(net.Add(guarded(net, p, "isnan"), net.Exp(p))))
  steps = max((c.region.steps for c in found.candidates), key=len)
  assert [s.op for s in steps].count("rmax") == 2
