"""CUDA text to cubin: NVRTC through cuda-core. Needs no GPU, no driver and no toolkit."""

import importlib
import importlib.util
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from mirage_onnx import deadline
from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.compiler.cubin import Cubin
from mirage_onnx.compiler.kept_cubins import KeptCubins
from mirage_onnx.compiler.machine.check import miscompiled
from mirage_onnx.compiler.machine.pool import short_of_registers
from mirage_onnx.delegates import Delegates
from mirage_onnx.errors import MirageError, Rejection, RejectionError
from mirage_onnx.nvrtc_choice import chosen
from mirage_onnx.source_digest import HEADER_SOURCES, MACHINE_SOURCES, source_digest
from mirage_onnx.target import Target

DEVICE_HEADERS = Path(__file__).parents[1] / "codegen" / "device"

_USED = re.compile(r"Used (\d+) registers")
_SMEM = re.compile(r"(\d+) bytes smem")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
#: Macros and options of ptxas with which a kernel is compiled, the later ones where the first make
#: it spill. ptxas leaves registers for more blocks than one and may then spill what there is room
#: for; at last it is told to spend few. Nothing helps where very much is spilled. Where a block has all its
#: registers at once, the second way gives it none, and the last one helps where little is spilled: of 390
#: kernels (bench/results/nvrtc_seconds.json) it has helped one of 12 bytes, and none of eight of 28 and more.
_WAYS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
  ((), ()), (("PTX_BLOCKS=1",), ()), (("PTX_BLOCKS=1",), ("--register-usage-level=0",)),
)  # fmt: skip
_HOPELESS, _FULL_HOPELESS = 128, 24
_THREADS = re.compile(r"KERNEL\((\d+)")
#: Whether a product and a sum may become one instruction with one rounding. They may not: then a kernel
#: computes what its text says, to the bit what was checked. With it x - mean(x) of equal numbers was 3e-8 x,
#: and a norm with an epsilon of 1e-12 made +-1 of a constant row (MiniLM on an H100; the emulator made 0).
FMA = False
_IMPORTING = threading.Lock()
#: Who else compiles (text, name), None of what is left to us; the last one is asked (``compiled_elsewhere``).
Elsewhere = Callable[[Sequence[tuple[str, str]], Target], Sequence[Cubin | Rejection | None]]
_elsewhere = Delegates[Elsewhere]()
_ERROR = re.compile(r"^.*\berror\b.*$", re.MULTILINE)


def compile_cubin(text: str, target: Target, *, name: str) -> Cubin:
  """Compile one kernel.

  Raises:
      MirageError: COMPILER_MISSING.
      RejectionError: COMPILE_FAILED with the first error line, SPILLS, or MISCOMPILED.
  """
  started = time.perf_counter()
  refused: RejectionError | None = None
  full = False
  for macros, ptxas in _WAYS:
    if full and not ptxas:
      continue
    image, log, ptx = _nvrtc(text, target, name, macros, ptxas)
    stack, used, smem = _STACK.search(log), _USED.search(log), _SMEM.search(log)
    if stack is None or used is None:
      raise RejectionError("COMPILE_FAILED", f"{name}: no report of registers: {log!r}")
    stack_bytes, spill_bytes = int(stack[1]), int(stack[2]) + int(stack[3])
    if stack_bytes or spill_bytes:
      refused = refused or RejectionError(
        "SPILLS", f"{name}: {stack_bytes} bytes of stack, {spill_bytes} bytes of spills"
      )
    elif ptx and (wrong := miscompiled(ptx, image, name) or short_of_registers(ptx, int(used[1]))):
      refused = refused or RejectionError("MISCOMPILED", f"{name}: {wrong}")
    else:
      return Cubin(
        image=image,
        registers=int(used[1]),
        smem_bytes=int(smem[1]) if smem else 0,
        stack_bytes=stack_bytes,
        spill_bytes=spill_bytes,
        log=log,
        seconds=time.perf_counter() - started,
      )
    full = full or (spill_bytes > 0 and int(used[1]) >= _most_registers(text, target))
    if spill_bytes > (_FULL_HOPELESS if full else _HOPELESS):
      break
  assert refused is not None
  raise refused


