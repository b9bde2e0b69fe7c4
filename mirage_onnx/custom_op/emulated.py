"""A model's kernels in the CPU emulator: one launch of its plan after the other.

A launch is looked up by its place in the plan and runs with the grid, cluster, shared memory and
pointers that the plan gave. Only the text comes from elsewhere: it is generated again
(``provenance.py``). So plans, stored weights and text are all exercised; what the driver would
refuse, and what no device defines, fails the run by name.
"""

import ctypes
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.custom_op.arguments import InputPtr, Int32, Int64, MapOf
from mirage_onnx.custom_op.bundle import Bundle
from mirage_onnx.custom_op.model_nodes import CustomNode
from mirage_onnx.custom_op.plan import Launch
from mirage_onnx.custom_op.provenance import KernelRecord
from mirage_onnx.custom_op.sources import read_sources
from mirage_onnx.emulator import EmulationError, Module, compile_kernels
from mirage_onnx.emulator.driver import Driver, DriverLaunch, open_driver
from mirage_onnx.errors import MirageError
from mirage_onnx.target import Target, target_of_domain


class EmulatedModel:
  """The kernels of a model's custom nodes, compiled for the host."""

  #: Called after each launch, by any thread: all of a large model take minutes.
  launched: Callable[[], None] = staticmethod(lambda: None)

  def __init__(self, nodes: tuple[CustomNode, ...], bundle: Bundle) -> None:
    """Generates and checks every text, then compiles them as one unit.

    Raises:
        MirageError: SOURCE_MISMATCH, PLAN_INVALID, NOT_EMULATED, EMULATION_FAILED,
            HOST_COMPILER_MISSING.
    """
    self.driver: Driver = open_driver(_target(nodes))
    self.plans = read_sources(nodes, bundle)
    rows = [row for p in self.plans.values() for row in p.kernels]
    sources = dict.fromkeys(k.source for row in rows for k in row)
    self._index = {source: i for i, source in enumerate(sources)}
    self._lock = threading.Lock()
    self._modules: dict[tuple[object, ...], Module] = {}
    self._module = _compile(tuple(self._index))

  def run(self, launch: DriverLaunch) -> None:
    """One launch, on the memory it names.

    Raises:
        EmulationError: what the device would refuse or leave undefined.
    """
    sources = self.plans[launch.plan]
    kernel = sources.kernels[launch.variant][launch.launch]
    planned = sources.plan.variants[launch.variant].launches[launch.launch]
    sizes = _sizes(kernel.source, launch, planned)
    module = self._launched_as(kernel.source, launch, sizes)
    tensors = _tensors(kernel, launch, planned, sizes)
    # Nothing has been written yet where the first kernel of a plan writes.
    empty = [n for n, x in tensors.items() if x.flags.writeable and launch.launch == 0]
    index = self._index[kernel.source]
    module.run(tensors, kernels=[index], uninitialised=empty, sizes=sizes)
    self.launched()

  def _launched_as(self, source: KernelSource, launch: DriverLaunch, sizes: Mapping[str, int]) -> Module:
    """The module with this launch's configuration: the text's own, unless the plan is wrong."""
    asked = replace(
      source,
      grid=launch.grid,
      block=launch.block[0] * launch.block[1] * launch.block[2],
      cluster=launch.cluster,
      smem_bytes=launch.smem_bytes,
      tiles=(),
    )
    if asked == replace(source, grid=source.grid_at(sizes), tiles=()):
      return self._module
    key = (source.name, asked.grid, asked.block, asked.cluster, asked.smem_bytes)
    with self._lock:
      if key not in self._modules:
        others = [asked if s == source else s for s in self._index]
        self._modules[key] = compile_kernels(others)
      return self._modules[key]


def _sizes(source: KernelSource, launch: DriverLaunch, planned: Launch) -> dict[str, int]:
  """The sizes that a launch gives its kernel; every argument is what its parameter is."""
  names = (*source.args, *source.sizes, *(m.tensor for m in source.maps))
  if len(launch.args) != len(names):
    raise EmulationError(f"kernel {launch.kernel}: {len(launch.args)} arguments for {len(names)} parameters")
  found = {}
  given = len(source.args) + len(source.sizes)
  for i, (name, (value, _), arg) in enumerate(zip(names, launch.args, planned.args, strict=True)):
    if i >= given or isinstance(arg, MapOf):
      own = source.maps[i - given].words if i >= given else ()
      if not isinstance(arg, MapOf) or (arg.first, arg.rows, arg.columns, arg.pitch, arg.box) != own:
        raise EmulationError(f"kernel {launch.kernel}: argument {i} is no tensor map of '{name}'")
      continue
    count = i >= len(source.args)
    if count != isinstance(arg, Int32) or isinstance(arg, Int64):
      wanted = "i32" if count else "pointer"
      raise EmulationError(f"kernel {launch.kernel}: argument '{name}' is no {wanted}")
    if count:
      found[name] = value
  return found


def _tensors(
  kernel: KernelRecord, launch: DriverLaunch, planned: Launch, sizes: Mapping[str, int]
) -> Mapping[str, np.ndarray]:
  """The memory of a launch by the names of the kernel's arguments."""
  arrays = {}
  given = zip(kernel.source.args, launch.args, planned.args, strict=False)
  for (name, (address, available), arg), size in zip(given, kernel.bytes_at(sizes), strict=False):
    # A short buffer stays short: the emulator reports what reads beyond it.
    memory = (ctypes.c_uint8 * min(size, available)).from_address(address)
    array = np.ctypeslib.as_array(memory)
    array.flags.writeable = not isinstance(arg, InputPtr)
    arrays[name] = array
  return arrays


def _target(nodes: tuple[CustomNode, ...]) -> Target:
  found: dict[str, Target] = {}
  for node in nodes:
    version, _, suffix = node.domain.rpartition(".")
    target = target_of_domain(suffix)
    if version != "ai.mirage.v1" or target is None:
      why = f"node '{node.name}': there is no emulator of {node.domain}"
      raise MirageError("NOT_EMULATED", why)
    found[suffix] = target
  if len(found) != 1:
    why = f"one session cannot emulate nodes for {', '.join(sorted(found)) or 'no target'}"
    raise MirageError("NOT_EMULATED", why)
  return next(iter(found.values()))


def _compile(sources: tuple[KernelSource, ...]) -> Module:
  try:
    return compile_kernels(sources)
  except EmulationError as error:
    raise MirageError("EMULATION_FAILED", " ".join(str(error).split())) from error
