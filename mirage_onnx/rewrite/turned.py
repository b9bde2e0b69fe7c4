"""Weights in another dimension order that are made when they are written, not before.

A kernel reads large weights in an order of its own (K-major). The copy of a weight in an external file
would be as large as the weight, so the model only names it: source file, place, shape and order are
entries of the tensor's external data, under a location that no file has, so that nobody else reads
it. ``save_model`` streams such copies to the output's data file in blocks; ``held`` takes
them into a model that stays in memory.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.external_data_helper import ExternalDataInfo

from mirage_onnx.cores import available_cores
from mirage_onnx.importer.external import check_stored, read_tensor, size_bytes
from mirage_onnx.ir.tiled_copies import copy_tiles

#: What the location of such a copy begins with; no file's name has that character.
MARK = "\0turned "
#: Bytes that are turned at a time, and the size from which a copy is not made before it is written.
BLOCK_BYTES, LEAST_BYTES = 1 << 24, 1 << 20
#: Blocks that are made at a time, and that there are: memory is small, too.
THREADS, MOST_ROOMS = 4, 4


class Rooms:
  """Memory for blocks, which the next copy takes again: a fresh page costs as much as writing it."""

  def __init__(self) -> None:
    self._rooms: list[np.ndarray] = []

  def of(self, count: int, shape: tuple[int, ...], dtype: np.dtype) -> list[np.ndarray]:
    """Some arrays, whatever is in them. Those of an earlier call are theirs now."""
    size = prod(shape) * dtype.itemsize
    if any(room.nbytes < size for room in self._rooms):
      self._rooms.clear()
    while len(self._rooms) < count:
      self._rooms.append(np.empty(size, np.uint8))
    return [room[:size].view(dtype).reshape(shape) for room in self._rooms[:count]]


@dataclass(frozen=True, slots=True)
class Turned:
  """``numpy.transpose(source, perm)``; ``source`` is in an external file."""

  source: onnx.TensorProto
  perm: tuple[int, ...]

  @property
  def dims(self) -> tuple[int, ...]:
    return tuple(self.source.dims[p] for p in self.perm)

  def blocks(self, folder: Path, rooms: Rooms) -> Iterator[np.ndarray]:
    """The copy, some of its first dimension at a time; each is overwritten by one that comes later.

    A few are made side by side: a core turns less than a disk takes. One more waits to be written.

    Raises:
        MirageError: EXTERNAL_DATA_MISSING, MODEL_INVALID.
    """
    check_stored(self.source, folder)
    turned = read_tensor(self.source, folder).transpose(self.perm)
    rows = max(1, BLOCK_BYTES // max(1, turned.dtype.itemsize * prod(turned.shape[1:])))
    starts = deque(range(0, turned.shape[0], rows))
    threads = min(THREADS, available_cores(), len(starts))
    count = 1 if threads < 2 else min(MOST_ROOMS, threads + 1, len(starts))
    free = rooms.of(count, (min(rows, turned.shape[0]), *turned.shape[1:]), turned.dtype)

    def made(start: int, room: np.ndarray) -> np.ndarray:
      block = turned[start : start + rows]
      copy_tiles(block, room[: block.shape[0]])
      return room[: block.shape[0]]

    if threads < 2:
      yield from (made(start, free[0]) for start in starts)
      return
    with ThreadPoolExecutor(threads, thread_name_prefix="turned") as pool:
      under_way = deque((pool.submit(made, starts.popleft(), room), room) for room in free)
      while under_way:
        future, room = under_way.popleft()
        yield future.result()
        if starts:
          under_way.append((pool.submit(made, starts.popleft(), room), room))


def can_turn(source: onnx.TensorProto) -> bool:
  """Whether a tensor is stored outside the model and large, with elements of whole bytes."""
  if source.data_location != onnx.TensorProto.EXTERNAL or (size_bytes(source) or 0) < LEAST_BYTES:
    return False
  return prod(source.dims) * helper.tensor_dtype_to_np_dtype(source.data_type).itemsize == size_bytes(source)


def turned(source: onnx.TensorProto, perm: tuple[int, ...], name: str) -> onnx.TensorProto:
  """The tensor ``name`` that says what it will be. ``source`` is stored outside the model."""
  dims = [source.dims[p] for p in perm]
  made = onnx.TensorProto(name=name, data_type=source.data_type, dims=dims)
  made.data_location = onnx.TensorProto.EXTERNAL
  for entry in source.external_data:
    value = f"{MARK}{' '.join(map(str, perm))}\0{entry.value}" if entry.key == "location" else entry.value
    made.external_data.add(key=entry.key, value=value)
  return made


def turned_of(tensor: onnx.TensorProto) -> Turned | None:
  """What ``turned`` has said; None for any other tensor."""
  if tensor.data_location != onnx.TensorProto.EXTERNAL:
    return None
  info = {e.key: e.value for e in tensor.external_data}
  if not info.get("location", "").startswith(MARK):
    return None
  order, _, info["location"] = info["location"].removeprefix(MARK).partition("\0")
  perm = tuple(map(int, order.split()))
  dims = [0] * len(perm)
  for p, d in zip(perm, tensor.dims, strict=True):
    dims[p] = d
  source = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=dims)
  source.data_location = onnx.TensorProto.EXTERNAL
  for key, value in info.items():
    source.external_data.add(key=key, value=value)
  return Turned(source, perm)


def is_turned(tensor: onnx.TensorProto) -> bool:
  """Whether ``turned`` has made it."""
  return turned_of(tensor) is not None


def held(model: onnx.ModelProto, folder: Path | None) -> onnx.ModelProto:
  """``model`` with the copies in it: for who has no file to write them to. It is changed."""
  rooms = Rooms()
  for tensor in model.graph.initializer:
    if (made := turned_of(tensor)) is not None:
      assert folder is not None
      data = np.concatenate([block.copy() for block in made.blocks(folder, rooms)])
      tensor.CopyFrom(numpy_helper.from_array(data, tensor.name))
  return model


def location_of(tensor: onnx.TensorProto) -> str:
  """The name of the file that external data comes from, also where it is turned."""
  made = turned_of(tensor)
  return str(ExternalDataInfo(tensor if made is None else made.source).location)