def _most_registers(text: str, target: Target) -> int:
  """Of a thread, where a multiprocessor has one block of the kernel."""
  threads = _THREADS.search(text)
  return min(255, target.registers_per_sm // int(threads[1]) // 8 * 8) if threads else 255


def import_cuda_core() -> ModuleType:
  """cuda-core: of threads that import it at once, some would find it half made."""
  with _IMPORTING:
    return importlib.import_module("cuda.core")


def _require_compiler() -> None:
  """NVRTC is there, and what asks it, which takes 0.1 s to import: only where something is compiled."""
  try:
    if importlib.util.find_spec("cuda.core") is None:
      raise ImportError("No module named 'cuda.core'")
    chosen()
    from cuda.bindings import nvrtc

    nvrtc.nvrtcVersion()
  except (ImportError, OSError, RuntimeError) as error:
    raise MirageError("COMPILER_MISSING", str(error)) from error


def _nvrtc(
  text: str, target: Target, name: str, macros: Sequence[str] = (), ptxas: Sequence[str] = ()
) -> tuple[bytes, str, str]:
  """The image, what the compiler said, and the PTX of a kernel with wgmma."""
  _require_compiler()
  try:
    core = import_cuda_core()
  except ImportError as error:
    raise MirageError("COMPILER_MISSING", str(error)) from error
  options = core.ProgramOptions(
    name=f"{name}.cu",
    arch=target.arch,
    include_path=[str(DEVICE_HEADERS)],
    define_macro=list(macros) or None,
    fma=FMA,
    ptxas_options=["-v", *ptxas],
    no_cache=True,  # NVRTC's cache, in use where there is a driver, returns no ptxas report
  )
  log = _Log()
  try:
    program = core.Program(text, "c++", options)
    code = program.compile("cubin", logs=log)
  except Exception as error:  # cuda-core raises its own and the bindings' exception types
    raise RejectionError("COMPILE_FAILED", f"{name}: {_first_error(str(error))}") from error
  return bytes(code.code), log.text, _ptx(program.handle, name) if "wgmma" in text else ""


def _ptx(program: Any, name: str) -> str:
  """What machine code was just made of."""
  from cuda.bindings import nvrtc

  failed, size = nvrtc.nvrtcGetPTXSize(program)
  text = b" " * size
  if failed or nvrtc.nvrtcGetPTX(program, text)[0]:
    raise RejectionError("COMPILE_FAILED", f"{name}: NVRTC keeps no PTX")
  found: str = text.rstrip(b"\0").decode()
  return found


def _first_error(message: str) -> str:
  found = _ERROR.search(message)
  return (found[0] if found else message.splitlines()[0]).strip()


class _Log:
  """What cuda-core writes compiler output to."""

  def __init__(self) -> None:
    self.text = ""

  def write(self, text: str) -> int:
    self.text += text
    return len(text)


def of_one(text: str, name: str, target: Target) -> Cubin | Rejection:
  """As ``compile_cubin``, with a refusal as a value."""
  try:
    return compile_cubin(text, target, name=name)
  except RejectionError as error:
    return error.rejection


def compiled_elsewhere(by: Elsewhere) -> AbstractContextManager[None]:
  """Inside, ``compile_many`` of any thread asks ``by`` first."""
  return _elsewhere.asked(by)


def compile_many(sources: Sequence[KernelSource], target: Target, workers: int) -> list[Cubin | Rejection]:
  """Compile in ``workers`` threads; results in the order of ``sources``, refusals as values.

  What is not begun by the end that the caller has set (``deadline.until``) is refused.

  Equal texts are compiled once, and what another run has compiled not at all. 16 kernels took 1.34 s
  in one thread and 0.45 s in 16.

  Raises:
      MirageError: COMPILER_MISSING.
  """
  jobs = {(s.text, s.name): s for s in sources}
  if not jobs:
    return []
  kept = KeptCubins.of_user(compiler_text())

  end = deadline.end()
  found = {k: image for k, source in jobs.items() if (image := kept.get(source, target.arch)) is not None}
  missing = [k for k in jobs if k not in found]

  def made(key: tuple[str, str]) -> Cubin | Rejection:
    source = jobs[key]
    if time.monotonic() > end:
      return Rejection("BUDGET", f"{source.name}: the time ended before it was compiled")
    result = of_one(source.text, source.name, target)
    kept.put(source, target.arch, result)
    return result

  if missing and _elsewhere:
    for key, result in zip(missing, _elsewhere[-1](missing, target), strict=True):
      if result is not None:
        kept.put(jobs[key], target.arch, result)
        found[key] = result
    missing = [k for k in missing if k not in found]
  if missing:
    _require_compiler()
    with ThreadPoolExecutor(workers) as pool:
      found |= zip(missing, pool.map(made, missing), strict=True)
  return [found[s.text, s.name] for s in sources]


@cache
def compiler_text() -> str:
  """The compiler's version, how it is asked, its headers, how it is checked; it need not be loaded.

  Raises:
      MirageError: COMPILER_MISSING.
  """
  if (found := chosen()) is not None:
    version = f"{found.package} {found.version}"
  else:
    _require_compiler()
    from cuda.bindings import nvrtc

    version = str(nvrtc.nvrtcVersion()[1:])
  sources = source_digest(*HEADER_SOURCES, *MACHINE_SOURCES)
  return f"{version} {_WAYS} {_HOPELESS} {_FULL_HOPELESS} {FMA} {sources}"
