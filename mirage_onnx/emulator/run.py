"""Runs compiled kernels on numpy arrays, checked.

A CUDA thread is a fiber (``host/fiber.h``); all blocks of a cluster are alive together; a warp
collective runs when its last lane arrives. What is checked is listed by ``failure.KINDS``, how, in
``docs/emulator.md``.
"""

import ctypes
import re
import threading
import weakref
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np

from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.emulator.build import build
from mirage_onnx.emulator.failure import KINDS, EmulationError, describe
from mirage_onnx.emulator.tensors import PlacedTensors, Range
from mirage_onnx.ir.tensor_map import TensorMap

Order = Literal["ascending", "descending"]

_MESSAGE_BYTES = 8192


class _Launch(ctypes.Structure):
  """``emu::Launch`` of host/entry.h."""

  _fields_ = (
    ("grid", ctypes.c_int * 3),
    ("block", ctypes.c_int),
    ("cluster", ctypes.c_int),
    ("smem_bytes", ctypes.c_int),
    ("timeout_s", ctypes.c_int),
    ("descending", ctypes.c_int),
    ("checks", ctypes.c_int),
    ("pdl", ctypes.c_int),
    ("early", ctypes.c_int),
    ("ranges", ctypes.c_int),
    ("range", ctypes.POINTER(Range)),
    ("args", ctypes.POINTER(ctypes.c_void_p)),
  )


class _Failure(ctypes.Structure):
  """``emu::Failure`` of host/entry.h."""

  _fields_ = (
    ("kind", ctypes.c_int),
    ("block", ctypes.c_int * 3),
    ("thread", ctypes.c_int),
    ("place", ctypes.c_long),
    ("message", ctypes.c_char * _MESSAGE_BYTES),
  )


#: Signal handlers and the interval timer belong to the process: one launch at a time. Modules of the
#: same text share a library, and so its stacks: they are given back between launches only.
_LOCK = threading.Lock()
_gone: deque[ctypes.CDLL] = deque()

_KERNEL = re.compile(
  r"\bPTX_(?:(?:LONE_)?KERNEL\s*\(\s*(\d+)|CLUSTER_KERNEL\s*\(\s*(\d+)\s*,\s*(\d+))\s*\)\s*(\w+)\s*\("
)


def _release(library: ctypes.CDLL) -> None:
  """A module is gone. Called by the garbage collector, so in any thread, with any lock held."""
  _gone.append(library)
  _release_gone()


def _release_gone() -> None:
  """Gives stacks back unless a launch is running, after which it is asked for again."""
  while _gone and _LOCK.acquire(blocking=False):
    try:
      while _gone:
        _gone.popleft().emu_release()
    finally:
      _LOCK.release()


def _check_launch(kernel: KernelSource) -> None:
  """The launch configuration must be the one that the text is compiled for."""
  for threads, cluster_threads, cluster, name in _KERNEL.findall(kernel.text):
    if name != kernel.name:
      continue
    compiled = (int(threads or cluster_threads), int(cluster or 1))
    if compiled != (kernel.block, kernel.cluster):
      raise EmulationError(
        f"kernel {name}: launched with {kernel.block} threads in clusters of "
        f"{kernel.cluster}, compiled for {compiled[0]} in clusters of {compiled[1]}",
        kernel=name,
      )
    return
  raise EmulationError(
    f"kernel {kernel.name}: the text defines no PTX_KERNEL of this name", kernel=kernel.name
  )


