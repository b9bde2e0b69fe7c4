"""DequantizeLinear means what onnxruntime's CPU kernel computes; what is not understood has a reason."""

import numpy as np
import onnxruntime as ort
import pytest
from dequantized_models import between, dequantized, integers
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from region_meaning import largest_region, meant
from small_models import Net, feeds, run_model

from mirage_onnx.importer import import_model, load_model


@settings(deadline=None)
@given(st.data())
def test_as_onnxruntime_computes_it(data):
  form = data.draw(st.sampled_from(["kn", "nk", "gemm"]), "form")
  axis = data.draw(st.sampled_from([None, 0, 1, -1, -2]), "axis")
  block = data.draw(st.sampled_from([0, 16, 32]), "block") if axis is not None else 0
  k, n = (
    (block or 1) * data.draw(st.integers(1, 5), "k") * 2,
    (block or 1) * data.draw(st.integers(1, 5), "n") * 2,
  )
  how = {
    "kind": data.draw(st.sampled_from(["u8", "i8", "u4", "i4", "e4m3", "e5m2"]), "kind"),
    "zero": data.draw(st.sampled_from(["", "same", "own"]), "zero"),
    "seed": data.draw(st.integers(0, 99), "seed"),
  }
  dtype = data.draw(st.sampled_from([np.float16, np.float32]), "dtype")
  model = dequantized(3, k, n, axis=axis, form=form, block=block, dtype=dtype, **how)
  values = feeds(model, np.random.default_rng(how["seed"]))
  options = ort.SessionOptions()  # optimized, it rounds activations to 8 bits (MatMulNBits, accuracy level 4)
  options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
  session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
  got = session.run(None, values)[0].astype(np.float64)
  assert "DequantizeLinear" in " ".join(largest_region(model).nodes)
  want = meant(model, values)
  assert got.shape == want.shape
  assert np.linalg.norm(got - want) <= 3e-3 * np.linalg.norm(want)


@settings(deadline=None)
@given(st.data())
def test_activations_that_are_integers(data):
  kind, axis = data.draw(st.sampled_from([np.int8, np.uint8])), data.draw(st.sampled_from([None, 0, 1, -1]))
  model = between(
    3, 2 * data.draw(st.integers(1, 30), "k"), 2 * data.draw(st.integers(1, 20), "n"), kind=kind, axis=axis,
    dtype=data.draw(st.sampled_from([np.float16, np.float32]), "dtype"),
    point=data.draw(st.sampled_from([None, 0, 3, 127]), "zero point"), seed=data.draw(st.integers(0, 99)),
  )  # fmt: skip
  values = integers(model)
  options = ort.SessionOptions()
  options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
  session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
  got, want = session.run(None, values)[0].astype(float), meant(model, values)
  assert len([n for n in largest_region(model).nodes if "DequantizeLinear" in n]) == 2
  assert np.linalg.norm(got - want) <= 3e-3 * np.linalg.norm(want)


@pytest.mark.parametrize(
  ("change", "reason"),
  [
    (lambda node: node.attribute.append(helper.make_attribute("block_size", 2)), "for every block"),
    (lambda node: node.input.__setitem__(2, "z"), "not one number that no run changes"),
  ],
)
def test_activations_with_other_scales_are_left(change, reason):
  model = between()
  node = next(n for n in model.graph.node if n.input[0] == model.graph.input[0].name)
  change(node)
  model.graph.input.append(helper.make_tensor_value_info("z", TensorProto.INT8, ()))
  found = {n.name: n.barrier for n in import_model(load_model(model)).nodes}
  assert reason in found[node.name].reason


@given(st.data())
def test_a_bias_of_32_bits(data):
  """As onnxruntime.quantization writes it: the scale is that of the activations times the weights'."""
  n, each = data.draw(st.integers(1, 40), "n"), data.draw(st.booleans(), "each")
  dtype = data.draw(st.sampled_from([np.float16, np.float32]), "dtype")
  net = Net(dtype, seed=data.draw(st.integers(0, 99), "seed"), opset=21)
  q = net.constant(net.rng.integers(-(2**20), 2**20, n), np.int32)
  scale = net.constant(net.rng.uniform(0.5, 1.5, n if each else ()) * 2.0**-20)
  zero = [net.constant(np.zeros(n if each else (), np.int32), np.int32)] * data.draw(st.booleans(), "zero")
  bias = net.DequantizeLinear(q, scale, *zero, axis=0)
  model = net.model(net.Gemm(net.input(3, 8), net.weight(8, n), bias))
  values = feeds(model, np.random.default_rng(0))
  (got,), want = run_model(model, values), meant(model, values)
  assert "DequantizeLinear" in " ".join(largest_region(model).nodes)
  np.testing.assert_allclose(got, want, rtol=3e-3, atol=3e-3)


def test_a_bias_with_a_zero_point_is_left():
  net = Net(opset=21)
  zero = net.constant(1, np.int32)
  bias = net.DequantizeLinear(net.constant(np.arange(8), np.int32), net.constant(0.5), zero)
  model = net.model(net.Gemm(net.input(3, 8), net.weight(8, 8), bias))
  code, reason = barrier(model)
  assert code == "OP_FORM" and "are not 0" in reason


def barrier(model):
  (node,) = (n for n in import_model(load_model(model)).nodes if n.op_type == "DequantizeLinear")
  return node.barrier and (node.barrier.code, node.barrier.reason)


def changed(name, value, **how):
  model = dequantized(**how)
  (node,) = (n for n in model.graph.node if n.op_type == "DequantizeLinear")
  kept = [a for a in node.attribute if a.name != name]
  del node.attribute[:]
  node.attribute.extend([*kept, helper.make_attribute(name, value)])
  return model


@pytest.mark.parametrize(
  ("model", "text"),
  [
    (lambda: changed("axis", 1, axis=0, k=64), "scales of shape [64] for 96 along axis 1"),
    (lambda: changed("block_size", 48, axis=0, block=32), "blocks of 48"),
    (lambda: changed("axis", 7, axis=0), "axis 7 of 2 dimensions"),
  ],
)
def test_other_forms_have_a_reason(model, text):
  code, reason = barrier(model())
  assert text in reason and code


@pytest.mark.parametrize("block", [0, 32])
def test_what_a_run_brings_is_no_weight(block):
  """Its bytes are read as they come, but with a scale for every block."""
  model = dequantized(**({"axis": 0, "block": block} if block else {}))
  (q,) = (w for w in model.graph.initializer if w.data_type == 2)
  value = model.graph.input.add()
  value.name = q.name
  value.type.tensor_type.elem_type = q.data_type
  for d in q.dims:
    value.type.tensor_type.shape.dim.add().dim_value = d
  found = barrier(model)
  assert (found is not None) == bool(block)
  if block:
    code, reason = found
    assert code == "OP_FORM" and "is no weight" in reason
