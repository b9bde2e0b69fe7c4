"""Compiles kernels' text for the host: one translation unit, and the runtime, linked together.

The text is what NVRTC compiles. Here it includes the twins of the PTX headers (``host/*.cuh``), and
g++ instruments its plain accesses to memory (``-fsanitize=thread,alignment``) with calls that the
runtime defines: the sanitizers' own libraries are not linked. The runtime (``host/runtime.cc``) is
compiled once.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.emulator.failure import EmulationError
from mirage_onnx.emulator.toolchain import BuildError, build_library

_PACKAGE = Path(__file__).resolve().parent
_HOST = _PACKAGE / "host"
INCLUDE_DIRS: tuple[Path, ...] = (_HOST, _PACKAGE.parent / "codegen" / "device")
"""The twin of a device header has the same file name and comes first."""

_COMMON = (
  *(f"-I{folder}" for folder in INCLUDE_DIRS),
  "-std=c++17",
  "-fPIC",
  "-w",
  "-fno-strict-aliasing",  # generated text views shared memory as different types
  "-fno-delete-null-pointer-checks",  # so that a store to null is a fault, not nothing
  "-ffp-contract=off",  # one result on every host, with or without FMA
  "-fno-math-errno",
  "-fno-exceptions",
  "-fno-rtti",
  "-fno-stack-protector",
  "-fno-threadsafe-statics",  # one launch at a time; their guards are in libstdc++
  "-fno-gnu-unique",  # modules must not share the runtime's state
  "-fvisibility=hidden",
  "-U_FORTIFY_SOURCE",  # its longjmp check does not know other stacks
)
_RUNTIME = (*_COMMON, "-O2", "-c")
_TEXT = (
  *_COMMON,
  "-O1",
  "-g1",  # lines; addr2line of binutils 2.40 takes file names of DWARF 5 for the wrong ones
  "-gdwarf-4",
  "-fno-var-tracking",  # lines are all that is read: a fifth to a quarter of the compiler's time
  "-fno-var-tracking-assignments",
  "-fno-optimize-sibling-calls",  # a call's return address tells its line
  "-fstack-clash-protection",  # a large frame must not step over the guard page
  "-U__CUDA_ARCH__",
)
_CHECKS = ("-fsanitize=thread,alignment", "--param=tsan-instrument-func-entry-exit=0")
_LINK = (
  "-shared",
  "-Wl,-z,defs",
  "-nodefaultlibs",  # above all not libtsan
  "-Wl,--no-as-needed",  # the libraries come before the text
  "-lm",
  "-lc",
  "-lgcc",
)

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"[ \t]*$', re.MULTILINE)
_ENTRIES = """extern "C" {
extern const emu::Entry emu_entries[];
const emu::Entry emu_entries[] = {%s};
}
"""


def build(kernels: Sequence[KernelSource], *, checks: bool, ulps: int = 0) -> Path:
  """The shared library of several kernels, from the cache if it was built before.

  ``ulps``: how far beside the right result approximate functions are.

  Raises:
      EmulationError: the text does not compile.
      MirageError: HOST_COMPILER_MISSING.
  """
  unit = _unit(kernels)
  runtime = (_HOST / "runtime.cc").read_text()
  flags = (*_TEXT, *(_CHECKS if checks else ()), *((f"-DEMU_ULPS={ulps}",) if ulps else ()))
  try:
    linked = build_library(runtime, _RUNTIME, _closure(runtime), suffix=".o")
    return build_library(unit, (*flags, str(linked), *_LINK), _closure(unit))
  except BuildError as error:
    lines = str(error).splitlines()
    errors = [line for line in lines if "error" in line or "undefined" in line] or lines
    message = "the text does not compile:\n" + "\n".join(errors[:12])
    raise EmulationError(message) from None


def _unit(kernels: Sequence[KernelSource]) -> str:
  """One translation unit of several kernels.

  Each text gets a namespace, so that helper functions of the same name do not collide; the
  headers are included before, outside of them. Line numbers in messages are those of the text.
  """
  headers: dict[str, None] = {"ptx.cuh": None, "entry.h": None}
  bodies: list[str] = []
  for i, kernel in enumerate(kernels):
    headers.update(dict.fromkeys(_INCLUDE.findall(kernel.text)))
    body = _INCLUDE.sub("", kernel.text)  # leaves the line, so that numbers stay
    bodies.append(f'namespace kernel_{i} {{\n#line 1 "{kernel.name}.cu"\n{body}\n}}')
  entries = ", ".join(f"emu::entry<&kernel_{i}::{k.name}>()" for i, k in enumerate(kernels))
  return "\n".join([f'#include "{h}"' for h in headers] + bodies + ['#line 1 "entries"', _ENTRIES % entries])


def _closure(unit: str) -> list[bytes]:
  """The contents of every header that the unit includes, directly or not."""
  seen: dict[str, bytes] = {}
  todo = _INCLUDE.findall(unit)
  while todo:
    name = todo.pop()
    if name not in seen:
      seen[name] = _header(name)
      todo += _INCLUDE.findall(seen[name].decode())
  return [seen[name] for name in sorted(seen)]


def _header(name: str) -> bytes:
  for folder in INCLUDE_DIRS:
    path = folder / name
    if path.is_file():
      return path.read_bytes()
  raise EmulationError(f'#include "{name}": no such device header')
