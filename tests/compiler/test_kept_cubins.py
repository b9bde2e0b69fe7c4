"""Compiled kernels from run to run: the same bytes, or compiled again."""

import stat
from dataclasses import replace

import pytest

from mirage_onnx.codegen import KernelSource
from mirage_onnx.compiler import compile as compiler
from mirage_onnx.compiler import compile_many
from mirage_onnx.compiler.kept_cubins import KeptCubins
from mirage_onnx.errors import Rejection
from mirage_onnx.ir.tensor_map import TensorMap
from mirage_onnx.target import H200

TEXT = 'extern "C" __global__ void __launch_bounds__(32) k(float* x) { x[threadIdx.x] += 1.0f; }'


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
  monkeypatch.setattr(compiler, "compiler_text", lambda: "another")
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
  kept, a, b = KeptCubins(tmp_path / "c", "c"), source("a"), source("b")
  kept.put(a, "sm", Rejection("SPILLS", "many"))
  assert kept.get(a, "sm") is not None
  kept.path(a, "sm").rename(kept.path(b, "sm"))
  assert kept.get(b, "sm") is None
  assert KeptCubins(None, "c").get(a, "sm") is None


FORGED = {
  "another kernel": lambda: source(TEXT.replace(" k(", " n("), "n"),
  "more parameters": lambda: source(TEXT.replace("float* x", "float* x, int n")),
  "more threads": lambda: source(TEXT.replace("(32)", "(64)")),
  "a cluster": lambda: source(
    TEXT.replace("__launch_bounds__", "__cluster_dims__(2, 1, 1) __launch_bounds__")
  ),
  "two kernels": lambda: source(TEXT + TEXT.replace(" k(", " n(")),
}


@pytest.mark.parametrize("what", FORGED)
def test_an_image_of_something_else_is_compiled_again(asked, tmp_path, what):
  """Its hash is right: whoever writes a file can write that, too."""
  (first,) = compile_many([source()], H200, 1)
  (path,) = (tmp_path / "cubins").iterdir()
  other = FORGED[what]()
  (forged,) = compile_many([other], H200, 1)
  kept = KeptCubins.of_user(compiler.compiler_text())
  kept.put(source(), H200.arch, replace(forged, registers=first.registers))
  assert forged.image in path.read_bytes() and kept.get(source(), H200.arch) is None
  (again,) = compile_many([source()], H200, 1)
  assert again.image == first.image and len(asked) == 3


def test_other_registers_than_the_image_has_are_not_believed(tmp_path):
  kept = KeptCubins(tmp_path / "c", "c")
  made = compiler.compile_cubin(TEXT, H200, name="k")
  for registers in (made.registers, made.registers - 1):
    kept.put(source(), H200.arch, replace(made, registers=registers))
    found = kept.get(source(), H200.arch)
    assert (found is not None) == (registers == made.registers)


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_where_others_can_write_no_image_is_taken_or_kept(asked, tmp_path, mode):
  compile_many([source()], H200, 1)
  folder = tmp_path / "cubins"
  assert stat.S_IMODE(folder.stat().st_mode) == 0o700
  folder.chmod(mode)
  compile_many([source()], H200, 1)
  compile_many([source(TEXT + " ")], H200, 1)
  assert len(asked) == 3 and len(list(folder.iterdir())) == 1
  folder.chmod(0o755)
  compile_many([source()], H200, 1)
  assert len(asked) == 3


def test_a_link_is_no_folder_of_ones_own(asked, tmp_path):
  (tmp_path / "elsewhere").mkdir(mode=0o700)
  (tmp_path / "cubins").symlink_to(tmp_path / "elsewhere")
  compile_many([source()], H200, 1)
  compile_many([source()], H200, 1)
  assert len(asked) == 2 and not list((tmp_path / "elsewhere").iterdir())


def test_a_kernel_with_a_tensor_map_is_compiled_once(asked):
  """Its map is a parameter of 128 bytes; such kernels were compiled in every run, 1 to 3 s each."""
  text = (
    "struct alignas(64) Map { unsigned long long words[16]; }; "
    'extern "C" __global__ void __launch_bounds__(32) k(float* x, int n, const __grid_constant__ Map map) '
    "{ x[threadIdx.x] += n + (float)map.words[0]; }"
  )
  fed = replace(source(text), sizes=("n",), maps=(TensorMap("x", 64, 64, 64, 8, 0),))
  (first,) = compile_many([fed], H200, 1)
  (again,) = compile_many([fed], H200, 1)
  assert len(asked) == 1 and again.image == first.image
  assert KeptCubins.of_user(compiler.compiler_text()).get(replace(fed, maps=()), H200.arch) is None
