"""What ``mirage-onnx env`` prints: the facts about this machine that a bug report needs.

Keep it so when editing: standard library only at the top; every fact is gathered by itself and a
failure becomes its text, because the command is run where something is broken; nothing is sent
anywhere.
"""

import ctypes
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from mirage_onnx.cores import available_cores
from mirage_onnx.report.log_file import log_folder

PACKAGES = (
  "onnx", "onnx-graphsurgeon", "numpy", "scipy", "ml_dtypes", "msgspec", "typer", "rich",
  "cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "onnxruntime", "onnxruntime-gpu",
  "cupy-cuda13x", "torch",
)  # fmt: skip

_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute
_MULTIPROCESSORS = 16


def collect() -> dict[str, Any]:
  """Gather every fact; a fact that cannot be had is a string that says why."""
  facts: dict[str, Callable[[], Any]] = {
    "mirage-onnx": _version,
    "python": lambda: f"{platform.python_version()} ({sys.executable})",
    "platform": platform.platform,
    "cpus": available_cores,
    "packages": _packages,
    "onnxruntime": _onnxruntime,
    "telemetry": lambda: f"ORT_DISABLE_TELEMETRY={os.environ.get('ORT_DISABLE_TELEMETRY', 'not set')}",
    "ops library": _library,
    "nvrtc": _nvrtc,
    "gpus": gpus,
    "cache folder": cache_folder,
    "log folder": log_folder,
  }
  found = {name: _guarded(fact) for name, fact in facts.items()}
  return {**found, "verdict": verdict(found)}


def verdict(facts: dict[str, Any]) -> str:
  """``ready`` and what for, or ``not ready`` and the one thing to do next."""
  packages = facts["packages"] if isinstance(facts["packages"], dict) else {}
  missing = [n for n in PACKAGES[: PACKAGES.index("onnxruntime")] if packages.get(n) == "not installed"]
  runtime, gpu = str(facts["onnxruntime"]), facts["gpus"]
  if missing:
    return f"not ready: pip install {' '.join(missing)}"
  if packages.get("onnxruntime") == packages.get("onnxruntime-gpu") == "not installed":
    return "not ready: pip install 'mirage-onnx[cu13]' (or [cpu] where there is no NVIDIA GPU)"
  if "ORT_CONFLICT" in runtime:
    return "not ready: pip uninstall onnxruntime onnxruntime-gpu, then install one of them"
  if runtime.startswith("none"):
    return f"not ready: onnxruntime cannot be imported: {runtime}"
  if str(facts["ops library"]).startswith("none"):
    return "not ready: the custom-op library is missing: install the wheel, or make build in a checkout"
  if str(facts["nvrtc"]).startswith("none"):
    return "not ready: pip install --force-reinstall nvidia-cuda-nvrtc cuda-bindings"
  if not isinstance(gpu, list) or not gpu:
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = f"; CUDA_VISIBLE_DEVICES is {shown!r}, which may hide it" if shown is not None else ""
    said = f"ready to optimize by prediction, for an H200 or another --target (there is no GPU here{hidden})"
    return f"{said}; results run on the CPU, too"
  if why := _guarded(lambda: _without_kernels(gpu[0])):
    return f"ready, but not for this GPU: {why}; models run their original operators there"
  if "CUDAExecutionProvider" not in runtime:
    return "not ready for this GPU: pip uninstall onnxruntime; pip install 'mirage-onnx[cu13]'"
  serves = re.search(r"driver for CUDA (\d+)", gpu[0])
  built = re.search(r"built for CUDA (\d+)", runtime)
  if serves and built and int(serves[1]) < int(built[1]):
    older = ", or pip install 'onnxruntime-gpu<1.27' nvidia-cuda-nvrtc-cu12" if serves[1] == "12" else ""
    said = f"its driver serves CUDA {serves[1]}, and onnxruntime is built for CUDA {built[1]}"
    return f"not ready for this GPU: {said}: update the driver{older}"
  if serves and int(serves[1]) < int(str(facts["nvrtc"]).partition(".")[0]):
    older = ", or pip install nvidia-cuda-nvrtc-cu12" if serves[1] == "12" else ": kernels need CUDA 12"
    return f"not ready for this GPU: its driver serves CUDA {serves[1]}: update it{older}"
  if len({g.partition(": ")[2] for g in gpu}) > 1:
    first = gpu[0].partition(", ")[0]
    return f"ready; kernels are chosen for GPU {first}: CUDA_VISIBLE_DEVICES says which one is 0"
  return "ready"


