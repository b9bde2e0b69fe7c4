"""Comparing models: what passes, what does not, what the report says of kernels."""

import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from protos import new_node, typed
from refused import refused
from small_models import Net

from mirage_onnx.custom_op import compare
from mirage_onnx.custom_op.bundle import read_bundle
from mirage_onnx.custom_op.compare import compare_models
from mirage_onnx.custom_op.compare_inputs import KINDS, draw_inputs, size_of
from mirage_onnx.custom_op.comparison import NO_KERNEL, NodePath
from mirage_onnx.custom_op.difference import RTOL, difference, worse
from mirage_onnx.custom_op.edge_inputs import EDGES
from mirage_onnx.custom_op.node_digest import tie_nodes
from mirage_onnx.rewrite.model import rewrite_model
from mirage_onnx.rewrite.replacement import Replacement
from tests.custom_op.test_compare_inputs import Argument


def model(nodes, kind=TensorProto.FLOAT16, shape=("batch", 8), inits=None, out=None):
  graph = helper.make_graph(
    [helper.make_node(op, i, o) for op, i, o in nodes],
    "g",
    [typed("x", kind, shape)],
    [typed("y", kind if out is None else out, None)],
    [numpy_helper.from_array(v, k) for k, v in (inits or {}).items()],
  )
  opset = [helper.make_opsetid("", 20)]
  return helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()


def scaled(factor, dtype=np.float16):
  kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
  return model([("Mul", ["x", "f"], ["y"])], kind, inits={"f": np.array(factor, dtype)})


def test_a_model_and_itself():
  found = compare_models(scaled(2), scaled(2), draws=2)
  assert found.passed
  assert found.first_difference is None
  assert found.inputs == ("normal 0", "normal 1", *KINDS, *EDGES)
  assert (found.nodes, found.note, found.needed_rtol) == ((), NO_KERNEL, 0.0)
  (output,) = found.outputs
  assert (output.identical, output.max_abs, output.rtol) == (True, 0.0, RTOL["float16"])


@pytest.mark.parametrize(("dtype", "near", "far"), [(np.float16, 1.005, 1.02), (np.float32, 1.00005, 1.0002)])
def test_tolerances(dtype, near, far):
  within = compare_models(scaled(1, dtype), scaled(near, dtype))
  assert within.passed
  assert not within.outputs[0].identical
  beyond = compare_models(scaled(1, dtype), scaled(far, dtype))
  assert not beyond.passed
  assert beyond.first_difference.name == "y"
  assert beyond.needed_rtol == pytest.approx(far - 1, rel=0.1)
  assert beyond.outputs[0].max_abs > 0
  needed = beyond.needed_rtol
  assert compare_models(scaled(1, dtype), scaled(far, dtype), rtol=needed).passed
  assert not compare_models(scaled(1, dtype), scaled(far, dtype), rtol=needed * 0.999).passed


def test_the_least_precise_type_decides():
  """float32 logits of a float16 model are no better than float16."""
  node = new_node("Cast", "x", "y", to=TensorProto.FLOAT)
  graph = helper.make_graph(
    [node],
    "g",
    [typed("x", TensorProto.FLOAT16, [2, 8])],
    [typed("y", TensorProto.FLOAT, None)],
  )
  data = helper.make_model(
    graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10
  ).SerializeToString()
  assert compare_models(data, data).outputs[0].rtol == RTOL["float16"]
  assert compare_models(data, data).outputs[0].dtype == "float32"


def test_one_wrong_row_among_many_is_found():
  """A relative error over the whole tensor would hide it."""
  bias = np.zeros((64, 8), np.float16)
  bias[17] = 0.125
  node = [("Add", ["x", "f"], ["y"])]
  good = model(node, shape=(64, 8), inits={"f": np.zeros((64, 8), np.float16)})
  bad = model(node, shape=(64, 8), inits={"f": bias})
  assert not compare_models(good, bad).passed


def test_nan_and_infinity():
  plain, logs = model([("Abs", ["x"], ["y"])]), model([("Log", ["x"], ["y"])])
  assert compare_models(logs, logs).passed, "NaN where the reference has NaN"
  found = compare_models(plain, logs)
  assert not found.passed
  assert found.needed_rtol is None
  assert "nan instead of" in found.outputs[0].reason
  assert not compare_models(logs, plain).passed, "a number where the reference has NaN"
  json.dumps(found.to_dict())


def arrays(*values, dtype=np.float16):
  return np.array([values], dtype)


@pytest.mark.parametrize(
  ("want", "got", "passed"),
  [
    (np.inf, np.inf, True),
    (np.inf, -np.inf, False),
    (np.inf, 65504, True),
    (np.inf, 60000, False),
    (65504, np.inf, False),
    (-np.inf, -65504, True),
    (np.nan, np.nan, True),
    (np.nan, 0, False),
    (0, np.nan, False),
    (np.nan, np.inf, False),
  ],
)
def test_overflow(want, got, passed):
  found = difference("y", arrays(want, 1), arrays(got, 1.0005), 1e-2, 0.0, "normal 0")
  assert found.passed is passed
  assert not found.identical


