"""MatMulNBits means what onnxruntime's CPU kernel computes; what is not understood has a reason."""

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from packed_models import product, without
from region_meaning import meant
from small_models import feeds, matches

from mirage_onnx.importer import import_model, load_model


@given(st.data())
def test_as_onnxruntime_computes_it(data):
  bits = data.draw(st.sampled_from([2, 4, 8]), "bits")
  block = data.draw(st.sampled_from([16, 32, 64, 128, 256]), "block")
  k = block * data.draw(st.integers(1, 5), "blocks")
  n = data.draw(st.integers(2, 40), "n")
  rows = data.draw(st.sampled_from([1, 3, (2, 3)]), "rows")
  dtype = data.draw(st.sampled_from([np.float16, np.float32]), "type")
  how = {name: data.draw(st.booleans(), name) for name in ("zero", "bias", "flat")}
  if bits < 8 and how["zero"] and data.draw(st.booleans(), "zero points of the activations' type"):
    how["zero"] = "float"
  seed = data.draw(st.integers(0, 99), "seed")
  model = product(rows, k, n, dtype=dtype, block=block, bits=bits, seed=seed, **how)
  values = feeds(model, np.random.default_rng(seed))
  session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
  got = session.run(None, values)[0].astype(np.float64)
  want = meant(model, values)
  assert got.shape == want.shape
  assert np.linalg.norm(got - want) <= (2e-3 if dtype is np.float16 else 2e-6) * np.linalg.norm(want)


def barrier(model):
  (node,) = (n for n in import_model(load_model(model)).nodes if n.op_type == "MatMulNBits")
  return node.barrier and (node.barrier.code, node.barrier.reason)


def added(model, position, array):
  model.graph.initializer.append(numpy_helper.from_array(array, "more"))
  without(model, position, "more")
  return model


def set_attribute(model, name, value):
  (node,) = (n for n in model.graph.node if n.op_type == "MatMulNBits")
  kept = [a for a in node.attribute if a.name != name]
  del node.attribute[:]
  node.attribute.extend([*kept, helper.make_attribute(name, value)])
  return model


def test_columns_in_their_own_order_are_left():
  same = np.arange(512) // 32
  assert barrier(added(product(), 4, same.astype(np.int32))) is None
  code, reason = barrier(added(product(), 4, same[::-1].astype(np.int32).copy()))
  assert code == "OP_FORM" and "g_idx" in reason


@pytest.mark.parametrize(
  ("name", "value", "text"),
  [
    ("bits", 5, "weights of 5 bits, not of 2, 4, 8"),
    ("bits", 3, "weights of 3 bits"),
    ("block_size", 48, "blocks of 48"),
    ("bits", "four", "bits are 512, 96, 32, 'four'"),
    ("K", [512, 512], "K, N, block_size, bits are"),
    ("K", 480, "weights of 480 x 96"),
    ("N", 95, "elements of scales"),
    ("weight_prepacked", 1, "weight_prepacked"),
  ],
)
def test_other_forms_have_a_reason(name, value, text):
  code, reason = barrier(set_attribute(product(), name, value))
  assert code == "OP_FORM" and text in reason


def test_a_short_last_block_has_a_reason():
  code, reason = barrier(set_attribute(product(k=512, block=32), "block_size", 256 * 3))
  assert (code, "blocks of 768" in reason) == ("OP_FORM", True)
  model = set_attribute(product(k=480, block=32), "block_size", 256)
  assert barrier(model) == ("OP_FORM", "MatMulNBits: the last block of 480 weights has 224 of 256")


def test_activations_of_another_type_have_a_reason():
  model = product(dtype=np.float32)
  for value in (*model.graph.input, *model.graph.output):
    value.type.tensor_type.elem_type = TensorProto.DOUBLE
  (scale,) = (w for w in model.graph.initializer if w.data_type == TensorProto.FLOAT)
  scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale).astype(float), scale.name))
  code, reason = barrier(model)
  assert code == "DTYPE" and "activations are f64" in reason


@pytest.mark.parametrize(("bits", "dtype"), [(4, np.float32), (8, np.float16)])
def test_zero_points_of_another_type_have_a_reason(bits, dtype):
  """ONNX Runtime has none of 8 bits that are floats."""
  code, reason = barrier(added(product(bits=bits), 3, np.zeros((96, 16), dtype)))
  assert code == "DTYPE" and "zero points are f" in reason


def test_too_few_zero_points():
  code, reason = barrier(added(product(), 3, np.zeros(95 * 8, np.uint8)))
  assert code == "OP_FORM" and "zero points" in reason


def test_weights_of_unknown_shape_have_a_reason():
  model = product()
  (b,) = (w for w in model.graph.initializer if w.data_type == 2)
  value = model.graph.input.add()
  value.name = b.name
  value.type.tensor_type.elem_type = b.data_type
  model.graph.initializer.remove(b)
  code, reason = barrier(model)
  assert code == "RANK_UNKNOWN" and "the shape of the weights is not known" in reason


def test_a_node_without_scales():
  model = product()
  (node,) = (n for n in model.graph.node if n.op_type == "MatMulNBits")
  node.input[2] = ""
  assert barrier(model) == ("OP_FORM", "MatMulNBits: there are no weights or no scales")


def test_weights_that_a_run_brings_are_no_region():
  model = product()
  (b,) = (w for w in model.graph.initializer if w.data_type == 2)
  value = model.graph.input.add()
  value.name = b.name
  value.type.tensor_type.elem_type = b.data_type
  for d in b.dims:
    value.type.tensor_type.shape.dim.add().dim_value = d
  found = matches(model)
  assert not found.candidates
