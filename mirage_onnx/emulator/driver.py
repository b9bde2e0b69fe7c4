"""A CUDA driver whose kernels are run by a Python function: what the custom-op library opens.

``host/driver.cc`` is compiled once per device profile and opened by its path. A launch calls
back into Python in the thread that runs the session (ctypes takes the GIL); sessions may run in
several threads at once.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mirage_onnx.emulator.toolchain import build_library
from mirage_onnx.target import Target

_SOURCE = Path(__file__).resolve().parent / "host" / "driver.cc"
_FLAGS = ("-O1", "-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-gnu-unique")


@dataclass(frozen=True, slots=True)
class DriverLaunch:
  """One ``cuLaunchKernelEx``.

  ``counter``: id of the kernel object (one per custom node and session); ``plan``, ``variant``,
  ``launch``: which launch of its plan this is. ``args``: per parameter the 64-bit value, and how
  many bytes of host memory there are behind it (0: it is an integer).
  """

  kernel: str
  grid: tuple[int, int, int]
  block: tuple[int, int, int]
  cluster: int
  smem_bytes: int
  counter: int
  plan: int
  variant: int
  launch: int
  args: tuple[tuple[int, int], ...]


#: Runs a kernel; an exception fails the launch, and its text reaches onnxruntime's message.
Runner = Callable[[DriverLaunch], None]


class _HostLaunch(ctypes.Structure):
  _fields_ = (
    ("counter", ctypes.c_uint64),
    ("plan", ctypes.c_uint32),
    ("variant", ctypes.c_uint32),
    ("launch", ctypes.c_uint32),
    ("args", ctypes.c_uint32),
    ("arg_bytes", ctypes.POINTER(ctypes.c_uint64)),
  )


class _Launch(ctypes.Structure):
  _fields_ = (
    ("kernel", ctypes.c_char_p),
    ("host", ctypes.POINTER(_HostLaunch)),
    ("params", ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64))),
    ("grid", ctypes.c_uint * 3),
    ("block", ctypes.c_uint * 3),
    ("cluster", ctypes.c_uint),
    ("smem_bytes", ctypes.c_uint),
  )


_Callback = ctypes.CFUNCTYPE(
  ctypes.c_int, ctypes.POINTER(_Launch), ctypes.POINTER(ctypes.c_char), ctypes.c_size_t
)


class Driver:
  """The opened library of one device profile; ``path`` is what a session is told."""

  def __init__(self, target: Target) -> None:
    major, minor = target.capability
    facts = {
      "CAPABILITY": 10 * major + minor, "SHARED_BYTES": target.smem_bytes,
      "RESERVED_BYTES": target.reserved_smem_bytes, "CLUSTERS": int(target.has_clusters),
      "MULTIPROCESSORS": target.multiprocessors, "NAME": f'"{target.gpu}"',
    }  # fmt: skip
    defined = (f"-DEMU_{name}={value}" for name, value in facts.items())
    self.path = build_library(_SOURCE.read_text(), (*_FLAGS, *defined))
    self._library = ctypes.CDLL(str(self.path))
    self._runner: Runner | None = None
    self._callbacks: list[object] = []  # for good: a launch may be in any of them

  def set_runner(self, runner: Runner) -> None:
    """All launches of this process go to ``runner`` from now on."""
    if runner == self._runner:
      return

    def launched(launch: ctypes._Pointer[_Launch], message: object, size: int) -> int:
      try:
        runner(_read(launch.contents))
      except BaseException as error:  # nothing may cross into C++
        line = " ".join(f"{type(error).__name__}: {error}".split())
        text = line.encode(errors="replace")[: size - 1]
        ctypes.memmove(message, text + b"\0", len(text) + 1)  # type: ignore[arg-type]
        return 1
      return 0

    self._runner = runner
    self._callbacks.append(_Callback(launched))
    self._library.emu_driver_set_run(self._callbacks[-1])


@functools.cache
def open_driver(target: Target) -> Driver:
  """The driver of a device profile; there is one in the process.

  Raises:
      MirageError: HOST_COMPILER_MISSING.
  """
  return Driver(target)


def _read(launch: _Launch) -> DriverLaunch:
  host = launch.host.contents
  return DriverLaunch(
    kernel=launch.kernel.decode(),
    grid=(launch.grid[0], launch.grid[1], launch.grid[2]),
    block=(launch.block[0], launch.block[1], launch.block[2]),
    cluster=launch.cluster,
    smem_bytes=launch.smem_bytes,
    counter=host.counter,
    plan=host.plan,
    variant=host.variant,
    launch=host.launch,
    args=tuple((launch.params[i].contents.value, host.arg_bytes[i]) for i in range(host.args)),
  )
