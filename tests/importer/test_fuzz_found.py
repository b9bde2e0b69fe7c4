"""What damaged files have shown: once a traceback, a hang or gigabytes, now a code or a barrier."""

import contextlib
import subprocess
import sys
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from protos import new_node

from mirage_onnx.errors import MirageError
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.importer.external import check_stored, read_tensor
from tests.importer.refusals import F32, refusal, relu


def test_a_function_that_calls_itself(bench):
  node = new_node("F", "x", "y", domain="local")
  model = bench.model(node, {"x": (F32, [2])}, ["y"], domains=["local"])
  call = new_node("F", "a", "b", domain="local")
  opsets = list(model.opset_import)
  model.functions.append(helper.make_function("local", "F", ["a"], ["b"], [call], opsets))
  assert refusal(model).startswith("MODEL_INVALID: Cycle detected in model-local function")


@pytest.mark.parametrize("version", [-1, 1 << 40])
def test_ir_version_that_no_one_has(bench, version):
  model = relu(bench)
  model.ir_version = version
  assert load_model(model).proto.ir_version == version


def test_a_file_name_that_is_too_long(bench, tmp_path):
  model = relu(bench, weights={"w": np.ones(3, F32)})
  tensor = model.graph.initializer[0]
  tensor.ClearField("raw_data")
  tensor.data_location = TensorProto.EXTERNAL
  for location in ("w" * 300, "a\0b"):
    del tensor.external_data[:]
    tensor.external_data.add(key="location", value=location)
    assert refusal(model, base_dir=tmp_path) == (
      f"EXTERNAL_DATA_MISSING: the tensor 'w' is in the file {location!r}"
    )


def test_too_many_dimensions(bench):
  model = relu(bench, weights={"w": np.ones(1, F32)})
  model.graph.initializer[0].dims.extend([1] * 68)
  assert refusal(model) == "MODEL_INVALID: the tensor 'w' has 69 dimensions, more than 64"


def test_a_value_that_fits_into_no_memory(bench):
  node = new_node("Add", "x w", "y")
  model = bench.model(node, {"x": (F32, [1 << 30, 1]), "w": (F32, [1 << 30])}, ["y"])
  assert refusal(model) == ("MODEL_INVALID: the value 'y' of shape 1073741824x1073741824 fits into no memory")


def test_long_vectors_are_not_followed_as_shapes(bench):
  """onnx takes 5 s and 2 GB to follow a vector of 10^7 elements through one Add."""
  node = new_node("Add", "x w", "y")
  model = bench.model(node, {"x": (F32, [1 << 40]), "w": (F32, [1 << 40])}, ["y"])
  start = time.process_time()
  assert load_model(model).tensors["y"].shape == (1 << 40,)
  assert time.process_time() - start < 1


def test_shapes_beside_short_vectors_are_followed(bench):
  nodes = [
    new_node("Shape", "x", "s"),
    new_node("Mul", "s two", "ss"),
    new_node("Expand", "one ss", "y"),
  ]
  weights = {"two": np.array([2, 2]), "one": np.ones((1, 1), F32)}
  model = bench.model(nodes, {"x": (F32, [2, 3])}, ["y"], weights)
  assert load_model(model).tensors["y"].shape == (4, 6)


def test_sparse_initializers_are_dense_to_their_readers(bench):
  model = bench.model(new_node("Add", "x w", "y"), {"x": (F32, [2, 3])}, ["y"])
  sparse = model.graph.sparse_initializer.add(dims=[3])
  sparse.values.CopyFrom(numpy_helper.from_array(np.ones(1, F32), "w"))
  sparse.indices.CopyFrom(numpy_helper.from_array(np.array([2]), "places"))
  assert load_model(model).tensors["w"].shape == (3,)
  sparse.values.raw_data = b"12"
  assert refusal(model) == ("MODEL_INVALID: the tensor 'w' of shape [1] holds 2 bytes instead of 4")


@pytest.mark.parametrize(
  ("node", "w", "reason"),
  [
    # ReduceSum's way to say all axes, where they come at run time
    (new_node("ReduceSum", "x w", "y"), (np.int64, [0]), "RANK_UNKNOWN: ReduceSum"),
    # more dimensions than numpy broadcasts
    (new_node("Add", "x w", "y"), (F32, [1] * 40),
     "OP_FORM: Add: its attributes or shapes do not fit"),
  ],
)  # fmt: skip
def test_barriers(bench, node, w, reason):
  model = bench.model(node, {"x": (F32, [1] * 40), "w": w}, ["y"])
  assert bench.barrier(model).startswith(reason)