def test_rows_of_noise_are_measured_against_typical_rows():
  noise = arrays(1e-5, -1e-5, dtype=np.float32)
  assert difference("y", noise, -noise, 1e-2, 0.01, "constant_rows").passed
  assert not difference("y", noise, -noise, 1e-2, 0.0, "constant_rows").passed
  zero = np.zeros_like(noise)
  found = difference("y", zero, noise, 1e-2, 0.0, "zeros")
  assert (found.passed, found.needed_rtol, found.reason) == (False, None, "the reference is zero")
  assert difference("y", zero, -zero, 0.0, 0.0, "zeros").passed, "-0 is 0"


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.uint8, object])
def test_other_types_must_be_equal(dtype):
  want = np.array([0, 1]).astype(dtype)
  assert difference("y", want, want.copy(), 1.0, 0.0, "k").passed
  found = difference("y", want, want[::-1].copy(), 1.0, 0.0, "k")
  assert (found.passed, found.needed_rtol) == (False, None)
  assert found.reason


def test_shapes_and_scalars():
  a = np.ones((2, 3), np.float32)
  assert "float32[3, 2] instead of float32[2, 3]" in difference("y", a, a.T, 1, 0, "k").reason
  scalar = np.array(1, np.float32)
  assert difference("y", scalar, scalar * np.float32(1.0000001), 1e-4, 0, "k").passed
  empty = np.ones((0, 3), np.float32)
  assert difference("y", empty, empty, 1e-4, 0, "k").identical


def test_the_worst_input_is_reported():
  x = arrays(1, 2)
  small = difference("y", x, arrays(1, 2.01), 1e-2, 0, "normal 0")
  large = difference("y", x, arrays(1, 3), 1e-2, 0, "outliers")
  nan = difference("y", x, arrays(1, np.nan), 1e-2, 0, "zeros")
  assert worse(small, large).worst == worse(large, small).worst == "outliers"
  assert not worse(small, large).passed
  assert worse(worse(small, nan), large).needed_rtol is None
  assert worse(worse(small, nan), large).max_abs == 1.0


def test_different_signatures():
  def refuse(b, match):
    with refused("SHAPES_DIFFER", match):
      compare_models(scaled(1), b)

  relu = [("Relu", ["x"], ["y"])]
  refuse(scaled(1, np.float32), "tensor.float16")
  refuse(model(relu, shape=("batch", 9)), "inputs: x")
  refuse(model(relu, shape=("batch",)), "inputs: x")
  renamed = onnx.load_from_string(model(relu))
  renamed.graph.node[0].output[0] = renamed.graph.output[0].name = "z"
  refuse(renamed.SerializeToString(), "outputs: y")
  more = onnx.load_from_string(model(relu))
  more.graph.output.append(more.graph.input[0])
  refuse(more.SerializeToString(), "1 outputs against 2")
  assert compare_models(model(relu), model(relu, shape=("rows", 8))).passed, "a symbol's name"


@pytest.mark.parametrize(
  ("make", "code"),
  [
    (lambda p: p / "nowhere.onnx", "FILE_MISSING"),
    (lambda p: b"not a model", "SESSION_FAILED"),
    (lambda p: model([("Nothing", ["x"], ["y"])]), "SESSION_FAILED"),
    (
      lambda p: model([("Reshape", ["x", "s"], ["y"])], inits={"s": np.array([7])}),
      "SESSION_FAILED",
    ),
    (lambda p: model([("Identity", ["x"], ["y"])], TensorProto.STRING), "OPTION_INVALID"),
  ],
  ids=["missing", "garbage", "unknown operator", "fails when run", "strings"],
)
def test_failures_are_one_line(tmp_path, make, code):
  broken = make(tmp_path)
  with refused(code):
    compare_models(broken, broken)


def test_options():
  for options in ({"provider": "tpu"}, {"draws": 0}):
    with refused("OPTION_INVALID"):
      compare_models(scaled(1), scaled(1), **options)


def test_cuda_that_is_not_there():
  import onnxruntime as ort

  if "CUDAExecutionProvider" in ort.get_available_providers():
    pytest.skip("onnxruntime has CUDA here")
  with refused("SESSION_FAILED", "CUDAExecutionProvider"):
    compare_models(scaled(1), scaled(1), provider="cuda")


def test_bfloat16_and_files(tmp_path):
  path = tmp_path / "m.onnx"
  path.write_bytes(
    model(
      [("Reshape", ["x", "s"], ["y"])],
      TensorProto.BFLOAT16,
      shape=(2, 8),
      inits={"s": np.array([8, 2])},
    )
  )
  found = compare_models(path, str(path))
  assert found.passed
  assert found.outputs[0].dtype == "bfloat16"
  assert found.outputs[0].rtol == RTOL["bfloat16"]


