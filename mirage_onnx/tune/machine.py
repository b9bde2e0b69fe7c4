"""What a measurement was made on: the GPU, its driver, ONNX Runtime, and how we measure."""

import contextlib
import hashlib
import re
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from filelock import FileLock, Timeout

from mirage_onnx import deadline
from mirage_onnx.superopt.cache_folders import cache_folder
from mirage_onnx.tune.device import PresentGpu, driver_api_version, gpu_id, present_gpu

#: The packages whose kernels are the baseline.
PACKAGES = (
  "onnxruntime-gpu", "onnxruntime", "nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-cublas-cu12",
  "nvidia-cudnn-cu12", "nvidia-cuda-runtime",
)  # fmt: skip
#: What a time depends on in this program: a change in these files is another way to measure.
PROTOCOL_FILES = ("device.py", "graph_clock.py", "l2_flush.py", "measure.py", "ort_run.py", "race.py")
_DRIVER_FILE = Path("/proc/driver/nvidia/version")
#: Who waits for the GPU asks that often whether its own time is over.
POLL_S = 0.25
#: The thread that is inside of ``gpu_alone``, and whether one is.
_THREADS = threading.RLock()
_inside: list[bool] = []


@dataclass(frozen=True, slots=True)
class Machine:
  """All that a measured time depends on beside what ran."""

  gpu: str
  driver: str
  onnxruntime: str
  protocol: str

  @property
  def text(self) -> dict[str, str]:
    """By name, as the setting of what is kept."""
    return asdict(self)


def present_machine() -> Machine | None:
  """The machine with the present GPU, None where there is none."""
  gpu = present_gpu()
  return None if gpu is None else machine_of(gpu, driver_version(driver_api_version()))


def machine_of(gpu: PresentGpu, driver: str) -> Machine:
  """The machine with this GPU and what is installed here."""
  return Machine(str(gpu), driver, packages(PACKAGES), protocol_digest())


def driver_version(api: int, file: Path = _DRIVER_FILE) -> str:
  """The kernel module's version, where it tells, and that of its API."""
  found = None
  with contextlib.suppress(OSError, UnicodeDecodeError):
    found = re.search(r"\b\d+\.\d+(?:\.\d+)?\b", file.read_text())
  return f"{found[0] if found else 'unknown'}, CUDA {api // 1000}.{api % 1000 // 10}"


def packages(names: tuple[str, ...]) -> str:
  """Which of these are installed, with their versions."""
  found = []
  for name in names:
    with contextlib.suppress(metadata.PackageNotFoundError):
      found.append(f"{name} {metadata.version(name)}")
  return ", ".join(found)


@cache
def protocol_digest() -> str:
  """A hash of the source of all that times: nobody remembers to count a version up."""
  digest = hashlib.sha256()
  for name in PROTOCOL_FILES:
    digest.update(name.encode() + Path(__file__).with_name(name).read_bytes())
  return digest.hexdigest()[:16]


@contextlib.contextmanager
def gpu_alone(folder: Path | None = None) -> Iterator[None]:
  """Inside, no other process or thread that asks so uses this GPU: it would disturb what is timed.

  Who is inside may ask again.

  ``folder``: that of locks; default: in the cache. Without one, and where it cannot be written,
  nobody waits.

  Raises:
      OverdueError: the time that the caller has set is over before the other process is done.
  """
  while not _THREADS.acquire(timeout=POLL_S):
    deadline.check()
  try:
    if _inside:
      yield
      return
    _inside.append(True)
    try:
      with _alone_of_processes(folder or cache_folder("locks")):
        yield
    finally:
      _inside.clear()
  finally:
    _THREADS.release()


@contextlib.contextmanager
def _alone_of_processes(folder: Path | None) -> Iterator[None]:
  lock = None
  if folder is not None:
    with contextlib.suppress(OSError):
      folder.mkdir(parents=True, exist_ok=True)
      lock = FileLock(folder / f"gpu-{gpu_id()}.lock")
  if lock is None:
    yield
    return
  held = False
  try:
    while not held:
      deadline.check()
      try:
        lock.acquire(timeout=POLL_S)
      except Timeout:
        continue
      except (OSError, NotImplementedError):  # a file system without locks
        break
      held = True
    yield
  finally:
    if held:
      lock.release()
