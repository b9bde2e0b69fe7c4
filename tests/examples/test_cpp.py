"""The C++ sample is built and run on the CPU, with the library of the wheel of onnxruntime.

The wheel has no header, so one of our own stands in for it; with ``ORT_INCLUDE_DIR`` the official one is
used.
"""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from small_models import run_model

import mirage_onnx
from tests.support.rewritten import chain

ROOT = Path(__file__).parents[2]
HEADER = os.environ.get("ORT_INCLUDE_DIR") or str(ROOT / "tests/support/ort_c_api")

pytestmark = pytest.mark.skipif(not shutil.which("cmake"), reason="cmake is not installed")


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
  folder = tmp_path_factory.mktemp("sample")
  (library,) = Path(ort.__file__).parent.joinpath("capi").glob("libonnxruntime.so.*")
  for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
    (folder / name).symlink_to(library)
  options = [f"-DORT_INCLUDE_DIR={HEADER}", f"-DORT_LIBRARY={folder / 'libonnxruntime.so'}"]
  for command in (
    ["cmake", "-S", str(ROOT / "examples/cpp"), "-B", str(folder / "build"), *options],
    ["cmake", "--build", str(folder / "build")],
  ):
    subprocess.run(command, check=True, capture_output=True)
  return str(folder / "build" / "run_model")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  made, folder = chain(), tmp_path_factory.mktemp("model")
  onnx.save(made.model, folder / "m.onnx")
  return made.original, str(folder / "m.onnx")


def test_on_the_cpu(sample, model):
  original, path = model
  command = [sample, path, mirage_onnx.get_library_path()]
  done = subprocess.run(command, check=True, capture_output=True, text=True)
  feeds = {
    i.name: (np.arange(np.prod(shape := [d.dim_value for d in i.type.tensor_type.shape.dim])) % 7 - 3)
    .reshape(shape)
    .astype(onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type))
    for i in original.graph.input
  }
  expected = [
    (o.name, "x".join(map(str, y.shape)), y.ravel()[0], y.sum(dtype=np.float64))
    for o, y in zip(original.graph.output, run_model(original, feeds), strict=True)
  ]
  found = [line.split() for line in done.stdout.splitlines()]
  assert [tuple(f[:2]) for f in found] == [e[:2] for e in expected]
  for f, e in zip(found, expected, strict=True):
    np.testing.assert_allclose([float(x) for x in f[2:]], e[2:], rtol=1e-6)


def test_what_is_wrong_is_said(sample, model):
  library = mirage_onnx.get_library_path()
  for arguments, said in (
    ([model[1], "no.so"], "no.so"),
    (["no.onnx", library], "no.onnx"),
    ([model[1], library, "--cuda"], "CUDA execution provider is not enabled in this build"),
    ([], "usage"),
  ):
    done = subprocess.run([sample, *arguments], check=False, capture_output=True, text=True)
    assert done.returncode in (1, 2) and said in done.stderr, done.stderr
