"""Experts of a token, to the end: kernels read the rows of a table that a run picks, where they lie."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from small_models import Net, check_kernels, feeds, matches, region_of

import mirage_onnx

EXPERTS, D, WIDE = 5, 32, 48


def picked(net, table, rows):
  return net.GatherND(table, net.Unsqueeze(rows, [-1]))


def gated(net, tokens=3, dtype=np.int64):
  """Each token with its expert: a gate times what goes through it."""
  rows = net.input(tokens, dtype=dtype)
  table = picked(net, net.weight(EXPERTS, 2 * WIDE, D, scale=0.2), rows)
  y = net.Squeeze(net.MatMul(table, net.Unsqueeze(net.input(tokens, D), [2])), [2])
  gate, up = net.Slice(y, [0], [WIDE], [1]), net.Slice(y, [WIDE], [2 * WIDE], [1])
  return net.Mul(net.Mul(gate, net.Sigmoid(gate)), up)


def mixed(net):
  """The experts of one token, weighted and added up."""
  table = picked(net, net.weight(EXPERTS, D, WIDE, scale=0.2), net.input(2, dtype=np.int64))
  y = net.Squeeze(net.MatMul(table, net.Unsqueeze(net.input(2, WIDE), [2])), [2])
  return net.ReduceSum(net.Mul(y, net.input(2, 1)), [0])


def alone(net):
  """One row; its table is no weight, and what is computed with it no product."""
  return net.Tanh(net.Add(picked(net, net.input(EXPERTS, D), net.input(1, dtype=np.int64)), net.input(1, D)))


def normed(net):
  """Rows of which a norm is taken, without a product."""
  return net.rms(picked(net, net.weight(EXPERTS, D), net.input(4, dtype=np.int64)), net.weight(D))


BUILDS = [gated, mixed, alone, normed]


def model_of(build):
  net = Net(seed=5, opset=18)
  return net.model(build(net))


def of_a_run(model, rng, low=-EXPERTS):
  """Values with rows from either end, none beside the table."""
  return {
    name: rng.integers(low, EXPERTS, x.shape) if x.dtype == np.int64 else x
    for name, x in feeds(model, rng).items()
  }


def optimized(build, rng, **how):
  model = model_of(build)
  # ONNX Runtime's kernels are faster at these sizes: the margin takes ours anyway.
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0)
  check_kernels(model, result, of_a_run(model, rng), atol=4e-3, **how)
  return model, result


@pytest.mark.parametrize("build", BUILDS)
def test_rows_are_read_where_they_lie(build, rng):
  model, result = optimized(build, rng)
  assert "GatherND" not in {n.op_type for n in result.model.graph.node}
  # The table is not copied, and nothing of it is stored in another order.
  weights = {i.name: i.SerializeToString() for i in model.graph.initializer}
  kept = {i.name: i.SerializeToString() for i in result.model.graph.initializer if i.name in weights}
  assert kept.items() <= weights.items()


@pytest.mark.parametrize(("table", "tokens"), [((1, 1), 3), ((4, 1), 3), ((4, 8), 1), ((4, 8, 1), 2)])
def test_tables_of_one_row_or_column(table, tokens, rng):
  net = Net(seed=1, opset=18)
  x = picked(net, net.weight(*table), net.input(tokens, dtype=np.int64))
  model = net.model(net.Tanh(net.Exp(net.Add(x, net.input(tokens, *table[1:])))))
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0)
  values = {n: x % table[0] if x.dtype == np.int64 else x for n, x in feeds(model, rng).items()}
  check_kernels(model, result, values)
  assert "GatherND" not in {n.op_type for n in result.model.graph.node}


def test_rows_follow_the_run(rng):
  """One session: every run has rows of its own, and repeated ones."""
  model, result = optimized(gated, rng)
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  plain = ReferenceEvaluator(model)
  for rows in ([0, 0, 0], [4, 1, 4], [-1, -5, 2]):
    values = of_a_run(model, rng)
    (name,) = (n for n, x in values.items() if x.dtype == np.int64)
    values[name] = np.array(rows)
    (got,), (want,) = session.run(None, values), plain.run(None, values)
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=4e-3, atol=4e-3)


def test_rows_that_are_not_there(rng):
  """ONNX does not say what they are: the kernel reads none beside the table (the emulator would tell)."""
  model, result = optimized(gated, rng)
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  values = of_a_run(model, rng)
  (name,) = (n for n, x in values.items() if x.dtype == np.int64)
  values[name] = np.array([EXPERTS, -EXPERTS - 1, 2**40])
  (got,) = session.run(None, values)
  values[name] = np.array([EXPERTS - 1, 0, EXPERTS - 1])
  (nearest,) = session.run(None, values)
  assert got.tobytes() == nearest.tobytes()


def test_as_many_as_a_run_says(rng):
  """The number of tokens is counted in a run."""
  model = model_of(lambda net: gated(net, "tokens"))
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0, shapes={"tokens": [1, 3]})
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  plain = ReferenceEvaluator(model)
  for tokens in (1, 2, 3, 7):
    values = {
      i.name: rng.integers(0, EXPERTS, tokens)
      if i.type.tensor_type.elem_type == onnx.TensorProto.INT64
      else rng.standard_normal((tokens, D)).astype(np.float16)
      for i in model.graph.input
    }
    (got,), (want,) = session.run(None, values), plain.run(None, values)
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=4e-3, atol=4e-3)
  assert all(mirage_onnx.launches(session).values())


def test_the_region(golden):
  assert region_of(model_of(gated)).text == golden


def test_a_table_is_in_memory():
  """Rows of what a region computes are picked behind it; it may compute with the rows."""
  net = Net(seed=5, opset=18)
  table = net.Tanh(net.Neg(net.input(EXPERTS, D)))
  model = net.model(net.Exp(net.Neg(picked(net, table, net.input(2, dtype=np.int64)))))
  types = {n.name: n.op_type for n in model.graph.node}
  found = {frozenset(types[n] for n in c.nodes) for c in matches(model).candidates}
  assert any({"GatherND", "Exp"} <= ops for ops in found)
  assert not any({"GatherND", "Tanh"} <= ops for ops in found)


@pytest.mark.gpu
@pytest.mark.parametrize("build", BUILDS)
def test_rows_on_a_gpu(build, rng):
  optimized(build, rng, providers=["CUDAExecutionProvider"])