def _without_kernels(gpu: str) -> str:
  """Why there are no kernels for a GPU of ``gpus``; empty where there are."""
  from mirage_onnx.targets import TOO_OLD, architecture_of

  number = re.search(r"sm_(\d+)(\d)", gpu)
  capability = (int(number[1]), int(number[2])) if number else None
  if capability is None or architecture_of(capability) is not None:
    return ""
  return TOO_OLD if capability < (8, 0) else f"{gpu.partition(', ')[2].partition(',')[0]} has no row"


def to_text(facts: dict[str, Any]) -> str:
  """One fact a line, the names in one column."""
  lines: list[tuple[str, str]] = []
  for name, value in facts.items():
    if isinstance(value, dict):
      lines += [(key, str(found)) for key, found in value.items()]
    elif isinstance(value, list):
      lines += [(name, str(found)) for found in value] or [(name, "none")]
    else:
      lines.append((name, str(value)))
  width = max(len(name) for name, _ in lines)
  return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)


def gpus() -> list[str]:
  """Name, architecture and driver of every GPU; raises OSError where there is no driver."""
  try:
    driver = ctypes.CDLL("libcuda.so.1")
  except OSError:
    raise OSError("there is no NVIDIA driver") from None
  code = driver.cuInit(0)
  if code:
    raise OSError(f"cuInit failed with error {code}")
  api, count = ctypes.c_int(), ctypes.c_int()
  driver.cuDriverGetVersion(ctypes.byref(api))
  driver.cuDeviceGetCount(ctypes.byref(count))
  supports = f"CUDA {api.value // 1000}.{api.value % 1000 // 10}"
  found = []
  for device in range(count.value):
    name, size = ctypes.create_string_buffer(256), ctypes.c_size_t()
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    numbers = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR, _MULTIPROCESSORS):
      number = ctypes.c_int()
      driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
      numbers.append(number.value)
    major, minor, processors = numbers
    found.append(
      f"{device}: {name.value.decode()}, sm_{major}{minor}, {processors} multiprocessors, "
      f"{size.value >> 20} MiB, driver for {supports}"
    )
  return found


def _guarded(fact: Callable[[], Any]) -> Any:
  try:
    return fact()
  except Exception as error:  # run where something is broken: the failure is the fact
    return f"none ({type(error).__name__}: {error})"


def _version() -> str:
  from mirage_onnx import __version__

  return f"{__version__} ({os.path.dirname(__file__)})"


def _packages() -> dict[str, str]:
  found = {}
  for name in PACKAGES:
    try:
      found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      found[name] = "not installed"
  return found


def _onnxruntime() -> str:
  import onnxruntime

  text = f"{onnxruntime.__version__}, {', '.join(onnxruntime.get_available_providers())}{_built_for()}"
  both = [n for n in ("onnxruntime", "onnxruntime-gpu") if _packages()[n] != "not installed"]
  return text + (" (ORT_CONFLICT: two onnxruntime packages)" if len(both) > 1 else "")


def _built_for() -> str:
  """The CUDA that onnxruntime's build for GPUs is of: a driver of an older one does not run it."""
  with suppress(ImportError):
    found = getattr(import_module("onnxruntime.capi.build_and_package_info"), "cuda_version", "")
    return f", built for CUDA {found}" if found else ""
  return ""


def _library() -> str:
  from mirage_onnx.custom_op import get_library_path

  return str(get_library_path())


def _nvrtc() -> str:
  from mirage_onnx.nvrtc_choice import chosen, driver_serves, installed

  found, serves = chosen(), driver_serves()
  from cuda.bindings import nvrtc

  code, major, minor = nvrtc.nvrtcVersion()
  if int(code):
    return f"none (error {int(code)})"
  driver = (
    f"the driver serves CUDA {serves // 1000}.{serves % 1000 // 10}" if serves else "there is no driver"
  )
  several = len(installed()) > 1
  which = f"{found.package} {found.version}" if found else "where cuda-bindings find it"
  return f"{major}.{minor} ({which}{', of several' if several else ''}; {driver})"


def cache_folder() -> str:
  """Where compiled kernels are kept: ``$MIRAGE_CACHE_DIR`` or the user's cache folder."""
  from mirage_onnx.superopt.cache_folders import cache_root

  return str(cache_root())
