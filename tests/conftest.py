"""Shared by all tests: golden texts, seeded randomness, GPU detection, the hypothesis profile.

The models in ``models/`` are unpacked before any test file is imported.
"""

import difflib
import fcntl
import os
import re
import signal
import sys
import zlib
from contextlib import contextmanager
from pathlib import Path

# A worker has one core: where two are busy, BLAS threads that wait for each other take five times as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest
from golden_texts import GOLDEN, read_texts, write_text
from hypothesis import settings
from longest_files import seconds

from mirage_onnx.collect_env import gpus

sys.path.append(str(Path(__file__).parents[1] / "models"))

import packed

# No test finds what another run has found: those of the cache open one of their own. What g++ has built
# for the emulator is kept.
os.environ["MIRAGE_ONNX_CACHE"] = "searches-off"

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_configure(config):
  packed.write()


def pytest_addoption(parser):
  parser.addoption("--update-golden", action="store_true", help="write what golden tests get as expected")


def pytest_collection_modifyitems(items):
  if "PYTEST_XDIST_WORKER" in os.environ:  # files are dealt out in this order
    items.sort(key=lambda item: -seconds(item.path))
  marked = [item for item in items if item.get_closest_marker("gpu")]
  if not marked:
    return
  try:
    missing = "" if gpus() else "the driver finds no GPU"
  except OSError as error:
    missing = str(error)
  for item in marked:
    if missing:
      item.add_marker(pytest.mark.skip(reason=f"needs an NVIDIA GPU: {missing}"))


@pytest.fixture(scope="session")
def kept_searches(tmp_path_factory):
  """A context in which searches are made once for all files that take what they find as given.

  ``of``: what is searched. One process at a time is in it: a second one would search for the same meanwhile.
  """
  shared = tmp_path_factory.getbasetemp()
  if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a folder of its own in that of the run
    shared = shared.parent

  @contextmanager
  def kept(of):
    with (shared / f"kept-searches-{of}.lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
      fcntl.flock(lock, fcntl.LOCK_EX)
      patch.setenv("MIRAGE_ONNX_CACHE", "on")
      patch.setenv("MIRAGE_CACHE_DIR", str(shared / "kept-searches"))
      yield

  return kept


@pytest.fixture
def rng(request):
  """A generator with a seed of its own for every test, the same in every run."""
  return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture
def hears_interrupts():
  """A SIGINT interrupts, here and in processes started by the test: a shell's background has it ignored."""
  present = signal.signal(signal.SIGINT, signal.default_int_handler)
  yield
  signal.signal(signal.SIGINT, present)


@pytest.fixture
def net():
  from small_models import Net

  return Net()


class Golden:
  """The expected text of a test in a file of such; ``assert text == golden`` compares with it."""

  __hash__ = None

  def __init__(self, path, name, update):
    self._path = path
    self._name = name
    self._update = update

  def __eq__(self, text):
    if not isinstance(text, str):
      return NotImplemented
    if self._update:
      write_text(self._path, self._name, text)
      return True
    return text == self._read()

  def _read(self):
    texts = read_texts(self._path)
    if self._name not in texts:
      where = f"{self._name} in {self._path}"
      pytest.fail(f"there is no {where}: run pytest --update-golden", pytrace=False)
    return texts[self._name]

  def difference(self, text):
    wanted = self._read().splitlines()
    lines = difflib.unified_diff(wanted, text.splitlines(), "golden", "got", lineterm="")
    where = f"{self._name} in {self._path}"
    return [f"differs from {where} (--update-golden accepts it)", *lines]


def pytest_assertrepr_compare(op, left, right):
  if op != "==":
    return None
  match left, right:
    case (str() as text, Golden() as golden) | (Golden() as golden, str() as text):
      return golden.difference(text)
  return None


@pytest.fixture
def golden(request):
  """The text <test file>/<name of the test> in tests/golden.txt."""
  name = re.sub(r"[^\w.=-]+", "_", request.node.name).strip("_")
  update = request.config.getoption("--update-golden")
  return Golden(GOLDEN, f"{request.path.stem}/{name}", update)


@pytest.fixture
def api(monkeypatch, tmp_path):
  """A stand-in for ``mirage_onnx.api``, for tests of what the command line does with its results."""
  from stand_in_api import Api

  import mirage_onnx

  stand_in = Api()
  monkeypatch.setitem(sys.modules, "mirage_onnx.api", stand_in)
  monkeypatch.setattr(mirage_onnx, "api", stand_in, raising=False)
  monkeypatch.setenv("MIRAGE_LOG_DIR", str(tmp_path / "logs"))
  return stand_in
