"""The array libraries that a graph can be called with: numpy, cupy and torch.

A call asks its arrays for their shape, type, device and address and the library for empty arrays
and its current stream; what comes back belongs to the library that the inputs came from. Neither
cupy nor torch is imported unless an array of it is given.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from mirage_onnx.errors import MirageError
from mirage_onnx.ir.dtype import DType

#: Kernels load 16 bytes at a time.
ALIGNMENT = 16


class Library:
  """What a graph needs to know of an array library; ``x`` is an array of it.

  Where ``device`` is None only ``to_host`` and ``from_host`` are asked for, elsewhere the rest.
  """

  def shape(self, x: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in x.shape)

  def dtype(self, x: Any) -> str:
    """The element type by its common name, ``float16``."""
    return str(x.dtype).rpartition(".")[2]

  def device(self, x: Any) -> int | None:
    """The number of the GPU that holds the array; None for the host."""
    raise NotImplementedError

  def to_host(self, x: Any) -> np.ndarray:
    raise NotImplementedError

  def from_host(self, x: np.ndarray) -> Any:
    raise NotImplementedError

  def dense(self, x: Any) -> Any:
    """The array, copied unless it is contiguous and aligned."""
    raise NotImplementedError

  def address(self, x: Any) -> int:
    raise NotImplementedError

  def empty(self, shape: Sequence[int], dtype: DType, device: int) -> Any:
    raise NotImplementedError

  def stream(self, device: int) -> int:
    """The handle of the current stream of a GPU."""
    raise NotImplementedError


class Numpy(Library):
  """Host arrays."""

  def device(self, x: Any) -> int | None:
    return None

  def to_host(self, x: Any) -> np.ndarray:
    return np.asarray(x)

  def from_host(self, x: np.ndarray) -> Any:
    return x


class Cupy(Library):
  """Arrays of cupy, always on a GPU."""

  def device(self, x: Any) -> int | None:
    return int(x.device.id)

  def dense(self, x: Any) -> Any:
    if x.flags.c_contiguous and x.data.ptr % ALIGNMENT == 0:
      return x
    with x.device:
      return x.copy(order="C")

  def address(self, x: Any) -> int:
    return int(x.data.ptr)

  def empty(self, shape: Sequence[int], dtype: DType, device: int) -> Any:
    import cupy

    with cupy.cuda.Device(device):
      return cupy.empty(tuple(shape), dtype.numpy)

  def stream(self, device: int) -> int:
    import cupy

    with cupy.cuda.Device(device):
      return int(cupy.cuda.get_current_stream().ptr)


class Torch(Library):
  """Tensors of torch, on a GPU or on the host."""

  def device(self, x: Any) -> int | None:
    if x.device.type == "cpu":
      return None
    if x.device.type != "cuda":
      raise MirageError("GRAPH_OPERAND", f"a tensor on {x.device}: use the CPU or CUDA")
    return int(x.device.index)

  def to_host(self, x: Any) -> np.ndarray:
    import torch

    x = x.detach().contiguous()
    if x.dtype is torch.bfloat16:  # numpy's bf16 is an extension that DLPack does not name
      return np.from_dlpack(x.view(torch.int16)).view(DType.BF16.numpy)
    return np.from_dlpack(x)

  def from_host(self, x: np.ndarray) -> Any:
    import torch

    if x.dtype == DType.BF16.numpy:
      return torch.from_dlpack(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_dlpack(x)

  def dense(self, x: Any) -> Any:
    x = x.detach().contiguous()
    return x if x.data_ptr() % ALIGNMENT == 0 else x.clone()

  def address(self, x: Any) -> int:
    return int(x.data_ptr())

  def empty(self, shape: Sequence[int], dtype: DType, device: int) -> Any:
    import torch

    kind = getattr(torch, dtype.numpy.name)
    return torch.empty(tuple(shape), dtype=kind, device=torch.device("cuda", device))

  def stream(self, device: int) -> int:
    import torch

    return int(torch.cuda.current_stream(device).cuda_stream)


def library_of(arrays: Sequence[Any]) -> Library:
  """The library that all of these come from.

  Raises:
      MirageError: GRAPH_OPERAND, they come from none of the three, or not from one.
  """
  libraries: dict[str, Library] = {"numpy": Numpy(), "cupy": Cupy(), "torch": Torch()}
  found = sorted({_library_name(x) for x in arrays})
  if len(found) > 1:
    raise MirageError("GRAPH_OPERAND", f"arrays of {' and '.join(found)} in one call")
  return libraries[found[0]] if found else libraries["numpy"]


def _library_name(x: object) -> str:
  if isinstance(x, np.ndarray):
    return "numpy"
  for name, kind in (("cupy", "ndarray"), ("torch", "Tensor")):
    module = sys.modules.get(name)
    if module is not None and isinstance(x, getattr(module, kind)):
      return name
  what = type(x).__name__
  raise MirageError("GRAPH_OPERAND", f"a numpy or cupy array or a torch tensor, not a {what}")
