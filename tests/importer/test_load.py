"""What is read of a file, and what is refused: a code and one sentence, never a traceback."""

import os
import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from protos import new_node, typed

from mirage_onnx.errors import MirageError
from mirage_onnx.importer import atoms, import_model, load_model
from mirage_onnx.onnx_process import Onnx
from tests.importer.refusals import F32, refusal, relu

MODELS = Path(__file__).parents[2] / "models"
SMALL = MODELS / "rmsnorm_linear.onnx"


def test_missing(tmp_path):
  path = tmp_path / "no.onnx"
  assert refusal(path) == f"FILE_MISSING: '{path}' does not exist"


def test_folder(tmp_path):
  assert refusal(tmp_path) == f"FILE_UNREADABLE: '{tmp_path}' is a folder, not a file"


def test_unreadable(tmp_path, monkeypatch):
  path = tmp_path / "m.onnx"
  path.touch()

  def deny(self):
    raise PermissionError(13, os.strerror(13))

  monkeypatch.setattr(Path, "read_bytes", deny)
  assert refusal(path) == f"FILE_UNREADABLE: '{path}': Permission denied"


def test_empty(tmp_path):
  path = tmp_path / "m.onnx"
  path.touch()
  assert refusal(path) == f"NOT_ONNX: '{path}' is empty"


def test_too_large_for_protobuf(tmp_path):
  path = tmp_path / "m.onnx"
  with path.open("wb") as file:
    file.truncate(2**31)
  assert refusal(path) == f"NOT_ONNX: '{path}' is larger than 2 GiB in one file"


def test_text(tmp_path):
  path = tmp_path / "m.onnx"
  path.write_text("this is no model, it is a sentence")
  assert refusal(str(path)) == (f"NOT_ONNX: '{path}' is not a protobuf message, or is cut off")


def test_no_graph(tmp_path, bench):
  path = tmp_path / "m.onnx"
  path.write_bytes(onnx.ModelProto(ir_version=10).SerializeToString())
  assert refusal(path) == f"NOT_ONNX: '{path}' has no graph"
  assert refusal(onnx.ModelProto()) == "NOT_ONNX: the model in memory has no graph"


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes(tmp_path, seed):
  path = tmp_path / "m.onnx"
  path.write_bytes(random.Random(seed).randbytes(1000))
  assert refusal(path).startswith("NOT_ONNX: ")


def test_truncated(tmp_path):
  """Cut anywhere, the file is refused; nearly everywhere as no ONNX file."""
  data, path = SMALL.read_bytes(), tmp_path / "m.onnx"
  codes = []
  for end in range(0, len(data), 97):
    path.write_bytes(data[:end])
    codes.append(refusal(path).split(":")[0])
  assert set(codes) <= {"NOT_ONNX", "MODEL_INVALID", "OPSET_UNSUPPORTED"}
  assert codes.count("NOT_ONNX") > 0.9 * len(codes)


def test_damaged(tmp_path):
  """A changed byte in names, types and attributes gives a code or a model, nothing else."""
  data, path, rng = SMALL.read_bytes(), tmp_path / "m.onnx", random.Random(0)
  done = 0
  for _ in range(200):
    damaged = bytearray(data)
    damaged[rng.randrange(1200)] = rng.randrange(256)
    path.write_bytes(damaged)
    try:
      loaded = load_model(path)
      program = import_model(loaded)
      atoms(loaded, program.constants)
    except MirageError as e:
      assert "\n" not in e.detail
    else:
      done += 1
  assert 0 < done < 200


# What ONNX Runtime loads and a stricter reader would refuse.


def test_stale_shapes(bench):
  """Declared shapes that contradict the operators are no reason."""
  model = relu(bench)
  model.graph.node.append(new_node("Neg", "y", "z"))
  model.graph.value_info.append(typed("y", 1, [7, 7]))
  model.graph.output[0].CopyFrom(typed("z", 1, [9]))
  program = bench.program(model)
  assert program.tensors["y"].shape == program.tensors["z"].shape == (2, 3)


def test_nodes_in_any_order(bench):
  nodes = [new_node("Relu", "a", "y"), new_node("Neg", "x", "a")]
  model = bench.model(nodes, {"x": (F32, [2])}, ["y"])
  loaded = load_model(model)
  assert loaded.order == (1, 0)
  assert [n.name for n in import_model(loaded).nodes] == ["Neg_1", "Relu_0"]
  assert loaded.node("Neg_1").op_type == "Neg"
  bench.agrees(model, {"x": np.array([-1, 2], F32)})


