"""The host compiler and its cache."""

import ctypes
import os
from pathlib import Path

import pytest
from refused import refused

from mirage_onnx.emulator import toolchain
from mirage_onnx.emulator.toolchain import BuildError, build_library, has_host_compiler

FLAGS = ("-shared", "-fPIC")


@pytest.fixture
def cache(monkeypatch, tmp_path):
  monkeypatch.setattr(toolchain, "cache_folder", lambda: tmp_path / "cache")
  return tmp_path / "cache"


@pytest.fixture
def no_compiler(monkeypatch):
  monkeypatch.setenv("CXX", "/nowhere/g++")
  toolchain.host_compiler.cache_clear()
  yield
  toolchain.host_compiler.cache_clear()


def answer(value):
  return f'extern "C" int answer() {{ return {value}; }}'


def test_a_source_is_built_once(cache, monkeypatch):
  toolchain.host_compiler()
  path = build_library(answer(42), FLAGS)
  assert ctypes.CDLL(str(path)).answer() == 42
  monkeypatch.setattr("subprocess.run", None)  # no compiler from here on
  assert build_library(answer(42), FLAGS) == path
  assert [p.name for p in cache.iterdir()] == [path.name], "nothing temporary is left"


@pytest.mark.parametrize(
  "damage",
  [
    lambda data: data[: len(data) // 2],
    lambda data: b"",
    lambda data: data[:-1],
    lambda data: data[:4096] + bytes([data[4096] ^ 1]) + data[4097:],
    lambda data: b"not a library",
  ],
)
def test_a_damaged_library_is_built_again(cache, damage):
  """One that is cut short killed the process that opened it, in every run."""
  path = build_library(answer(42), FLAGS)
  whole = path.read_bytes()
  path.write_bytes(damage(whole))
  assert build_library(answer(42), FLAGS) == path
  assert path.read_bytes() == whole
  assert ctypes.CDLL(str(path)).answer() == 42


def test_a_library_is_on_the_disk_before_it_has_its_name(cache, monkeypatch):
  """Behind a power cut a name without its bytes killed the process that opened it."""
  calls, sync, replace = [], os.fsync, os.replace

  def synced(descriptor):
    calls.append(("fsync", os.fstat(descriptor).st_size))
    sync(descriptor)

  def replaced(old, new):
    calls.append(("replace", Path(old).stat().st_size))
    replace(old, new)

  monkeypatch.setattr("os.fsync", synced)
  monkeypatch.setattr("os.replace", replaced)
  size = build_library(answer(42), FLAGS).stat().st_size
  assert calls == [("fsync", size), ("replace", size)]


def test_the_folder_of_the_cache(monkeypatch, tmp_path):
  """``MIRAGE_CACHE_DIR`` says where; what is off, or cannot be written, is in a folder of the process."""
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "mine"))
  for setting in ("on", "searches-off"):
    monkeypatch.setenv("MIRAGE_ONNX_CACHE", setting)
    assert toolchain.cache_folder() == tmp_path / "mine" / "emulator"
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "off")
  own = toolchain.cache_folder()
  assert tmp_path not in own.parents and own == toolchain.cache_folder()
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "on")
  (tmp_path / "file").write_text("")
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "file"))
  assert tmp_path not in toolchain.cache_folder().parents


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o775, 0o777])
def test_a_folder_in_which_others_write_is_not_loaded_from(monkeypatch, tmp_path, mode):
  folder = tmp_path / "emulator"
  folder.mkdir()
  folder.chmod(mode)
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "on")
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path))
  assert (toolchain.cache_folder() == folder) == (mode in (0o700, 0o755))


def test_everything_that_matters_is_in_the_key(cache):
  built = {
    build_library(answer(1), FLAGS),
    build_library(answer(2), FLAGS),
    build_library(answer(1), (*FLAGS, "-O1")),
    build_library(answer(1), FLAGS, [b"a header"]),
    build_library(answer(1), FLAGS, [b"a", b" header"]),
  }
  assert len(built) == 5


def test_a_bad_source_leaves_nothing(cache):
  with pytest.raises(BuildError, match="error"):
    build_library("oops", FLAGS)
  assert list(cache.iterdir()) == []


def test_no_compiler(no_compiler):
  assert not has_host_compiler()
  with refused("HOST_COMPILER_MISSING", "/nowhere/g\\+\\+") as caught:
    build_library(answer(1), FLAGS)
  assert "install g++" in caught.value.line()