def test_mean_variance_normalization(bench):
  """onnx 1.23 fails at its own function for it."""
  node = new_node("MeanVarianceNormalization", "x", "y", axes=[0, 1])
  model = bench.model(node, {"x": (F32, [2, 3])}, ["y"])
  assert load_model(model).tensors["y"].shape == (2, 3)


@pytest.mark.parametrize(
  "node",
  [
    new_node("QuickGelu", "x", "y", domain="com.microsoft", alpha=[1.0, 2.0]),
    new_node("LayerNormalization", "x w", "y"),
  ],
  ids=lambda n: n.op_type,
)
def test_what_onnx_does_not_check_is_a_barrier(bench, node):
  inputs = {"x": (F32, [4, 64]), "w": (F32, [2])}
  model = bench.model(node, inputs, ["y"], domains=["com.microsoft"])
  assert bench.barrier(model).startswith(f"OP_FORM: {node.op_type}: its attributes or shapes")


def test_a_constant_that_is_a_graph(bench):
  node = new_node("Constant", "", "c")
  node.attribute.append(helper.make_attribute("value_strings", helper.make_graph([], "g", [], [])))
  del node.input[:]
  model = relu(bench)
  model.graph.node.append(node)
  program = import_model(load_model(model))
  assert program.nodes[-1].outputs == ("c",) and program.nodes[-1].barrier is not None


def test_the_name_of_a_dimension_is_text(bench):
  model = relu(bench)
  dim = model.graph.input[0].type.tensor_type.shape.dim[0]
  dim.dim_param = "@@"
  data = model.SerializeToString().replace(b"@@", b"\xff@")
  assert refusal(onnx.ModelProto.FromString(data)) == r"MODEL_INVALID: the name b'\xff@' is not UTF-8 text"


@pytest.mark.parametrize("dtype", [F32, np.int64])
def test_a_tensor_in_segments(bench, dtype):
  model = relu(bench, weights={"w": np.ones(3, dtype)})
  model.graph.initializer[0].segment.end = 3
  assert refusal(model) == "MODEL_INVALID: the tensor 'w' is a segment of one: no reader joins these"


@pytest.mark.parametrize("op", ["Softmax", "Transpose", "Concat", "Constant"])
def test_an_attribute_of_a_function_outside_of_one(bench, op):
  node = new_node(op, "" if op == "Constant" else "x", "y", name="n")
  node.attribute.add(name="axis", ref_attr_name="outer", type=2)
  model = bench.model(node, {"x": (F32, [2])}, ["y"])
  said = (
    "MODEL_INVALID: node 'n': its attribute 'axis' is the attribute 'outer' of a function, and it is in none"
  )
  assert refusal(model) == said


@pytest.mark.parametrize("dtype", [TensorProto.INT64, TensorProto.FLOAT])
def test_a_tensor_of_no_elements_and_two_huge_dimensions(bench, dtype):
  model = relu(bench)
  model.graph.initializer.add(name="w", data_type=dtype, dims=[0, 1 << 62, 1 << 62], raw_data=b"")
  assert refusal(model).startswith("MODEL_INVALID: the tensor 'w' of shape 0x4611686018427387904x")


def test_the_name_of_a_domain_is_text(bench):
  model = relu(bench)
  model.opset_import.add(domain="@@", version=1)
  data = model.SerializeToString().replace(b"@@", b"\xff@")
  assert refusal(onnx.ModelProto.FromString(data)) == r"MODEL_INVALID: the name b'\xff@' is not UTF-8 text"


def test_what_onnx_takes_though_it_is_not_there(bench):
  """Inference of STFT reads the dimensions of a scalar (onnx 1.23)."""
  nodes = [new_node("STFT", "x step window", "y")]
  inputs = {"x": (F32, [4, 8, 1]), "step": (np.int64, []), "window": (F32, [])}
  loaded = bench.model(nodes, inputs, ["y"])
  with contextlib.suppress(MirageError):
    load_model(loaded)


def test_shapes_of_more_dimensions_than_numpy_broadcasts(bench):
  node = new_node("Add", "w w", "y")
  model = bench.model(node, {}, ["y"], {"w": np.ones([1] * 36, np.int64)})
  assert not load_model(model).folded


