"""kill -9 at any point: the input as it was, the old output or the new, nothing else for long."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import onnx
import pytest
from exotic_models import with_region
from onnx import numpy_helper
from written_files import data_file

from mirage_onnx.rewrite.model import BUNDLE_NAME
from mirage_onnx.rewrite.save import External, save_model

#: Saves argv[1] as argv[2] with a copy of its data, and dies at the argv[4]-th call of os.argv[3].
DIE = """
import os, signal, sys
from pathlib import Path
import onnx
from mirage_onnx.rewrite import save
source, target, name, count = sys.argv[1:]
calls = []
def dying(*args, call=getattr(os, name), **options):
    calls.append(args)
    if len(calls) == int(count):
        os.kill(os.getpid(), signal.SIGKILL)
    return call(*args, **options)
setattr(os, name, dying)
model = onnx.load(source, load_external_data=False)
model.producer_name = "new"
save.save_model(model, Path(target), Path(source), external=save.External.COPY)
"""


def save_external(path):
  onnx.save(with_region(), path, save_as_external_data=True, size_threshold=1024,
            location=f"{path.stem}.data")  # fmt: skip
  return {p.name: p.read_bytes() for p in path.parent.iterdir()}


@pytest.fixture
def source(tmp_path):
  folder = tmp_path / "in"
  folder.mkdir()
  save_external(folder / "in.onnx")
  return folder / "in.onnx"


def files(folder):
  return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


#: The points of ``save_model``: files opened, written out and renamed, for the model and the data.
POINTS = [("open", 1), ("open", 2), ("fsync", 1), ("rename", 1), ("fsync", 2), ("fsync", 3), ("replace", 1)]


@pytest.mark.parametrize("data_too", [False, True])
def test_every_step_of_writing(source, tmp_path, data_too):
  """Model and weights are the old ones together; the next run removes what a step has left."""
  before, out = files(source.parent), tmp_path / "out.onnx"
  other = with_region()
  next(t for t in other.graph.initializer if len(t.raw_data) > 1024).raw_data = bytes(
    len(next(t for t in other.graph.initializer if len(t.raw_data) > 1024).raw_data)
  )
  save_model(other, out, inline_limit_bytes=0 if data_too else 1 << 30)
  old = files(tmp_path)
  assert len(old) == 1 + data_too
  for name, count in POINTS:
    command = [sys.executable, "-c", DIE, str(source), str(out), name, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert files(source.parent) == before
    found = files(tmp_path)
    assert {k: found[k] for k in old} == old
    new = sorted(found.keys() - old.keys())
    assert len(new) <= 2, f"{name} {count}: an earlier run's files are still there: {new}"
  save_model(onnx.load(source, load_external_data=False), out, source)
  assert set(files(tmp_path)) == {"out.onnx", data_file(out).name}
  assert files(tmp_path).keys() & old.keys() == {"out.onnx"} and out.read_bytes() != old["out.onnx"]


def test_files_of_a_run_that_goes_on_stay(tmp_path):
  out = tmp_path / "out.onnx"
  alive = tmp_path / f".out.onnx.{os.getppid()}.tmp"
  other = tmp_path / f".other.onnx.{2**22 + 1}.tmp"
  dead = tmp_path / f".out.onnx.data.{2**40}.tmp"  # beyond the largest process id
  for file in (alive, other, dead):
    file.write_bytes(b"half a model")
  save_model(with_region(), out, external=External.KEEP)
  assert set(files(tmp_path)) == {alive.name, other.name, "out.onnx"}


def whole(out):
  model = onnx.load(out)
  names = {t.name: t for t in model.graph.initializer}
  assert BUNDLE_NAME in names
  for tensor in names.values():
    assert np.prod(tensor.dims) == numpy_helper.to_array(tensor).size


@pytest.mark.slow
def test_at_random_moments_of_optimize(source, tmp_path):
  before = files(source.parent)
  out = tmp_path / "out.onnx"
  command = [sys.executable, "-m", "mirage_onnx", "optimize", str(source), "-o", str(out),
             "--target", "h200", "-q"]  # fmt: skip
  start = time.monotonic()
  subprocess.run(command, check=True, timeout=300, capture_output=True)
  takes = time.monotonic() - start
  rng = np.random.default_rng(0)
  # Half of the moments at the end, where the files are written (each call that changes one: bench/kills.py).
  moments = [0.0, *rng.uniform(0, 1.0, 3), *rng.uniform(0.85, 1.05, 3)]
  killed = 0
  for moment in moments:
    out.unlink(missing_ok=True)
    start = time.monotonic()
    process = subprocess.Popen(
      command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    with suppress(subprocess.TimeoutExpired):  # or it was sooner than the first one, which something held up
      process.wait(moment * takes)
      takes = min(takes, time.monotonic() - start)
    process.kill()
    killed += process.wait() == -signal.SIGKILL
    assert files(source.parent) == before
    if out.exists():
      whole(out)
  # The first and the third of three early moments; how long the others take is the machine's.
  assert killed >= 2
  subprocess.run(command, check=True, timeout=300, capture_output=True)
  whole(out)
  assert not [file for file in files(tmp_path) if file.endswith(".tmp")]
