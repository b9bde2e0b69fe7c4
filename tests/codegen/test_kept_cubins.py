"""Compiled kernels from run to run: the same bytes, or compiled again."""

from dataclasses import replace

import pytest

from mirage_onnx.codegen import KernelSource, compile_many
from mirage_onnx.codegen import compile as compiler
from mirage_onnx.codegen.kept_cubins import KeptCubins
from mirage_onnx.errors import Rejection
from mirage_onnx.target import H200

TEXT = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] += 1.0f; }'


def source(text=TEXT, name="k"):
  return KernelSource(
    name=name, text=text, args=("x",), grid=(1, 1, 1), block=32, cluster=1, smem_bytes=0, pdl=False
  )


@pytest.fixture
def asked(monkeypatch, tmp_path):
  """The texts that the compiler is asked for."""
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "on")
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path))
  found, real = [], compiler.compile_cubin

  def compile_cubin(text, target, *, name):
    found.append((text, name, target.arch))
    return real(text, target, name=name)

  monkeypatch.setattr(compiler, "compile_cubin", compile_cubin)
  return found


def test_a_text_is_compiled_once_and_refused_once(asked, tmp_path):
  sources = [source(), source("not CUDA")]
  first, refused = compile_many(sources, H200, 2)
  assert isinstance(refused, Rejection) and refused.code == "COMPILE_FAILED"
  again, refused_again = compile_many(sources, H200, 2)
  assert len(asked) == 2
  assert again == replace(first, seconds=0.0) and refused_again == refused
  assert len(list((tmp_path / "cubins").iterdir())) == 2


def test_another_text_name_or_architecture_is_compiled(asked):
  compile_many([source()], H200, 1)
  compile_many([source(TEXT + " ")], H200, 1)
  compile_many([source(TEXT.replace(" k(", " n("), "n")], H200, 1)
  compile_many([source()], replace(H200, arch="sm_90"), 1)
  assert len(asked) == 4


def test_another_compiler_or_header_is_asked(asked, monkeypatch):
  compile_many([source()], H200, 1)
  monkeypatch.setattr(compiler, "_compiler", lambda: "another")
  compile_many([source()], H200, 1)
  assert len(asked) == 2


@pytest.mark.parametrize(
  "damage", [lambda d: d[:-1], lambda d: d[:-9] + bytes(9), lambda d: b"", lambda d: b"{}\n" + d]
)
def test_what_is_damaged_is_compiled_again(asked, tmp_path, damage):
  (first,) = compile_many([source()], H200, 1)
  (path,) = (tmp_path / "cubins").iterdir()
  path.write_bytes(damage(path.read_bytes()))
  (again,) = compile_many([source()], H200, 1)
  assert len(asked) == 2 and again.image == first.image
  (kept,) = compile_many([source()], H200, 1)
  assert len(asked) == 2 and kept.image == first.image


def test_an_entry_under_another_name_is_none(tmp_path):
  kept = KeptCubins(tmp_path, "c")
  kept.put("a", "k", "sm", Rejection("SPILLS", "many"))
  kept.path("a", "k", "sm").rename(kept.path("b", "k", "sm"))
  assert kept.get("b", "k", "sm") is None
  assert KeptCubins(None, "c").get("a", "k", "sm") is None
