"""The emulator's twins of the PTX headers, and the device headers compiled with them."""

import re

import numpy as np

from mirage_onnx import emulator
from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.emulator.build import INCLUDE_DIRS

HOST, DEVICE = (folder / "ptx.cuh" for folder in INCLUDE_DIRS)
MACROS = {"PTX_DEVICE", "PTX_KERNEL(threads)", "PTX_CLUSTER_KERNEL(threads, size)"}


def included(path):
  """Name -> text without comments, of a header and all it includes, of its own folder."""
  found = {}
  todo = [path]
  while todo:
    at = todo.pop()
    if at.name in found or not at.exists():
      continue
    found[at.name] = re.sub(r"//[^\n]*", "", at.read_text())
    todo += [at.parent / n for n in re.findall(r'#include "([^"]+)"', found[at.name])]
  return found


_TOKEN = re.compile(
  r"namespace (?:host|device) \{|[{}]|template <[^>]*>(?=\s)|"
  r"(?:PTX_DEVICE|EMU_INLINE) ([^;{}()]+\([^{};]*?\))\s*(?=\{)"
)


def functions(path):
  """Every function head in namespace ptx of a PTX header and its parts, without spacing.

  Namespaces ``host`` and ``device`` are what one side has for itself.
  """
  heads = set()
  for name, text in included(path).items():
    if not (name.startswith("ptx") or name == "sync.h"):
      continue
    depth, private, template = 0, None, ""  # private: the depth around a private namespace
    for match in _TOKEN.finditer(re.sub(r'"[^"]*"', "", text)):
      token = match[0]
      if token.startswith("template"):
        template = token + " "
      elif match[1]:
        if private is None:
          heads.add(template + re.sub(r"\s+", " ", match[1]))
        template = ""
      elif token == "}":
        depth, template = depth - 1, ""
        private = None if private == depth else private
      else:
        if token.startswith("namespace") and private is None:
          private = depth
        depth, template = depth + 1, ""
  return heads


def test_both_sides_have_the_same_functions():
  host, device = functions(HOST), functions(DEVICE)
  assert "U4 ld_stream_v4(const void* from)" in device
  assert "template <Order O> unsigned atom_add_u32(unsigned* at, unsigned value)" in device
  assert len(device) > 120
  assert device == host


def test_both_sides_have_the_same_macros_and_types():
  sides = []
  for path in (HOST, DEVICE):
    text = re.sub(r"//[^\n]*", "", path.read_text())
    sides.append(
      (
        MACROS & set(re.findall(r"#define (PTX_\w+(?:\([^)]*\))?)", text)),
        re.findall(r"struct [^;]*;\s*\};|using [^;]*;", text),
      )
    )
  assert sides[0] == sides[1]
  assert sides[0][0] == MACROS and len(sides[0][1]) == 4


def test_asm_and_builtins_are_in_the_ptx_headers_only():
  special = re.compile(r"\basm\b|threadIdx|blockIdx|__\w+\(|__shared__|__device__|__global__|__CUDA_ARCH__")
  for path in INCLUDE_DIRS[1].rglob("*.cuh"):
    code = re.sub(r"//[^\n]*", "", path.read_text())
    assert bool(special.search(code)) == path.name.startswith("ptx"), path.name


def test_all_device_headers_compile_for_the_host():
  names = sorted(path.name for path in INCLUDE_DIRS[1].glob("*.cuh"))
  shared = [n for n in names if not n.startswith("ptx")]
  text = "".join(f'#include "{name}"\n' for name in ["ptx.cuh", "ptx_warpgroup.cuh", "vector.cuh", *shared])
  text += """
    PTX_KERNEL(64) all_headers(const float* x, float* y) {
      float sum = warp_reduce<Sum>(ptx::ld_nc_f32(x + ptx::thread()));
      ptx::st_f32(y + ptx::thread(), sum);
    }"""
  source = KernelSource("all_headers", text, (1, 1, 1), 64, 1, 8, ("x", "y"), pdl=False)
  x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
  emulator.run_kernel(source, {"x": x, "y": y})
  assert (y.reshape(2, 32) == x.reshape(2, 32).sum(1, keepdims=True)).all()