class Module:
  """Kernels that were compiled together; ``run`` executes one or all of them.

  Without ``checks`` a kernel runs some times faster, and only what needs no record of memory is
  noticed: bounds of the accesses through ``ptx``, barriers, deadlocks, faults.
  """

  def __init__(self, kernels: Sequence[KernelSource], *, checks: bool = True, ulps: int = 0) -> None:
    for kernel in kernels:
      _check_launch(kernel)
    self.kernels = tuple(kernels)
    self._checks = checks
    self._path = build(self.kernels, checks=checks, ulps=ulps)
    self._library = ctypes.CDLL(str(self._path))
    self._library.emu_const_mask.restype = ctypes.c_ulonglong
    self._library.emu_launch.argtypes = (
      ctypes.c_int,
      ctypes.POINTER(_Launch),
      ctypes.POINTER(_Failure),
    )
    weakref.finalize(self, _release, self._library).atexit = False

  def run(
    self,
    tensors: Mapping[str, np.ndarray],
    kernels: Sequence[int] | None = None,
    *,
    order: Order = "ascending",
    uninitialised: Collection[str] = (),
    written_before: Collection[str] = (),
    sizes: Mapping[str, int] | None = None,
    timeout_s: int = 60,
  ) -> None:
    """Runs ``kernels`` (indices; default: all) one after the other on the same tensors.

    ``tensors`` holds an array for every name in the kernels' ``args``; what they wrote is in
    the arrays afterwards, also when an error is raised. Threads start, and asynchronous copies
    complete, in ``order``: a correct kernel gives the same result for both.
    ``uninitialised``: tensors of which no byte may be read before a kernel of this run wrote
    it.
    ``written_before``: tensors that kernels launched just before this run write, which a
    dependent launch (``pdl``) may read only after its wait, like those of this run's kernels.
    When a kernel starts whose predecessor triggered behind its own wait, only that one may
    still write.
    ``sizes``: of the axes whose size only a launch knows, for kernels that have such.
    ``timeout_s`` is CPU time, for each kernel.
    """
    chosen = range(len(self.kernels)) if kernels is None else kernels
    names = dict.fromkeys(n for i in chosen for n in self.kernels[i].args)
    missing = [n for n in names if n not in tensors]
    if missing:
      raise EmulationError(f"no tensor for the kernel arguments {', '.join(missing)}")
    try:
      self._run_placed(chosen, names, tensors, uninitialised, written_before, sizes or {}, order, timeout_s)
    finally:
      _release_gone()

  def _run_placed(
    self,
    chosen: Sequence[int],
    names: Collection[str],
    tensors: Mapping[str, np.ndarray],
    uninitialised: Collection[str],
    written_before: Collection[str],
    sizes: Mapping[str, int],
    order: Order,
    timeout_s: int,
  ) -> None:
    with _LOCK, self._placed({n: tensors[n] for n in names}, uninitialised) as placed:
      # Where kernels write that may not have ended.
      written = placed.addresses([n for n in written_before if n in names])
      for i in chosen:
        kernel = self.kernels[i]
        outputs = self._outputs(i)
        writable = placed.addresses([n for n in outputs if tensors[n].flags.writeable])
        ranges = placed.ranges(set(kernel.args), writable, written)
        early = self._launch(i, placed, ranges, sizes, order, timeout_s)
        written = placed.addresses(outputs) | (written if early else set())
        if not self._checks:
          placed.check_surroundings(kernel.name)

  @contextmanager
  def _placed(
    self, arrays: Mapping[str, np.ndarray], uninitialised: Collection[str]
  ) -> Iterator[PlacedTensors]:
    placed = PlacedTensors(self._library, arrays, uninitialised)
    try:
      try:
        yield placed
      finally:
        placed.write_back()
    finally:
      placed.free()

  def _outputs(self, index: int) -> list[str]:
    """The arguments that are no pointers to const."""
    kernel = self.kernels[index]
    arity = self._library.emu_arity(index)
    given = len(kernel.args) + len(kernel.sizes) + len(kernel.maps)
    if arity != given:
      raise EmulationError(
        f"kernel {kernel.name}: {given} arguments for {arity} parameters",
        kernel=kernel.name,
      )
    const = self._library.emu_const_mask(index)
    return [n for i, n in enumerate(kernel.args) if not const >> i & 1]

  def _launch(
    self,
    index: int,
    placed: PlacedTensors,
    ranges: Sequence[Range],
    sizes: Mapping[str, int],
    order: Order,
    timeout_s: int,
  ) -> bool:
    """Whether the next kernel may start before what came before this one has ended."""
    kernel = self.kernels[index]
    values: list[ctypes.c_void_p | ctypes.c_int | ctypes.Array[ctypes.c_ulonglong]] = [
      ctypes.c_void_p(placed.address[n]) for n in kernel.args
    ]
    if missing := [axis for axis in kernel.sizes if axis not in sizes]:
      raise EmulationError(f"kernel {kernel.name}: no size of {', '.join(missing)}")
    values += [ctypes.c_int(sizes[axis]) for axis in kernel.sizes]
    values += [_tensor_map(m, placed.address[m.tensor]) for m in kernel.maps]
    grid = kernel.grid_at(sizes)
    if 0 in grid:
      return True  # not launched, as the library does
    launch = _Launch(
      grid=(ctypes.c_int * 3)(*grid),
      block=kernel.block,
      cluster=kernel.cluster,
      smem_bytes=kernel.smem_bytes,
      timeout_s=timeout_s,
      descending=order == "descending",
      checks=self._checks,
      pdl=kernel.pdl,
      ranges=len(ranges),
      range=(Range * len(ranges))(*ranges),
      args=(ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values)),
    )
    failure = _Failure()
    if self._library.emu_launch(index, ctypes.byref(launch), ctypes.byref(failure)):
      known = failure.thread >= 0
      raise describe(
        self._path,
        kernel,
        KINDS[failure.kind],
        failure.message.decode(errors="replace"),
        (failure.block[0], failure.block[1], failure.block[2]) if known else None,
        failure.thread if known else None,
        failure.place,
      )
    return bool(kernel.pdl and launch.early)


def _tensor_map(of: TensorMap, at: int) -> ctypes.Array[ctypes.c_ulonglong]:
  """What ``tensor_load`` of host/async.h reads of a tensor that begins there; at a multiple of 64."""
  room = (ctypes.c_ulonglong * 24)()
  found = (ctypes.c_ulonglong * 16).from_buffer(room, -ctypes.addressof(room) % 64)
  found[:5] = [at + 2 * of.first, of.rows, of.columns, of.pitch, of.box]
  return found


def compile_kernels(sources: Sequence[KernelSource], *, checks: bool = True, ulps: int = 0) -> Module:
  """Compiles several kernels as one translation unit, which costs little more than one.

  ``ulps``: approximate functions (``ex2``, ``expf``, ...) are up to so far beside the right result.
  """
  return Module(sources, checks=checks, ulps=ulps)


def run_kernels(
  sources: Sequence[KernelSource],
  tensors: Mapping[str, np.ndarray],
  *,
  order: Order = "ascending",
  checks: bool = True,
) -> None:
  """Runs kernels one after the other on the same tensors; outputs are written in place."""
  compile_kernels(sources, checks=checks).run(tensors, order=order)


def run_kernel(
  source: KernelSource,
  tensors: Mapping[str, np.ndarray],
  *,
  order: Order = "ascending",
  checks: bool = True,
) -> None:
  """Compiles and runs one kernel; outputs are written in place."""
  run_kernels([source], tensors, order=order, checks=checks)
