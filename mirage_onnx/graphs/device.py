"""A µGraph run on a GPU: emitted, compiled by NVRTC and launched where the caller's arrays are.

Outputs and workspace are arrays of the caller's library, so its allocator knows them, and kernels
go to its current stream: a call is ordered with what the caller does before and after it, and may
be captured into a CUDA graph once it has been made for the first time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.compiler.candidates import emit_candidate
from mirage_onnx.compiler.compile import compile_many
from mirage_onnx.compiler.cubin import Cubin
from mirage_onnx.errors import MirageError, Rejection, RejectionError
from mirage_onnx.graphs.arrays import Library
from mirage_onnx.ir import Candidate, Region, ugraph_extents
from mirage_onnx.target import Target
from mirage_onnx.tune.device import Gpu


class ArrayGpu(Gpu):
  """A GPU with a stream, both somebody else's: nothing is allocated and nothing is timed."""

  def __init__(self, device: int, stream: int, target: Target) -> None:
    # Not Gpu's constructor: it makes a stream and the buffers that timing needs.
    from cuda.bindings import driver

    self.d, self.target, self.device = driver, target, device
    self.stream = driver.CUstream(stream)
    self._undo: list[Callable[[], object]] = []

  @contextmanager
  def current(self) -> Iterator[None]:
    """Inside, the GPU's primary context, which array libraries use too, is the current one.

    Raises:
        MirageError: NO_GPU, the kernels are compiled for another kind of GPU.
    """
    from cuda.core import Device

    before = self.d.cuCtxGetCurrent()[1]
    device = Device(self.device)
    device.set_current()
    try:
      major, minor = device.compute_capability
      if (int(major), int(minor)) != self.target.capability:
        reason = f"device {self.device} is no {self.target.name}: sm_{major}{minor}"
        raise MirageError("NO_GPU", reason)
      yield
    finally:
      self.d.cuCtxSetCurrent(before)


@dataclass(frozen=True, slots=True)
class Loaded:
  """A candidate's kernels on one GPU, ready for launch at some extents."""

  kernels: tuple[tuple[Any, KernelSource], ...]
  extents: Mapping[str, int]


def load_on_device(gpu: Gpu, region: Region, candidate: Candidate, extents: Mapping[str, int]) -> Loaded:
  """Emit, compile and load the kernels; the GPU's context is current.

  Raises:
      RejectionError: EMIT_UNSUPPORTED, LAYOUT or SMEM (no code for this µGraph at these extents),
          COMPILE_FAILED or SPILLS.
      MirageError: COMPILER_MISSING.
  """
  sources = emit_candidate(candidate, extents, gpu.target, f"mugraph_{region.key}")
  kernels = []
  for source, image in zip(sources, compile_many(sources, gpu.target, 1), strict=True):
    if isinstance(image, Rejection):
      raise RejectionError(image.code, image.reason, image.nodes)
    assert isinstance(image, Cubin)
    kernels.append((gpu.load(image, source.name, source.smem_bytes), source))
  return Loaded(tuple(kernels), ugraph_extents(candidate.ugraph, candidate.params, extents))


def launch_on_device(
  gpu: Gpu,
  loaded: Loaded,
  region: Region,
  candidate: Candidate,
  inputs: Mapping[str, Any],
  shapes: Mapping[str, Sequence[int]],
  *,
  library: Library,
  device: int,
) -> dict[str, Any]:
  """Output name -> array, written by kernels that may still be on their way on the stream.

  ``inputs``: dense arrays on the GPU. ``shapes``: those of the outputs.
  """
  given = {i.name: inputs[i.tensor.name] for i in region.inputs}
  outputs = {o.name: o.tensor.name for o in region.outputs}
  made: dict[str, Any] = {}
  for t in candidate.ugraph.tensors:
    if t.name in outputs:
      made[t.name] = library.empty(shapes[outputs[t.name]], t.dtype, device)
    elif t.name not in given:
      made[t.name] = library.empty([loaded.extents[a] for a in t.axes], t.dtype, device)
  at = {name: library.address(x) for name, x in (given | made).items()}
  for function, source in loaded.kernels:
    gpu.launch_source(function, source, at)
  return {outputs[name]: x for name, x in made.items() if name in outputs}
