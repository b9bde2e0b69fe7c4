"""The host compiler and its cache."""

import ctypes

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