def test_inputs():
  arguments = [
    Argument("x", "float16", ["batch", 64]),
    Argument("b", "bfloat16", [2]),
    Argument("n", "double", []),
    Argument("ids", "int64", ["batch", 3]),
    Argument("mask", "bool", [50]),
    Argument("byte", "uint8", [50]),
  ]
  drawn = dict(draw_inputs(arguments, 0, 2, {"batch": 5}, {"ids": 100}))
  again = dict(draw_inputs(arguments, 0, 2, {"batch": 5}, {"ids": 100}))
  assert list(drawn) == ["normal 0", "normal 1", *KINDS]
  for kind, feeds in drawn.items():
    assert feeds["x"].shape == (5, 64)
    assert feeds["x"].dtype == np.float16
    assert feeds["b"].dtype == ml_dtypes.bfloat16
    assert feeds["n"].shape == ()
    assert feeds["ids"].dtype == np.int64
    assert 0 <= feeds["ids"].min() <= feeds["ids"].max() < 100
    assert feeds["byte"].max() <= 1
    assert all(np.isfinite(v.astype(float)).all() for v in feeds.values())
    assert all(v.tobytes() == again[kind][k].tobytes() for k, v in feeds.items())
  assert drawn["normal 0"]["x"].tobytes() != drawn["normal 1"]["x"].tobytes()
  assert set(drawn["normal 0"]["mask"].tolist()) == {True, False}
  assert np.ptp(drawn["constant_rows"]["x"], axis=-1).max() == 0
  assert np.ptp(drawn["constant_rows"]["x"], axis=0).min() > 0
  assert not any(v.any() for v in drawn["zeros"].values())
  small = abs(drawn["small"]["x"].astype(float)).max(axis=-1).ravel()
  assert small.max() < 0.2 and small[1] > 3 * small[0]
  assert 100 < abs(drawn["large"]["x"]).max() <= 1024
  assert drawn["offset"]["x"].min() > 32


@pytest.mark.parametrize(
  ("dim", "size"),
  [(7, 7), (None, 4), ("seq", 9), ("past", 4), ("seq + 1", 10), ("2*seq - past", 14), ("a b", 4),
   ("seq//2", 4), ("", 4)],
)  # fmt: skip
def test_dynamic_dimensions(dim, size):
  assert size_of(dim, {"seq": 9}) == size


def original_add():
  floats = [typed(v, TensorProto.FLOAT, ["n"]) for v in "abc"]
  graph = helper.make_graph([new_node("Add", "a b", "c", name="sum")], "add", floats[:2], floats[2:])
  return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def rewritten_add(models):
  region = Replacement(("sum",), ("a", "b"), (), ("c",), False, 0)
  bundle = models.bundle(models.add_plan())
  model = rewrite_model(original_add(), [region], bundle)
  tie_nodes(model, read_bundle(bundle))
  return model.SerializeToString()


def test_bodies_are_no_kernels(models):
  found = compare_models(original_add().SerializeToString(), rewritten_add(models))
  assert found.passed
  assert found.outputs[0].identical
  assert found.nodes == (NodePath("mirage/0/sum", "body", 0),)
  assert found.note == NO_KERNEL


def test_emulated_kernels(models, driver):
  """The rewriter's model through the custom-op library, with the driver stand-in."""
  found = compare_models(
    original_add().SerializeToString(),
    rewritten_add(models),
    dims={"n": 100},
    ep="host",
    driver=driver,
  )
  assert found.passed
  assert found.nodes == (NodePath("mirage/0/sum", "emulated", 12),)
  assert found.note == ""
  assert found.to_dict()["nodes"][0]["launches"] == 12


def test_kernels(models, monkeypatch):
  """On a GPU they are called kernels; here the session and its counts are made up."""
  real = compare.open_session
  monkeypatch.setattr(compare, "open_session", lambda model, how: real(model, replace(how, provider="cpu")))
  monkeypatch.setattr(compare, "launches", lambda session: {"one": 3, "two": 0})
  found = compare_models(scaled(1), scaled(1), provider="cuda")
  assert found.nodes == (NodePath("one", "kernel", 3), NodePath("two", "body", 0))
  assert found.note == ""


def test_dims_that_an_output_only_declares():
  """onnxruntime only warns."""
  net = Net(np.float32)
  x = net.input("rows", 8)
  model = net.model(net.Relu(x))
  other = onnx.ModelProto()
  other.CopyFrom(model)
  other.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 8
  a, b = model.SerializeToString(), other.SerializeToString()
  assert compare_models(a, a, draws=1, dims={"rows": 3}).passed
  with refused("SHAPES_DIFFER", r"declared as \[8, 8\], and is \[3, 8\]"):
    compare_models(a, b, draws=1, dims={"rows": 3})
  assert compare_models(b, b, draws=1, dims={"rows": 3}).passed, "the original is no better"
