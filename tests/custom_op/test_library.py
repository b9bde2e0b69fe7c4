"""Finding the library, the installed onnxruntime, and the model's nodes."""

import builtins
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from protos import new_node, typed
from refused import refused

from mirage_onnx.custom_op import InferenceSession, get_library_path, launches, library, register
from mirage_onnx.custom_op.library import load_library
from mirage_onnx.custom_op.runtime import custom_nodes, import_onnxruntime
from tests.custom_op.host import CPU, hosted


def test_the_variable_names_the_library(ops_library, monkeypatch):
  assert get_library_path() == str(ops_library)
  monkeypatch.setenv("MIRAGE_ONNX_OPS_LIBRARY", "/nowhere.so")
  with refused("OPS_LIBRARY_MISSING", "no such file"):
    get_library_path()


def test_installed_library_goes_before_the_build_folder(tmp_path, monkeypatch):
  monkeypatch.delenv("MIRAGE_ONNX_OPS_LIBRARY")
  package = tmp_path / "mirage_onnx" / "custom_op"
  monkeypatch.setattr(library, "__file__", str(package / "library.py"))
  monkeypatch.setattr(library.sysconfig, "get_paths", lambda: {"platlib": str(tmp_path / "site")})
  with refused("OPS_LIBRARY_MISSING", "cmake -S cpp/ort_custom_ops -B build/ops"):
    get_library_path()
  places = (
    tmp_path / "build" / "ops",
    tmp_path / "site" / "mirage_onnx" / "custom_op" / "lib",
    package / "lib",
  )
  for place in places:  # each goes before those made earlier
    place.mkdir(parents=True)
    (place / "libmirage_onnx_ops.so").touch()
    assert get_library_path() == str(place / "libmirage_onnx_ops.so")


def test_a_file_that_is_not_the_library(tmp_path, driver):
  text = tmp_path / "libmirage_onnx_ops.so"
  text.write_text("not a library")
  for path in (str(text), driver):
    with refused("OPS_LIBRARY_MISSING", "cannot be used"):
      load_library(path)


def test_two_onnxruntimes_are_refused(monkeypatch):
  found = {"onnxruntime", "onnxruntime-gpu"}

  def distribution(name):
    if name not in found:
      raise metadata.PackageNotFoundError(name)

  monkeypatch.setattr(metadata, "distribution", distribution)
  with refused("ORT_CONFLICT", "pip uninstall -y onnxruntime onnxruntime-gpu"):
    import_onnxruntime()
  for name in ("onnxruntime", "onnxruntime-gpu"):
    found = {name}
    assert import_onnxruntime() is ort


def test_missing_onnxruntime_is_told(monkeypatch):
  real = builtins.__import__

  def fake(name, *args, **kwargs):
    if name == "onnxruntime":
      raise ImportError("none here")
    return real(name, *args, **kwargs)

  monkeypatch.setattr(builtins, "__import__", fake)
  with refused("ORT_MISSING", "pip install onnxruntime"):
    import_onnxruntime()


def test_importing_the_package_does_not_import_onnxruntime():
  code = "import sys, mirage_onnx.custom_op; sys.exit('onnxruntime' in sys.modules)"
  subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_modes_are_refused(models):
  for call in (
    lambda: InferenceSession(models.add(), providers=CPU, ep="gpu"),
    lambda: register(ort.SessionOptions(), ep="gpu"),
  ):
    with refused("OPTION_INVALID", "auto, cuda, none, host"):
      call()