@pytest.mark.parametrize("batch_dims", [-(1 << 31), 8, 1])
@pytest.mark.parametrize("inside", [False, True])
def test_more_batches_than_dimensions(bench, batch_dims, inside):
  """onnx ended the process: once by an assertion, once by reading far outside."""
  node = new_node("GatherND", "x rows", "y", batch_dims=batch_dims)
  if inside:
    made = helper.make_tensor_value_info("y", 1, None)
    branch = helper.make_graph([node], "b", [], [made])
    node = helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch)
  inputs = {"x": (F32, [4]), "rows": (np.int64, [2]), "c": (bool, [])}
  model = bench.model(node, inputs, [node.output[0]])
  code = (
    "import sys, onnx; from mirage_onnx.importer import load_model; load_model(onnx.load(sys.stdin.buffer))"
  )
  done = subprocess.run([sys.executable, "-c", code], input=model.SerializeToString(), capture_output=True)
  assert done.returncode in (0, 1), done.stderr[-2000:]  # loaded, or a refusal


@pytest.mark.parametrize("sparse", [False, True])
def test_indices_of_a_negative_size(bench, sparse):
  """onnx counts from it, and ends the process by reading outside."""
  model = bench.model(new_node("GatherND", "x rows", "y"), {"x": (F32, [4, 8])}, ["y"])
  if sparse:
    empty = TensorProto(name="rows", data_type=TensorProto.INT64, dims=[0])
    places = TensorProto(data_type=TensorProto.INT64, dims=[0])
    model.graph.sparse_initializer.add(values=empty, indices=places, dims=[-1])
  else:
    model.graph.input.append(helper.make_tensor_value_info("rows", TensorProto.INT64, [1, -3]))
  code = (
    "import sys, onnx; from mirage_onnx.importer import load_model; load_model(onnx.load(sys.stdin.buffer))"
  )
  done = subprocess.run([sys.executable, "-c", code], input=model.SerializeToString(), capture_output=True)
  assert done.returncode in (0, 1), done.stderr[-2000:]  # loaded, or a refusal


def in_a_process(model):
  """The exit code of loading a model; of signals a negative one."""
  code = (
    "import sys, onnx; from mirage_onnx.importer import load_model; load_model(onnx.load(sys.stdin.buffer))"
  )
  done = subprocess.run([sys.executable, "-c", code], input=model.SerializeToString(), capture_output=True)
  return done.returncode


def test_the_identity_like_what_nobody_knows(bench):
  """onnx reads a type that is not there."""
  nodes = [new_node("Theirs", "x", "u"), new_node("EyeLike", "u", "y", dtype=1)]
  nodes[0].domain = "theirs"
  model = bench.model(nodes, {"x": (F32, [2, 2])}, ["y"])
  model.opset_import.add(domain="theirs", version=1)
  assert in_a_process(model) == 0


@pytest.mark.parametrize(("axis", "code"), [(1, 0), (-1, 0), (1 << 31, 1), (-(1 << 31), 1), (1 << 62, 1)])
def test_axes_of_more_bits_than_onnx_counts_in(bench, axis, code):
  scale = np.ones([8], np.float32)
  node = new_node("LayerNormalization", "x scale", "y mean deviation", axis=axis)
  model = bench.model(node, {"x": (F32, [4, 8])}, ["y"], {"scale": scale})
  assert in_a_process(model) == code


def test_more_dimensions_than_any_array_has(bench):
  """A vector of 65536 sizes makes as many dimensions, each with a name that nothing else has."""
  model = bench.model(
    new_node("Expand", "x sizes", "y"), {"x": (F32, [4]), "sizes": (np.int64, [1 << 16])}, ["y"]
  )
  start = time.process_time()
  assert load_model(model).tensors["y"].shape is None
  assert time.process_time() - start < 2


@pytest.mark.parametrize("kind", ["INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2", "FLOAT6E2M3", "FLOAT6E3M2"])
@pytest.mark.parametrize("count", [1, 3, 4, 5])
def test_elements_of_less_than_a_byte_are_counted(kind, count):
  """As integers with too few entries they passed, until onnx met them (seed 32914)."""
  number = getattr(TensorProto, kind, None)
  if number is None:
    pytest.skip("this onnx has no such type")
  ones = np.ones(count, helper.tensor_dtype_to_np_dtype(number))
  for tensor in (helper.make_tensor("w", number, [count], [1] * count), numpy_helper.from_array(ones, "w")):
    check_stored(tensor, None)
    assert read_tensor(tensor, None).tobytes() == ones.tobytes()
    if tensor.HasField("raw_data"):
      tensor.raw_data = tensor.raw_data[:-1]
    else:
      del tensor.int32_data[-1]
    with pytest.raises(MirageError, match="holds"):
      check_stored(tensor, None)
