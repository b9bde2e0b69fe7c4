"""Conv whose windows fill the image is a product of windows, and one node again."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from small_models import Net, feeds, replaced_ops
from window_models import patches

import mirage_onnx
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.importer.split_windows import split_windows, whole_windows
from mirage_onnx.importer.windows import Windows, find_windows

PARTS = ["Reshape", "Transpose", "Reshape", "Reshape", "Transpose", "MatMul", "Add", "Transpose", "Reshape"]


def ops(model):
  return [n.op_type for n in model.graph.node]


def run(model, values):
  return ort.InferenceSession(model.SerializeToString()).run(None, values)[0]


FORMS = [
  {}, {"bias": False}, {"image": (24,), "window": (8,)}, {"image": (4, 6, 8), "window": (2, 3, 4)},
  {"image": (6, 10), "window": (3, 2)}, {"image": (4, 4), "window": (4, 4)}, {"window": (1, 4)},
  {"auto_pad": "VALID"}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}, {"opset": 13},
  {"kernel_shape": [4, 4], "pads": [0] * 4, "dilations": [1, 1], "group": 1}, {"dtype": np.float16},
  {"before": True}, {"channels": 1, "columns": 1},
]  # fmt: skip


@pytest.mark.parametrize("how", FORMS, ids=str)
def test_the_parts_compute_what_the_node_does(how):
  model = patches(**how)
  split = load_model(model).proto
  found = [op for op in ops(split) if op != "Tanh"]
  assert found == [op for op in PARTS if op != "Add" or how.get("bias", True)]
  values = feeds(model, np.random.default_rng(0))
  near = 2e-5 if how.get("dtype", np.float32) is np.float32 else 2e-3
  np.testing.assert_allclose(run(split, values), run(model, values), rtol=near, atol=near)
  whole_windows(split)
  assert split.SerializeToString() == model.SerializeToString()


def test_as_many_images_as_a_run_says():
  """None of them, too, and with nothing said of what is between."""
  model = patches(batch="batch", before=True)
  del model.graph.value_info[:]
  split = load_model(model).proto
  assert ops(split) == ["Tanh", *PARTS]
  rng = np.random.default_rng(0)
  for batch in (0, 1, 5):
    values = {model.graph.input[0].name: rng.standard_normal((batch, 3, 8, 12)).astype(np.float32)}
    np.testing.assert_allclose(run(split, values), run(model, values), rtol=2e-5, atol=2e-5)


OTHERS = [
  ({"strides": [2, 2]}, "OP_FORM: Conv: its windows overlap, or leave elements out"),
  ({"image": (9, 13), "strides": [5, 5]}, "OP_FORM: Conv: its windows overlap, or leave elements out"),
  ({"image": (9, 12)}, "OP_FORM: Conv: its windows do not fill the image"),
  ({"pads": [0, 4, 0, 0]}, "OP_FORM: Conv: it pads the image"),
  ({"image": (16, 16), "dilations": [2, 2]}, "OP_FORM: Conv: its windows have holes"),
  ({"channels": 1, "columns": 2, "group": 2}, "OP_FORM: Conv: it has groups of channels"),
  ({"window": (1, 1)}, "OP_FORM: Conv: its windows are single elements"),
  (
    {"opset": 12},
    "OP_FORM: Conv: is a product of windows, which is taken apart in main graphs of opset 13 and later only",
  ),
]


@pytest.mark.parametrize(("how", "why"), OTHERS, ids=str)
def test_other_forms_stay(how, why):
  if "group" in how:
    net = Net(np.float32)
    model = net.model(net.Conv(net.input(2, 2, 8, 8), net.weight(2, 1, 4, 4), strides=[4, 4], group=2))
  else:
    model = patches(**how)
  loaded = load_model(model)
  assert loaded.proto.SerializeToString() == model.SerializeToString()
  (node,) = import_model(loaded).nodes
  assert f"{node.barrier.code}: {node.barrier.reason}" == why


def test_sizes_that_only_a_run_knows():
  """Of the image, of which the result's are made."""
  net = Net(np.float32)
  model = net.model(net.Conv(net.input(2, 3, "height", 8), net.weight(8, 3, 4, 4), strides=[4, 4]))
  assert ops(load_model(model).proto) == ["Conv"]
  assert (
    find_windows({}, (2, 3, "height", 8), (8, 3, 4, 4)) == "the sizes of image and weights are not all known"
  )
  assert find_windows({}, (2, 3, 0, 8), (8, 3, 4, 4)) == "the sizes of image and weights are not all known"
  assert find_windows({}, (2, 3), (8, 3)) == "the sizes of image and weights are not all known"
  strides = {"strides": [4, 4]}
  assert find_windows(strides, ("n", 3, 12, 8), (8, 3, 4, 4)) == Windows(3, 8, (3, 2), (4, 4))


