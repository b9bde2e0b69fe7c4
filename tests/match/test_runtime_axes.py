"""Dynamic dimensions in random programs: at any sizes, regions mean what ONNX Runtime computes."""

from collections.abc import Callable
from math import prod

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from region_data import named
from small_models import Net, region_of

from mirage_onnx.errors import REJECTIONS, RejectionError
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.runtime_axes import at_sizes
from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.interpret_steps import by_axes, interpret_steps
from mirage_onnx.verify.interpret_term import interpret_terms

Shape = tuple[int | str, ...]
Grow = Callable[[Net, st.DrawFn, str, Shape], tuple[str, Shape]]


def _pick(draw, n):
  return draw(st.integers(0, n - 1))


def _unary(net, draw, x, shape):
  return (net.Sigmoid, net.Tanh)[_pick(draw, 2)](x), shape


def _binary(net, draw, x, shape):
  """With an input of some of the dimensions, others of which are 1."""
  kept = [1 if _pick(draw, 4) == 0 else d for d in shape[_pick(draw, len(shape)) :]]
  if any("*" in str(d) for d in kept):
    return net.Mul(x, net.Sigmoid(x)), shape
  return net.Add(x, net.input(*kept)), shape


def _transpose(net, draw, x, shape):
  order = draw(st.permutations(range(len(shape))))
  return net.Transpose(x, perm=order), tuple(shape[k] for k in order)


