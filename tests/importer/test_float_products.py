"""MatMulBlockQuantizedFp8Weight as its schema says it: onnxruntime has it on GPUs only."""

import ml_dtypes
import numpy as np
import pytest
from float_products import E4M3, float8, widened
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
from region_meaning import meant
from small_models import feeds

from mirage_onnx.importer import import_model, load_model

OP = "MatMulBlockQuantizedFp8Weight"


@given(st.data())
def test_as_the_schema_says(data):
  block = data.draw(st.sampled_from([0, 16, 32, 128]), "block")
  k = (block or 16) * data.draw(st.integers(1, 5), "blocks")
  rows = data.draw(st.sampled_from([1, 3, (2, 3)]), "rows")
  dtype = data.draw(st.sampled_from([np.float16, ml_dtypes.bfloat16]), "type")
  how = {"n": data.draw(st.integers(2, 40), "n"), "bias": data.draw(st.booleans(), "bias")}
  model = float8(rows, k, block=block, dtype=dtype, seed=data.draw(st.integers(0, 99), "seed"), **how)
  values = feeds(model, np.random.default_rng(0))
  got, want = meant(model, values), widened(model, values)
  assert got.shape == want.shape
  assert np.linalg.norm(got - want) <= 1e-9 * np.linalg.norm(want)


def barrier(model):
  (node,) = (n for n in import_model(load_model(model)).nodes if n.op_type.startswith("MatMulBlock"))
  return node.barrier and (node.barrier.code, node.barrier.reason.partition(": ")[2])


def changed(position, array):
  """The product with another input."""
  model = float8(2, 64, 48, bias=True)
  node = model.graph.node[0]
  node.input[position] = "more"
  model.graph.initializer.append(numpy_helper.from_array(array, "more"))
  return model


@pytest.mark.parametrize(
  ("model", "code", "text"),
  [
    (lambda: changed(3, np.ones((), np.float32)), "OP_FORM", "rounds activations to floats of 8 bits"),
    (lambda: changed(1, np.ones((48, 64), ml_dtypes.float8_e5m2)), "DTYPE", "weights are e5m2, scales f32"),
    (lambda: changed(2, np.ones((48, 1), np.float16)), "DTYPE", "weights are e4m3, scales f16"),
    (lambda: changed(2, np.ones((47, 1), np.float32)), "OP_FORM", "47 elements of scales, not 48"),
    (lambda: changed(1, np.ones((48, 63), E4M3)), "OP_FORM", "weights of 48x63 for activations of 2x64"),
    (lambda: changed(4, np.ones(47, np.float16)), "OP_FORM", "the bias has shape [47], not [48]"),
    (lambda: float8(2, 100, 48, block=32), "OP_FORM", "blocks of 32 of 100 weights"),
  ],
)  # fmt: skip
def test_other_forms_have_a_reason(model, code, text):
  found = barrier(model())
  assert found[0] == code and text in found[1], found


def test_activations_of_another_type_have_a_reason():
  model = float8(2, 64, 48)
  for value in (*model.graph.input, *model.graph.output):
    value.type.tensor_type.elem_type = TensorProto.FLOAT
  assert barrier(model) == ("DTYPE", "activations are f32")


def test_floats_of_4_bits_have_a_reason():
  model = float8(2, 64, 48)
  node = model.graph.node[0]
  node.op_type = "MatMulBlockQuantizedFp4Weight"
  node.input[1:] = ["b", "s", "all"]
  for name, x in (("b", np.zeros((48, 32), np.uint8)), ("s", np.zeros((48, 4), np.uint8)),
                  ("all", np.ones((), np.float32))):  # fmt: skip
    model.graph.initializer.append(numpy_helper.from_array(x, name))
  assert barrier(model) == ("OP_FORM", "weights are floats of 4 bits, which no packed type here has")


@pytest.mark.parametrize("name", [OP, "MatMulBlockQuantizedFp4Weight"])
def test_shapes_are_known_behind_it(name):
  """As of any product: what is around it has regions."""
  model = float8((2, 3), 64, 48)
  node = model.graph.node[0]
  if name != OP:
    node.op_type, node.input[1] = name, "b"
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((48, 32), np.uint8), "b"))
  kind = helper.make_tensor_value_info("z", TensorProto.FLOAT16, None)
  model.graph.node.append(helper.make_node("Relu", [node.output[0]], ["z"]))
  model.graph.output[0].CopyFrom(kind)
  assert import_model(load_model(model)).tensors["z"].shape == (2, 3, 48)


def test_the_schema_is_as_it_was():
  """What the rule was written for: its inputs, by place, and its attributes."""
  (schema,) = (s for s in get_all_operator_schema() if s.name == OP)
  assert [i.name for i in schema.inputs] == ["A", "B", "b_scale", "a_scale", "bias"]
  assert {*schema.attributes} == {"block_size"}
