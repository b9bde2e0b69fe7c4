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
from long_tests import LONG
from longest_files import ROOT, seconds

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


#: Entries of ``LONG`` that no test has.
NOT_THERE = pytest.StashKey[list[str]]()


def mark_long(items):
  """Marks what is in ``LONG`` as slow; returns the entries of files that are there, but not the test."""
  left, files = {f"{file}::{name}" for file, names in LONG.items() for name in names}, set()
  for item in items:
    file = item.path.relative_to(ROOT).as_posix() if item.path.is_relative_to(ROOT) else ""
    if f"{file}::{item.name}" in left:
      left.remove(f"{file}::{item.name}")
      item.add_marker(pytest.mark.slow)
    files.add(file)
  return sorted(entry for entry in left if entry.partition("::")[0] in files)


def pytest_addoption(parser):
  parser.addoption("--update-golden", action="store_true", help="write what golden tests get as expected")


@pytest.hookimpl(tryfirst=True)  # before ``-m`` takes its choice
def pytest_collection_modifyitems(config, items):
  config.stash[NOT_THERE] = mark_long(items)
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


@pytest.fixture
def long_tests_not_there(request):
  """Entries of ``LONG`` without a test, of files that are collected; None where a part of a file is."""
  in_part = any("::" in arg for arg in request.config.args) or request.config.option.keyword
  return None if in_part else request.config.stash[NOT_THERE]


@pytest.fixture(scope="session")
def folder_of_the_run(tmp_path_factory):
  """A folder that all workers of a run share, empty when it begins."""
  own = tmp_path_factory.getbasetemp()  # each worker has one of its own in that of the run
  return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@contextmanager
def _kept_in(folder):
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("MIRAGE_ONNX_CACHE", "on")
    patch.setenv("MIRAGE_CACHE_DIR", str(folder / "kept-searches"))
    yield


@pytest.fixture(scope="session")
def kept_searches(folder_of_the_run):
  """A context in which searches are made once for all files that take what they find as given.

  ``of``: what is searched. One process at a time is in it: a second one would search for the same meanwhile.
  """

  @contextmanager
  def kept(of):
    with (folder_of_the_run / f"kept-searches-{of}.lock").open("w") as lock, _kept_in(folder_of_the_run):
      fcntl.flock(lock, fcntl.LOCK_EX)
      yield

  return kept


@pytest.fixture(scope="module")
def searched_once(folder_of_the_run):
  """For files of what becomes of kernels: a structure is searched by the first test of a run that has it.

  Others find it as a later run of a user's does, solve for their own sizes and check what they get.
  """
  with _kept_in(folder_of_the_run):
    yield


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