def _reshape(net, draw, x, shape):
  """Join two neighbours, or split a fixed dimension."""
  k = _pick(draw, len(shape))
  new, target = list(shape), [0 if isinstance(d, str) else d for d in shape]
  if isinstance(shape[k], int) and shape[k] % 4 == 0 and _pick(draw, 2):
    new[k : k + 1] = [shape[k] // 4, 4]
    target[k : k + 1] = [shape[k] // 4, 4]
  elif k + 1 < len(shape):
    a, b = shape[k : k + 2]
    new[k : k + 2] = [a * b if isinstance(a, int) and isinstance(b, int) else f"{a}*{b}"]
    target[k : k + 2] = [-1]
  # A 0 in a target keeps the dimension of the same place: all others are in front of the change.
  if any(t == 0 and (i >= len(shape) or shape[i] != new[i]) for i, t in enumerate(target)):
    return _unary(net, draw, x, shape)
  return net.Reshape(x, target), tuple(new)


def _norm(net, draw, x, shape):
  return net.Mul(x, net.ReduceMean(net.Mul(x, x), [_pick(draw, len(shape))])), shape


def _contract(net, draw, x, shape):
  if isinstance(shape[-1], str):
    return _norm(net, draw, x, shape)
  return net.MatMul(x, net.weight(shape[-1], 12)), (*shape[:-1], 12)


GROW = (
  _unary,
  _binary,
  _binary,
  _transpose,
  _reshape,
  _reshape,
  _norm,
  _contract,
)


@st.composite
def models(draw):
  net = Net(np.float32)
  starts = (("n", "m", 8), ("n", 16), ("n", 4, "m", 8), (1, "m", 8), (3, "n"))
  shape = draw(st.sampled_from(starts))
  x = net.input(*shape)
  for _ in range(draw(st.integers(3, 8))):
    x, shape = draw(st.sampled_from(GROW))(net, draw, x, shape)
  return net.model(net.Sigmoid(net.Mul(x, 0.5)))


def in_double(model):
  """The model computed in float64: what fp32 loses where large terms cancel is not asked here."""
  double = onnx.ModelProto()
  double.CopyFrom(model)
  del double.graph.value_info[:]
  for v in double.graph.input:
    if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
      v.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
  for t in double.graph.initializer:
    if t.data_type == onnx.TensorProto.FLOAT:
      t.CopyFrom(numpy_helper.from_array(np.float64(numpy_helper.to_array(t)), t.name))
  return double


def values_at(model, sizes):
  """Every tensor's value, in float64."""
  rng = np.random.default_rng(0)
  every = in_double(model)
  found = {t.name: numpy_helper.to_array(t) for t in every.graph.initializer}
  feeds = {
    v.name: rng.standard_normal([sizes.get(d.dim_param, d.dim_value) for d in v.type.tensor_type.shape.dim])
    for v in model.graph.input
  }
  del every.graph.output[:]
  names = [o for n in model.graph.node for o in n.output]
  every.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
  options = ort.SessionOptions()
  options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
  session = ort.InferenceSession(every.SerializeToString(), options, providers=["CPUExecutionProvider"])
  return found | feeds | dict(zip(names, session.run(None, feeds), strict=True))


def check(region, values):
  """What a run finds of the sizes is so, and terms and steps compute the values."""
  shapes = [values[i.tensor.name].shape for i in region.inputs]
  assert {a: m.value(shapes) for a, m in region.runtime.items()} == {
    a: region.extents[a] for a in region.runtime
  }
  assert all(a.value(shapes) == b.value(shapes) for a, b in region.equal_dims)
  made = zip(region.outputs, region.output_dims, strict=bool(region.runtime))
  inner = [(o.tensor.name, d) for o, d in made] + list(region.inner_dims.items())
  for name, dims in inner:
    assert tuple(m.value(shapes) for m in dims) == values[name].shape
  for x in (*region.inputs, *region.outputs):
    assert prod(region.extents[a] for a in x.axes) == values[x.tensor.name].size
  terms = interpret_terms(Float64(), region.terms, named(region, values), region.extents)
  steps = interpret_steps(
    region, {i.tensor.name: values[i.tensor.name] for i in region.inputs}, rounded=False
  )
  for o, value in zip(region.outputs, terms, strict=True):
    want = values[o.tensor.name]
    flat = by_axes(o, want, region.extents)
    got = np.broadcast_to(value.aligned(o.axes)[0], flat.shape)
    near = {"rtol": 1e-9, "atol": 1e-9 * max(1, np.abs(want).max())}
    np.testing.assert_allclose(got, flat, **near)
    np.testing.assert_allclose(steps[o.tensor.name], want, **near)


#: Values whose last digits in float64 no function of theirs brings in front of the ninth.
MOST = 1e6


def check_model(model):
  program, count = import_model(load_model(model)), 0
  found = find_candidates(program)
  assert all(r.code in REJECTIONS and "10485" not in r.reason for r in found.rejections)
  for sizes in ({"n": 2, "m": 5}, {"n": 7, "m": 3}):
    values = values_at(model, sizes)
    if not all(np.abs(v).max() < MOST for v in values.values()):
      continue  # fp32 overflows, float64 does not; and a sigmoid of so large ones shows their last digits
    for c in found.candidates:
      try:
        region = at_sizes(c.region, program, sizes)
      except RejectionError as refused:
        assert refused.rejection.code == "DYNAMIC_DIM"
        continue
      assert "10485" not in region.text + str(region.steps)
      check(region, values)
      count += bool(region.runtime)
  return count


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(models())
def test_random_programs(model):
  check_model(model)


def test_repeated_elements():
  """A mask that is repeated to a shape which the model computes; one that would be stored so."""
  net = Net(np.float32)
  x, mask = net.input("n", 4, "m"), net.input("n", 4, 1)
  whole = net.Expand(net.Mul(net.Sigmoid(mask), 0.5), net.Shape(x))
  model = net.model(net.Exp(net.Mul(x, whole)), net.Tanh(whole))
  assert check_model(model) >= 2
  reasons = [r.reason for r in find_candidates(import_model(load_model(model))).rejections]
  assert any("repeats its elements in a run" in r for r in reasons)


@pytest.mark.parametrize("perm", [[0, 2, 1, 3], [2, 0, 1, 3]])
def test_heads(perm):
  """Joined rows, split heads and a transposition: axes of both kinds beside each other."""
  net = Net(np.float32)
  x = net.Reshape(net.input("n", "m", 32), [-1, 32])
  y = net.MatMul(net.rms(x), net.weight(32, 32))
  y = net.Reshape(net.Tanh(net.Add(net.Reshape(y, [-1, 4, 8]), net.weight(4, 1))), [-1, 32])
  assert check_model(net.model(net.Tanh(y))) >= 2
  heads = Net(np.float32)
  z = heads.Reshape(heads.input("n", "m", 32), [0, 0, 4, 8])
  z = heads.Transpose(heads.rms(z), perm=perm)
  names = [{0: "n", 1: "m"}.get(k, 1) for k in perm]
  assert check_model(heads.model(heads.Mul(z, heads.input(*names)))) >= 2


def test_shapes_of_what_is_only_read_in_part():
  """Three slices of one projection that a run's Concat of Shapes regroups: torch's encoder layer."""
  net = Net(np.float32)
  x = net.input("m", "n", 16)
  sizes = [net.Shape(x, start=d, end=d + 1) for d in (0, 1)]
  apart = net.Reshape(net.Add(x, net.weight(16)), net.Concat(*sizes, [2], [8], axis=0))
  part = net.Gather(apart, net.constant(1, np.int64), axis=2)
  model = net.model(net.Exp(net.Mul(part, 0.5)))
  region = region_of(model)
  assert apart not in [s.output.name for s in region.steps]
  assert [m.text for m in region.inner_dims[apart]] == ["i1[0]", "i1[1]", "2", "8"]