def test_operators_after_an_unknown_one(bench):
  """Nothing is known of their types: that is a reason, not an error."""
  nodes = [
    new_node("Foo", "x", "a", domain="my.domain"),
    new_node("Relu", "a", "y"),
    new_node("Add", "y x", "z"),
  ]
  model = bench.model(nodes, {"x": (F32, [2])}, ["z"], domains=["my.domain"])
  assert bench.barrier(model, 0) == "CUSTOM_DOMAIN: Foo: belongs to domain 'my.domain'"
  assert bench.barrier(model, 1) == "RANK_UNKNOWN: Relu: the type of 'a' is not known"
  assert bench.barrier(model, 2) == "RANK_UNKNOWN: Add: the type of 'y' is not known"


def test_declared_output_of_an_unknown_operator(bench):
  model = bench.model(
    [
      new_node("Foo", "x", "a", domain="my.domain"),
      new_node("Relu", "a", "y"),
    ],
    {"x": (F32, [2])}, ["y"], domains=["my.domain"],
  )  # fmt: skip
  model.graph.value_info.append(typed("a", 1, [5]))
  assert bench.program(model).nodes[1].barrier is None


def test_default_domain_by_its_other_name(bench):
  node = new_node("Relu", "x", "y", domain="ai.onnx")
  model = bench.model(node, {"x": (F32, [2])}, ["y"])
  bench.agrees(model, {"x": np.array([-1, 2], F32)})


def test_empty_lists(bench):
  """The shape of a scalar is an empty list, not a weight of size 0."""
  arrays = [np.ones((1, 1), F32), np.array([], np.int64)]
  bench.agrees(*bench.one("Reshape", arrays, weights=(1,)))


def test_models_of_any_ir_version(bench):
  model = relu(bench)
  for version in (3, 8, 10, 99):
    model.ir_version = version
    assert bench.program(model).nodes[0].barrier is None


@pytest.mark.parametrize("opset", [1, 6, 27, 99])
def test_outside(bench, opset):
  assert refusal(relu(bench, opset=opset)) == (
    f"OPSET_UNSUPPORTED: the model has opset {opset}, supported are 7 to 26"
  )


@pytest.mark.parametrize("opset", range(7, 27))
def test_inside(bench, opset):
  bench.agrees(relu(bench, opset=opset), {"x": np.ones((2, 3), F32)})


def test_none(bench):
  model = relu(bench)
  del model.opset_import[:]
  assert refusal(model) == (
    "OPSET_UNSUPPORTED: the model imports no opset of the default domain, which node Relu #0 needs"
  )


def test_two(bench):
  model = relu(bench)
  model.opset_import.append(helper.make_opsetid("ai.onnx", 14))
  assert refusal(model) == ("MODEL_INVALID: two opset versions are imported for the default domain")


def test_unique(bench):
  names = ["", "a", "a", "Relu_0", ""]
  nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"], name=n) for i, n in enumerate(names)]
  loaded = load_model(bench.model(nodes, {"v0": (F32, [2])}, ["v5"]))
  assert loaded.node_names == ("Relu_0_", "a", "Relu_2", "Relu_0", "Relu_4")
  assert loaded.node_index["Relu_2"] == 2
  assert [n.name for n in import_model(loaded).nodes] == list(loaded.node_names)


def test_the_model_is_not_changed(bench):
  model = relu(bench, weights={"w": np.ones((2, 3), F32)})
  before = model.SerializeToString(deterministic=True)
  import_model(load_model(model))
  assert model.SerializeToString(deterministic=True) == before


def test_large_weights_are_not_copied(bench, monkeypatch):
  """Inference sees the shape of a weight, not its bytes."""
  sizes = []
  infer = Onnx.inferred
  monkeypatch.setattr(
    Onnx, "inferred", lambda self, m, **k: sizes.append(m.ByteSize()) or infer(self, m, **k)
  )
  weight = np.ones((512, 512), F32)
  constant = new_node("Constant", "", "c", value=numpy_helper.from_array(weight))
  node = new_node("MatMul", "x w", "a")
  last = new_node("Add", "a c", "y")
  model = bench.model([constant, node, last], {"x": (F32, [512, 512])}, ["y"], {"w": weight})
  program = bench.program(model)
  assert sizes and max(sizes) < 2000
  assert program.weights == {"w", "c"} and program.tensors["c"].shape == (512, 512)