@pytest.mark.parametrize(
  ("providers", "available", "expected"),
  [
    (["CUDAExecutionProvider"], True, True),
    ([("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"], True, True),
    (None, True, True),
    (["CUDAExecutionProvider"], False, False),
    (["CPUExecutionProvider"], True, False),
    (None, False, False),
  ],
)
def test_default_mode_follows_the_providers(models, monkeypatch, providers, available, expected):
  names = (["CUDAExecutionProvider"] if available else []) + CPU
  monkeypatch.setattr(ort, "get_available_providers", lambda: names)
  seen = []
  monkeypatch.setattr(
    "mirage_onnx.custom_op.session.register",
    lambda options, *, ep, driver: seen.append((ep, driver)),
  )
  session = type("Session", (), {"get_providers": lambda self: CPU})
  monkeypatch.setattr(ort, "InferenceSession", lambda *a, **k: session())
  InferenceSession(models.add(), providers=providers)
  assert seen == ([("auto", None)] if expected else [])


def test_nodes_are_found_in_subgraphs_and_without_external_data(models, tmp_path):
  model = onnx.load_from_string(models.add(nodes=2))
  inner = helper.make_graph(
    [new_node("MuGraph_3", "bundle a b", "t", name="inner",
              domain="ai.mirage.v1.sm90a")],
    "then", [], [typed("t", TensorProto.FLOAT, ["n"])],
  )  # fmt: skip
  branch = new_node("If", "cond", "out", then_branch=inner, else_branch=inner)
  model.graph.node.append(branch)
  model.graph.node[1].name = ""
  path = tmp_path / "model.onnx"
  onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
  (tmp_path / "weights").unlink()
  assert custom_nodes(path) == ("node0", "MuGraph_0", "inner", "inner")


def test_models_that_cannot_be_read_are_left_to_onnxruntime(tmp_path):
  text = tmp_path / "model.onnx"
  text.write_bytes(b"\xff\xff not protobuf")
  for model in (str(text), text.read_bytes(), tmp_path / "absent.onnx"):
    assert custom_nodes(model) is None
    with pytest.raises(Exception, match="ONNXRuntimeError"):
      InferenceSession(model, providers=CPU)


def test_paths_and_external_data(models, vectors, driver, tmp_path):
  path = tmp_path / "model.onnx"
  onnx.save(
    onnx.load_from_string(models.add()), path,
    save_as_external_data=True, location="weights", size_threshold=0,
  )  # fmt: skip
  for model in (path, str(path)):
    session = hosted(model, driver)
    session.run(None, vectors)
    assert launches(session) == {"node0": 1}


def test_counters_are_json_whatever_the_names(models, vectors, driver):
  model = onnx.load_from_string(models.add())
  model.graph.node[0].name = name = 'a"b\\c\n\x01/µ'
  session = hosted(model.SerializeToString(), driver)
  session.run(None, vectors)
  assert launches(session) == {name: 1}


def test_counters_outlive_their_session_and_stay_few(models, driver):
  ops = load_library(get_library_path())
  model = models.add(nodes=200)
  first = ops.mark()
  session = hosted(model, driver)
  del session
  assert sum(c.id >= first for c in ops.counters()) == 200
  for _ in range(40):  # 8000 kernel objects
    hosted(model, driver)
  assert ops.mark() - first == 41 * 200
  assert len(ops.counters()) <= 4096 + 300  # finished ones, and those of sessions still alive
  last = ops.counters()[-1]
  assert last.id == ops.mark() - 1 and last.op == "MuGraph_0"


def test_a_short_buffer_is_cut_not_overrun(models, native, driver):
  import ctypes

  hosted(models.add(), driver)
  buffer = ctypes.create_string_buffer(b"x" * 32, 32)
  read = native.handle.mirage_counters_json
  read.restype = ctypes.c_size_t
  needed = read(None, buffer, ctypes.c_size_t(8))
  assert needed > 8 and buffer.raw[7] == 0 and buffer.raw[8:] == b"x" * 24
  whole = ctypes.create_string_buffer(needed)
  assert read(None, whole, ctypes.c_size_t(needed)) == needed
  assert json.loads(whole.value)


def test_the_library_needs_neither_cuda_nor_onnxruntime(ops_library):
  listing = subprocess.run(
    ["readelf", "-d", str(ops_library)], check=True, capture_output=True, text=True
  ).stdout
  needed = {line.split("[")[1].rstrip("]") for line in listing.splitlines() if "(NEEDED)" in line}
  assert needed <= {"libstdc++.so.6", "libgcc_s.so.1", "libc.so.6", "libm.so.6"}
  assert "NODELETE" in listing
  assert Path(ops_library).stat().st_size < 1 << 20
  assert os.environ["MIRAGE_ONNX_OPS_LIBRARY"] == str(ops_library)
