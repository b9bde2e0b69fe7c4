"""The present GPU through the CUDA driver API: buffers, launches, graphs, timing.

Used only where there is a GPU. Everything runs on one stream of the primary context, so that it can
share the stream with an onnxruntime session (``user_compute_stream``).
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mirage_onnx.target import TARGETS, Target
from mirage_onnx.targets import TOO_OLD, Architecture, architecture_of, of_size
from mirage_onnx.tune.driver_call import ok
from mirage_onnx.tune.graph_clock import CALLS, Replay, flush_sample
from mirage_onnx.tune.l2_flush import FLUSH, flush_bytes, look_flush_bytes
from mirage_onnx.tune.tensor_maps import encoded

if TYPE_CHECKING:
  from mirage_onnx.codegen.source import KernelSource
  from mirage_onnx.compiler.cubin import Cubin

#: Flushes in front of what is timed: while they run the host puts the rest on the stream.
AHEAD = 3
#: Seconds for which another thread may keep the interpreter while something is timed.
SWITCH_S = 2e-5


def _driver() -> Any:
  ctypes.CDLL("libcuda.so.1")  # the bindings, which take 0.1 s to import, would say the same of a missing one
  from cuda.bindings import driver

  return driver


#: Attributes of a device that only some drivers tell.
_MORE = ("MAX_REGISTERS_PER_MULTIPROCESSOR", "CLUSTER_LAUNCH", "L2_CACHE_SIZE", "CLOCK_RATE")


@dataclass(frozen=True, slots=True)
class PresentGpu:
  """What the driver says of a GPU; ``smem_bytes``: the most shared memory that a block can ask for.

  ``registers``: of a multiprocessor; ``clock_mhz``: the highest one. 0 is what it does not say.
  """

  name: str
  capability: tuple[int, int]
  multiprocessors: int
  smem_bytes: int
  registers: int = 0
  has_clusters: bool | None = None
  l2_bytes: int = 0
  clock_mhz: int = 0

  @property
  def target(self) -> Target | None:
    """Its profile: that of a GPU of the same name and size, else one of its architecture and its size.

    Not that of another GPU with the same instructions. None where there are no kernels for it.
    """
    architecture = architecture_of(self.capability)
    if architecture is None or self._lacks(architecture):
      return None
    own = (t for t in TARGETS.values() if t.gpu == self.name and t.capability == self.capability)
    if found := next((t for t in own if t.multiprocessors == self.multiprocessors), None):
      return found
    found = of_size(architecture, self.multiprocessors)
    return replace(
      found,
      l2_bytes=self.l2_bytes or found.l2_bytes,
      cycles_per_us=float(self.clock_mhz) or found.cycles_per_us,
    )

  @property
  def why_none(self) -> str:
    """Why there are no kernels for it."""
    architecture = architecture_of(self.capability)
    if architecture is None:
      return TOO_OLD if self.capability < (8, 0) else "an architecture without a row (docs/adding.md)"
    return self._lacks(architecture)

  def _lacks(self, architecture: Architecture) -> str:
    """What kernels for its architecture need and it does not have, as one under a hypervisor may; or ""."""
    if self.smem_bytes < architecture.smem_bytes:
      return f"its blocks have {self.smem_bytes} bytes of shared memory, not {architecture.smem_bytes}"
    if 0 < self.registers < architecture.registers_per_sm:
      return f"its multiprocessors have {self.registers} registers, not {architecture.registers_per_sm}"
    return "it has no clusters" if architecture.has_clusters and self.has_clusters is False else ""

  def __str__(self) -> str:
    major, minor = self.capability
    return f"{self.name} (sm_{major}{minor}, {self.multiprocessors} multiprocessors)"


def present_gpu() -> PresentGpu | None:
  """Device 0, or None where there is no usable one."""
  return next(iter(present_gpus()), None)


def present_gpus() -> tuple[PresentGpu, ...]:
  """What the driver shows of this machine's GPUs, in its order; none where there is no usable driver."""
  try:
    d = _driver()
    if int(d.cuInit(0)[0]) != 0:
      return ()
    return tuple(_facts(d, d.cuDeviceGet(i)) for i in range(int(ok(d.cuDeviceGetCount()))))
  except Exception:  # no libcuda: cuda-bindings raises its own kinds
    return ()


@cache
def gpu_id() -> str:
  """What tells device 0 from all other GPUs, whatever its number is; 0: the driver does not say."""
  try:
    d = _driver()
    if int(d.cuInit(0)[0]) != 0:
      return "0"
    return bytes(ok(d.cuDeviceGetUuid(ok(d.cuDeviceGet(0)))).bytes).hex() or "0"
  except Exception:  # as of ``present_gpus``
    return "0"


