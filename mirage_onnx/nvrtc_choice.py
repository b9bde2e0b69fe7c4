"""Which NVRTC compiles kernels: the newest installed one whose machine code the driver takes.

A driver loads machine code of its own major version of CUDA and of older ones, minor versions of it that are
newer than itself too (NVIDIA, "CUDA Compatibility"). So a driver of CUDA 12 needs the NVRTC of CUDA 12: the
package ``nvidia-cuda-nvrtc-cu12`` beside the one that comes with this program. Where there is no driver, the
newest is taken. cuda-bindings take the library that the process has loaded already.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

#: Packages, the newest first, and where they keep the library below the folder of ``nvidia``.
_PACKAGES = (
  ("nvidia-cuda-nvrtc", "cu13/lib/libnvrtc.so.13"),
  ("nvidia-cuda-nvrtc-cu12", "cuda_nvrtc/lib/libnvrtc.so.12"),
)


#: Older ones do not know ``--no-cache``; without it they report no registers where there is a driver.
LEAST = (12, 9)


@dataclass(frozen=True, slots=True)
class Nvrtc:
  """An installed compiler; ``version`` to the last digit."""

  package: str
  version: str
  path: Path

  @property
  def major(self) -> int:
    return int(self.version.partition(".")[0])


def installed() -> tuple[Nvrtc, ...]:
  """The packages of it that are there with their library, the newest first."""
  found = []
  for package, place in _PACKAGES:
    with suppress(metadata.PackageNotFoundError, ValueError):
      version = metadata.version(package)
      path = next((p for p in (folder / place for folder in _folders()) if p.is_file()), None)
      if path is not None and tuple(map(int, version.split(".")[:2])) >= LEAST:
        found.append(Nvrtc(package, version, path))
  return tuple(found)


def suited(compilers: Sequence[Nvrtc], serves: int) -> Nvrtc | None:
  """The one for a driver that serves this CUDA version (1000 * major; 0: there is no driver).

  The newest one where the driver takes none of them; None where there is none.
  """
  taken = (c for c in compilers if not serves or c.major <= serves // 1000)
  return next(taken, next(iter(compilers), None))


@cache
def chosen() -> Nvrtc | None:
  """The compiler of this process, loaded; None where only cuda-bindings know where one is."""
  compilers = installed()
  found = suited(compilers, driver_serves())
  if found is not None and found is not compilers[0]:
    # What its builtins are called has the minor version in it: who loads them looks beside no file.
    for path in (*sorted(found.path.parent.glob("libnvrtc-builtins.so.*[0-9]")), found.path):
      ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
  return found


def chosen_version() -> str:
  """Of the compiler, to the last digit: images are compared only between equal ones."""
  found = chosen()
  return found.version if found is not None else "unknown"


def driver_serves() -> int:
  """The newest CUDA version of the driver, as 1000 * major + 10 * minor; 0 where there is none."""
  api = ctypes.c_int()
  with suppress(OSError, AttributeError):
    if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(api)) == 0:
      return api.value
  return 0


def _folders() -> list[Path]:
  spec = importlib.util.find_spec("nvidia")
  return [Path(p) for p in (spec.submodule_search_locations or ())] if spec is not None else []