def test_one_behind_the_other():
  """And one that two read, beside a name that a part would have."""
  net = Net(np.float32)
  y = net.Conv(net.input(2, 3, 8, 8), net.weight(6, 3, 2, 2), strides=[2, 2])
  z = net.Conv(y, net.weight(5, 6, 2, 2), strides=[2, 2])
  net.inputs.append(helper.make_tensor_value_info(f"{y}/rows", TensorProto.FLOAT, [2]))
  model = net.model(y, z)
  split = load_model(model).proto
  assert ops(split) == [op for op in PARTS if op != "Add"] * 2
  values = feeds(model, np.random.default_rng(0))
  np.testing.assert_allclose(run(split, values), run(model, values), rtol=2e-5, atol=2e-5)
  whole_windows(split)
  assert split.SerializeToString() == model.SerializeToString()


def test_parts_of_which_one_is_gone_stay():
  model = patches()
  split = load_model(model).proto
  (product,) = (n for n in split.graph.node if n.op_type == "MatMul")
  for p in product.metadata_props:
    p.value = ""  # a kernel of another name
  before = ops(split)
  whole_windows(split)
  assert ops(split) == before and not any(p.key for n in split.graph.node for p in n.metadata_props)


def test_what_a_model_says_of_parts_is_not_believed():
  """Nodes with our marks that compute something else stay what they are."""
  split = load_model(patches()).proto
  (turned, *_) = (n for n in split.graph.node if n.op_type == "Transpose")
  turned.attribute[0].ints[:] = [0, 4, 2, 1, 3, 5]
  split.graph.node[0].input[1] = "other"
  split.graph.initializer.add().CopyFrom(
    helper.make_tensor("other", TensorProto.INT64, [6], [0, 3, 3, 4, 2, 4])
  )
  loaded = load_model(split)
  assert not any(n.metadata_props for n in loaded.proto.graph.node)
  before = ops(loaded.proto)
  whole_windows(loaded.proto)
  assert ops(loaded.proto) == before


def test_without_a_measurement_nothing_changes():
  """A prediction says nothing of the parts, and what is written has the node as it was."""
  model = patches((64, 64), (16, 16), 3, 256, dtype=np.float16, behind=True)
  result = mirage_onnx.optimize(model, target="h100", workers=1)
  assert not any(op.startswith(("MatMul", "Conv")) for op in replaced_ops(result))
  kept = [n for n in result.model.graph.node if n.op_type == "Conv"]
  assert kept == [n for n in model.graph.node if n.op_type == "Conv"]
  assert "MatMul" not in ops(result.model)


def test_each_part_has_a_meaning():
  program = import_model(load_model(patches(dtype=np.float16, batch="batch")))
  assert [n.op_type for n in program.nodes] == PARTS and not any(n.barrier for n in program.nodes)
  assert {n.part_of for n in program.nodes} == {"Conv"}
  assert [n.op_type for n in program.nodes if n.with_reader] == ["MatMul", "Add", "Transpose"]


def test_nothing_to_take_apart():
  net = Net(np.float32)
  model = net.model(net.Tanh(net.input(2, 3)))
  assert split_windows(model, 20, {}) is model