def _facts(d: Any, found: tuple[Any, ...]) -> PresentGpu:
  device, attribute = ok(found), d.CUdevice_attribute
  major, minor, processors, smem = (
    int(ok(d.cuDeviceGetAttribute(a, device)))
    for a in (
      attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
      attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
      attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
      attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
    )
  )
  more = {a: _said(d, device, f"CU_DEVICE_ATTRIBUTE_{a}") for a in _MORE}
  clusters = more["CLUSTER_LAUNCH"]
  name = ok(d.cuDeviceGetName(256, device)).split(b"\0")[0].decode(errors="replace").strip()
  return PresentGpu(
    name,
    (major, minor),
    processors,
    smem,
    more["MAX_REGISTERS_PER_MULTIPROCESSOR"] or 0,
    None if clusters is None else bool(clusters),
    more["L2_CACHE_SIZE"] or 0,
    (more["CLOCK_RATE"] or 0) // 1000,
  )


def _said(d: Any, device: Any, attribute: str) -> int | None:
  """None where this driver, or its bindings, do not say."""
  try:
    return int(ok(d.cuDeviceGetAttribute(getattr(d.CUdevice_attribute, attribute), device)))
  except Exception:
    return None


def driver_api_version() -> int:
  """The newest CUDA version that the driver serves, as 1000 * major + 10 * minor; 0 without one."""
  try:
    return int(ok(_driver().cuDriverGetVersion()))
  except Exception:
    return 0


def present_target() -> Target | None:
  """The profile of device 0, or None without a usable GPU (or without kernels for it)."""
  gpu = present_gpu()
  return gpu.target if gpu else None


@contextmanager
def _soon_back() -> Iterator[None]:
  """Inside, a thread that comes back from a call of the driver gets the interpreter in ``SWITCH_S``.

  Usually another thread (one that writes kernels) may keep it for 5 ms, in which the GPU would run dry.
  """
  before = sys.getswitchinterval()
  sys.setswitchinterval(SWITCH_S)
  try:
    yield
  finally:
    sys.setswitchinterval(before)


#: What is read to empty the L2, and its bytes: for all threads of the process, of which one times at a time.
_flush_at = list[tuple[int, int]]()
_one_flush = threading.Lock()


