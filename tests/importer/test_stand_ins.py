"""Results of operators that onnx does not know are as ONNX Runtime makes them, without declared shapes."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from protos import new_node

import mirage_onnx
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir import DType

MS = "com.microsoft"
K, N, BLOCK, ROWS = 64, 96, 32, 50


def matmul_nbits(name, x, y, wide=K, high=N):
  node = new_node(
    "MatMulNBits", f"{x} {name}_b {name}_s", y, domain=MS, K=wide, N=high, bits=4, block_size=BLOCK
  )
  return node, {
    f"{name}_b": np.full((high, wide // BLOCK, BLOCK // 2), 0x5A, np.uint8),
    f"{name}_s": np.ones((high * wide // BLOCK,), np.float32),
  }


def table(bits=4, **attributes):
  node = new_node("GatherBlockQuantized", "t i ts", "e", domain=MS, bits=bits, block_size=BLOCK, **attributes)
  width = K * bits // 8
  return node, {"t": np.full((ROWS, width), 0x5A, np.uint8), "ts": np.ones((ROWS, K // BLOCK), np.float32)}


def built(nodes, inputs, output, weights):
  """Without a word about what lies between."""
  graph = helper.make_graph(
    nodes, "g",
    [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
    [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
    [numpy_helper.from_array(a, n) for n, a in weights.items()],
  )  # fmt: skip
  opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)]
  return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def runtime_shape(model, **values):
  session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
  return session.run(None, values)[0].shape


@pytest.mark.parametrize("shape", [(3, K), (2, 5, K)])
def test_product_with_a_matrix_of_few_bits(shape):
  node, weights = matmul_nbits("w", "x", "y")
  model = built([node], {"x": (TensorProto.FLOAT, shape)}, "y", weights)
  found = load_model(model).tensors["y"]
  assert found.dtype is DType.F32
  assert found.shape == runtime_shape(model, x=np.ones(shape, np.float32)) == (*shape[:-1], N)


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_a_table_of_few_bits_have_a_reason(bits):
  """A step reads a row of it: of an embedding of genai's builder some KB of what is hundreds of MB."""
  node, weights = table(bits)
  model = built([node], {"i": (TensorProto.INT64, (1, 1))}, "e", weights)
  (own,) = import_model(load_model(model)).nodes
  assert own.barrier.code == "OP_FORM" and "rows of a packed table that a run picks" in own.barrier.reason
  assert "OP_FORM" in str(mirage_onnx.explain(model, own.name))


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_a_table_of_few_bits(bits):
  node, weights = table(bits)
  model = built([node], {"i": (TensorProto.INT64, (2, 7))}, "e", weights)
  found = load_model(model).tensors["e"]
  assert found.dtype is DType.F32
  assert found.shape == runtime_shape(model, i=np.zeros((2, 7), np.int64)) == (2, 7, K)


@pytest.mark.parametrize(
  "attributes",
  [{"gather_axis": 1}, {"quantize_axis": 0}, {"block_size": 1 << 30}, {"block_size": 16}, {"bits": 0}],
)
def test_what_would_be_a_guess_stays_unknown(attributes):
  node, weights = table()
  for name, value in attributes.items():
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
  model = built([node], {"i": (TensorProto.INT64, (2, 7))}, "e", weights)
  assert load_model(model).tensors["e"].shape is None


def test_what_is_between_two_products_of_few_bits_is_a_region():
  """A layer of a model of onnxruntime-genai, whose files say nothing of the values inside."""
  embed, t = table()
  up, a = matmul_nbits("up", "e", "a", K, 512)
  down, b = matmul_nbits("down", "m", "d", 512, K)
  nodes = [
    embed, up, new_node("Sigmoid", "a", "s"), new_node("Mul", "a s", "m"), down, new_node("Add", "d e", "y"),
  ]  # fmt: skip
  model = built(nodes, {"i": (TensorProto.INT64, ("batch", 1))}, "y", {**t, **a, **b})
  report = mirage_onnx.inspect(model, target="h200")
  assert [sorted(r.ops) for r in report.regions] == [["Add", "MatMulNBits", "Mul", "Sigmoid"]]
  assert {x.code for x in report.barriers} == {"OP_FORM"}  # the table


def test_experts_of_few_bits_are_like_their_input():
  node = new_node("QMoE", "x p b1 s1 c1 b2 s2 c2", "y", domain=MS)
  model = built(
    [node], {"x": (TensorProto.FLOAT, ("rows", K)), "p": (TensorProto.FLOAT, ("rows", 8))}, "y",
    {n: np.ones((8, 4, 4), np.uint8) for n in ("b1", "s1", "c1", "b2", "s2", "c2")},
  )  # fmt: skip
  assert load_model(model).tensors["y"].shape == ("rows", K)
