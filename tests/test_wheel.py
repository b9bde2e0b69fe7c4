"""The wheel: it has all that the package needs and works away from the source tree."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from mirage_onnx import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
  """A wheel built from a copy of the tracked and new files, as ``pip install .`` builds it."""
  source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
  command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
  names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
  for name in filter(None, names.decode().split("\0")):
    if (ROOT / name).is_file():
      (source / name).parent.mkdir(parents=True, exist_ok=True)
      (source / name).write_bytes((ROOT / name).read_bytes())
  pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
  subprocess.run([*pip, "-w", str(out), str(source)], check=True)
  (found,) = out.glob("*.whl")
  return found


def test_contents(wheel):
  names = set(zipfile.ZipFile(wheel).namelist())
  assert "mirage_onnx/custom_op/lib/libmirage_onnx_ops.so" in names
  assert "mirage_onnx/py.typed" in names
  package = ROOT / "mirage_onnx"
  data = [
    path.relative_to(ROOT).as_posix()
    for folder in ("codegen/device", "emulator/host", "targets/tables")
    for path in (package / folder).rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
  ]
  assert any(name.endswith(".cuh") for name in data)
  assert set(data) <= names
  outside = {n.split("/")[0] for n in names} - {"mirage_onnx"}
  assert all(top.endswith(".dist-info") for top in outside), outside
  assert any(name.endswith("licenses/LICENSE") for name in names)
  assert wheel.name.endswith("linux_x86_64.whl") and "-py3-none-" in wheel.name


def test_works_elsewhere(wheel, tmp_path):
  """Beside this environment's packages, but not its own (editable) mirage_onnx: hence -S."""
  site = tmp_path / "site"
  pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site)]
  subprocess.run([*pip, str(wheel)], check=True)

  def run(*arguments):
    done = subprocess.run(
      [sys.executable, "-S", *arguments],
      cwd=tmp_path,
      env={"PYTHONPATH": os.pathsep.join((str(site), sysconfig.get_path("purelib")))},
      check=True,
      capture_output=True,
      text=True,
    )
    return done.stdout.splitlines()

  paths = run("-c", "import mirage_onnx as m; print(m.__file__, m.get_library_path(), sep='\\n')")
  assert all(path.startswith(str(site)) for path in paths), paths
  assert run(str(site / "bin" / "mirage-onnx"), "version") == [f"mirage-onnx {__version__}"]