class Gpu:
  """Device 0 with one stream."""

  def __init__(self, target: Target) -> None:
    from mirage_onnx.compiler.compile import compile_cubin  # a second, and most runs have no GPU

    d = self.d = _driver()
    self.target = target
    ok(d.cuInit(0))
    device = ok(d.cuDeviceGet(0))
    ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(device))))
    self.stream = ok(d.cuStreamCreate(1))  # 1: not ordered with the legacy default stream
    self._undo: list[Callable[[], object]] = []
    with _one_flush:
      if not _flush_at:
        size = flush_bytes(target)
        _flush_at.append((self.empty(size), size))
        ok(d.cuMemsetD8Async(_flush_at[0][0], 1, size, self.stream))
        self.wait()
    self._flush_data, self._flush_size = _flush_at[0]
    self._flush_out = self.empty(4)
    self._flush = self.load(compile_cubin(FLUSH, target, name="read_all"), "read_all")
    self.flushed = self.capture(partial(self.put_flush, self._flush_size))
    self.looked = self.capture(partial(self.put_flush, min(self._flush_size, look_flush_bytes(target))))
    self.flushes = flush_sample(self, self.looked)
    self._undo.clear()  # the flush lives as long as the process

  @property
  def stream_address(self) -> int:
    return int(self.stream)

  @contextmanager
  def scope(self) -> Iterator[None]:
    """Buffers, kernels and graphs made inside are gone afterwards."""
    mark = len(self._undo)
    try:
      yield
    finally:
      self.d.cuStreamSynchronize(self.stream)  # its error, if any, is the one being raised
      while len(self._undo) > mark:
        self._undo.pop()()

  def empty(self, size: int) -> int:
    at = int(ok(self.d.cuMemAlloc(max(size, 16))))
    self._undo.append(lambda: self.d.cuMemFree(at))
    return at

  def put(self, x: np.ndarray) -> int:
    at = self.empty(x.nbytes)
    self.write(at, x)
    return at

  def write(self, at: int, x: np.ndarray) -> None:
    x = np.ascontiguousarray(x)
    # On the stream: a copy outside it may still be on its way when the stream's work begins.
    ok(self.d.cuMemcpyHtoDAsync(at, x.ctypes.data, x.nbytes, self.stream))
    self.wait()

  def poison(self, at: int, size: int) -> None:
    """Fill with bytes that are NaN in every float type."""
    ok(self.d.cuMemsetD8Async(at, 0xFF, size, self.stream))

  def get(self, at: int, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    x = np.empty(shape, dtype)
    ok(self.d.cuMemcpyDtoHAsync(x.ctypes.data, at, x.nbytes, self.stream))
    self.wait()
    return x

  def load(self, cubin: Cubin, name: str, smem_bytes: int = 0) -> Any:
    library = ok(self.d.cuLibraryLoadData(cubin.image, [], [], 0, [], [], 0))
    self._undo.append(lambda: self.d.cuLibraryUnload(library))
    kernel = ok(self.d.cuLibraryGetKernel(library, name.encode()))
    function = ok(self.d.cuKernelGetFunction(kernel))
    if smem_bytes > 48 * 1024:
      limit = self.d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
      ok(self.d.cuFuncSetAttribute(function, limit, smem_bytes))
    return function

  def launch(
    self,
    function: Any,
    grid: tuple[int, int, int],
    block: int,
    arguments: Sequence[int],
    *,
    cluster: int = 1,
    smem_bytes: int = 0,
    pdl: bool = False,
    maps: Sequence[Any] = (),
  ) -> None:
    d = self.d
    config = d.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
    config.sharedMemBytes = smem_bytes
    config.hStream = self.stream
    attributes = []
    if cluster > 1:
      a = d.CUlaunchAttribute()
      a.id = d.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
      a.value.clusterDim.x, a.value.clusterDim.y, a.value.clusterDim.z = cluster, 1, 1
      attributes.append(a)
    if pdl:
      a = d.CUlaunchAttribute()
      a.id = d.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
      a.value.programmaticStreamSerializationAllowed = 1
      attributes.append(a)
    if attributes:
      config.attrs = attributes
      config.numAttrs = len(attributes)
    values = (ctypes.c_uint64 * len(arguments))(*arguments)
    places = [*(ctypes.addressof(values) + 8 * i for i in range(len(arguments))), *(m.getPtr() for m in maps)]
    pointers = np.array(places, dtype=np.uint64)
    ok(d.cuLaunchKernelEx(config, function, pointers.ctypes.data, 0))

  def launch_source(self, function: Any, source: KernelSource, at: Mapping[str, int]) -> None:
    """``at``: the addresses of tensors, and the sizes of axes that only a launch knows."""
    arguments = [at[a] for a in (*source.args, *source.sizes)]
    self.launch(
      function, source.grid_at(at), source.block, arguments,
      cluster=source.cluster, smem_bytes=source.smem_bytes, pdl=source.pdl,
      maps=[encoded(self.d, m, at[m.tensor]) for m in source.maps],
    )  # fmt: skip

  def capture(self, work: Callable[[], object]) -> Replay:
    """Record what ``work`` puts on the stream into a graph; calling the result replays it.

    The result keeps ``work``, for a graph uses memory (of a session, say) that is gone without it.
    """
    d = self.d
    mode = d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    ok(d.cuStreamBeginCapture(self.stream, mode))
    try:
      work()
    except BaseException:
      d.cuStreamEndCapture(self.stream)  # or nothing else could run on the stream
      raise
    graph = ok(d.cuStreamEndCapture(self.stream))
    self._undo.append(lambda: d.cuGraphDestroy(graph))
    executable = self.instantiated(graph)
    return Replay(graph, lambda: ok(d.cuGraphLaunch(executable, self.stream)), work)

  def instantiated(self, graph: Any) -> Any:
    """What launches a graph, until the end of the scope."""
    executable = ok(self.d.cuGraphInstantiate(graph, 0))
    self._undo.append(lambda: self.d.cuGraphExecDestroy(executable))
    return executable

  def event(self) -> Any:
    """An event with a time, until the end of the scope."""
    event = ok(self.d.cuEventCreate(0))
    self._undo.append(lambda: self.d.cuEventDestroy(event))
    return event

  def put_flush(self, size: int) -> None:
    """What clears the L2, on the stream: two reads."""
    grid = (8 * self.target.multiprocessors, 1, 1)
    for _ in range(2):
      self.launch(self._flush, grid, 256, [self._flush_data, size // 16, self._flush_out])

  def wait(self) -> None:
    ok(self.d.cuStreamSynchronize(self.stream))

  def time_us(self, arms: Sequence[Callable[[], object]], samples: int) -> np.ndarray:
    """Cold-L2 times, (arms, samples): T(flush + arm) - T(flush), each over ``CALLS`` calls.

    A sample of every arm and one of the flush alone make a round, forth and back: clocks drift for all.
    """
    d = self.d
    start, end = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))
    both: list[Callable[[], object] | None] = [None, *arms]

    def sample(arm: Callable[[], object] | None) -> float:
      for _ in range(AHEAD):
        self.flushed()
      ok(d.cuEventRecord(start, self.stream))
      for _ in range(CALLS):
        self.flushed()
        if arm is not None:
          arm()
      ok(d.cuEventRecord(end, self.stream))
      self.wait()
      return 1e3 * float(ok(d.cuEventElapsedTime(start, end))) / CALLS

    found = np.empty((len(both), samples))
    with _soon_back():
      for arm in both:  # clocks up, code loaded
        sample(arm)
      for s in range(samples):
        order = range(len(both)) if s % 2 == 0 else range(len(both) - 1, -1, -1)
        for i in order:
          found[i, s] = sample(both[i])
    for event in (start, end):
      ok(d.cuEventDestroy(event))
    return found[1:] - np.median(found[0])
