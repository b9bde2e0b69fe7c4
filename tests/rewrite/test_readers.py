"""Bodies that recompute what others read: the same bits, only because of readers that stand in."""

import numpy as np
import onnxruntime.capi._pybind_state as ort
import pytest
from onnx import helper
from small_models import Net, feeds, run_model

from mirage_onnx.importer import load_model
from mirage_onnx.rewrite.model import BodyMaker, rewrite_model
from mirage_onnx.rewrite.readers import HALF, MICROSOFT_HALF, Readers
from mirage_onnx.rewrite.replacement import Replacement, WeightUse


def halves(net, x):
  outs = [net._name(f"part{i}_") for i in range(2)]
  sizes = net.constant([8, 8], np.int64)
  net.nodes.append(helper.make_node("Split", [x, sizes], outs, name=outs[0], axis=-1))
  return outs


def an_output(net, x):
  a, b = halves(net, net.Tanh(x))
  return (net.Mul(a, a), b), 1


def a_slice(net, x):
  a, b = halves(net, net.MatMul(x, net.weight(16, 16)))
  return (net.Sigmoid(b), net.Concat(a, a, axis=-1)), 1


def a_cast(net, x):
  y = net.Mul(x, x)
  return (net.cast(y, np.float32), y), 1


def a_sum_behind_a_product(net, x):
  y = net.Add(net.MatMul(x, net.weight(16, 16)), net.weight(16))
  return (net.Exp(net.Neg(y)), net.Concat(y, y, axis=-1)), 1


def a_product_with_two_readers(net, x):
  y = net.MatMul(x, net.weight(16, 16))
  z = net.Slice(net.Add(y, net.weight(16)), [0], [8], [-1])
  return (net.Sigmoid(z), net.Erf(y)), 1


def a_product_outside(net, x):
  """The region reads it, and what else did is recomputed by another one."""
  y = net.MatMul(x, net.weight(16, 16))
  z = net.Slice(net.Add(y, net.weight(16)), [0], [8], [-1])
  return (net.Sigmoid(z), net.Erf(y)), 2


def region(model, plan, output, leaves):
  """All that makes ``output`` of ``leaves``."""
  makers = {v: n for n in model.graph.node for v in n.output}
  floats = {t.name: len(t.dims) for t in model.graph.initializer if t.data_type == 10 and t.dims}
  nodes, weights, todo = {}, {}, [output]
  while todo:
    v = todo.pop()
    if v in floats:
      weights[v] = WeightUse(v, (1, 0) if floats[v] == 2 else (0,))
    elif v in makers and v not in leaves:
      nodes[makers[v].name] = None
      todo += makers[v].input
  read = [v for v in leaves if v in {i for n in model.graph.node for i in n.input}]
  return Replacement(tuple(nodes), (*read, *weights), tuple(weights.values()), (output,), False, plan)


CASES = (
  an_output, a_slice, a_cast, a_sum_behind_a_product, a_product_with_two_readers,
  a_product_outside,
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
def test_bits(case, rng, monkeypatch):
  net = Net(seed=3)
  x = net.input(2, 6, 16)
  outputs, regions = case(net, x)
  model = net.model(*outputs)
  leaves = [(x,)] * regions
  if regions == 2:  # the first one begins behind the product
    leaves[0] = (next(n.output[0] for n in model.graph.node if n.op_type == "MatMul"),)
  chosen = [region(model, i, outputs[i], v) for i, v in enumerate(leaves)]
  loaded = load_model(model)
  half = {name for name, t in loaded.tensors.items() if str(t.dtype) == "f16"}
  values = feeds(model, rng)

  def same():
    result = rewrite_model(model, chosen, b"", maker=BodyMaker(model, half=half))
    pairs = zip(run_model(model, values), run_model(result, values), strict=True)
    return all(a.tobytes() == b.tobytes() for a, b in pairs)

  assert same()
  monkeypatch.setattr(Readers, "missing", lambda *_: ())
  assert not same(), "nothing stands in, and nothing changes: the case shows nothing"


def test_what_reads_a_scalar_is_an_operator_of_one(rng):
  """A Flatten at axis 1 is none: ONNX Runtime did not load the body."""
  net = Net(seed=3)
  x = net.input(2, 6, 16)
  y = net.Add(net.ReduceMean(x, keepdims=0), net.constant(0.75))
  model = net.model(net.Sigmoid(y), net.Unsqueeze(y, [0]))
  plan = region(model, 0, model.graph.output[0].name, (x,))
  result = rewrite_model(model, [plan], b"", maker=BodyMaker(model, half={y}))
  assert "Flatten" in {n.op_type for f in result.functions for n in f.node}
  values = feeds(model, rng)
  pairs = zip(run_model(model, values), run_model(result, values), strict=True)
  assert all(a.tobytes() == b.tobytes() for a, b in pairs)


def test_the_tables_are_those_of_onnxruntime():
  """Of operators that ONNX has; those that take fp16 in any input."""
  found = {"": set(), "com.microsoft": set()}
  for kernel in ort.get_all_opkernel_def():
    if kernel.provider == "CPUExecutionProvider" and kernel.domain in found:
      types = {t for types in kernel.type_constraints.values() for t in types}
      if "tensor(float16)" in types:
        found[kernel.domain].add(kernel.op_name)
  assert found[""] >= HALF
  assert found["com.microsoft"] >= MICROSOFT_HALF
