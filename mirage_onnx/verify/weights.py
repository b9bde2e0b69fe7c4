"""The real weights of a model, for the numeric checks: N(0,1) does not stand for a scale of 30.

They are read when a check asks for them and kept while it lasts. What is measured of one is a few
numbers that stay: a weight is measured once, however many regions read it.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
from onnx import TensorProto

from mirage_onnx import deadline
from mirage_onnx.cores import available_cores
from mirage_onnx.importer import LoadedModel
from mirage_onnx.importer.causal import implied
from mirage_onnx.importer.constants import constant_values
from mirage_onnx.importer.external import size_bytes
from mirage_onnx.ir.program import has_more_places
from mirage_onnx.ir.region import Region, RegionTensor
from mirage_onnx.verify.extremes import Extremes, extremes, of_integers, repeated

#: Elements that are hashed at a time.
BLOCK = 1 << 22
#: (name of a weight, the shape that it is taken to have) -> what is measured of it.
Measure = Callable[[str, tuple[int, ...]], Extremes]


@dataclass(frozen=True, slots=True)
class PartOfWeight:
  """A region's input that is a view of a weight."""

  region: Region
  of: RegionTensor

  @property
  def source(self) -> str:
    return self.of.source.name

  def take(self, data: np.ndarray) -> np.ndarray:
    """The part, of the array of the weight."""
    found: np.ndarray = self.region.part(self.of, data)
    return found

  def extremes(self, read: Callable[[str], np.ndarray], shape: tuple[int, ...]) -> Extremes:
    """What is measured of it with its elements, in their order, in ``shape``.

    Of packed integers it is what their bits allow, and what stands many times is looked at once: either
    is as large as the weight would be in 16 bits, half a gigabyte of a vocabulary.
    """
    if self.of.dtype.is_packed:
      return of_integers(*self.of.dtype.integers, shape)
    if (times := self._repeats(shape)) is None:
      return extremes(self.take(read(self.source)).reshape(shape))
    once = tuple(n // r for n, r in zip(shape, times, strict=True))
    view, tensor = self.of.view, self.of.tensor
    assert view is not None
    sizes = tuple(n // view.repeat(d) for d, n in enumerate(self.region.shape(tensor)))
    alone = replace(self.of, tensor=replace(tensor, shape=sizes), view=replace(view, repeats=()))
    return repeated(extremes(self.region.part(alone, read(self.source)).reshape(once)), times)

  def _repeats(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """How often an element stands along each dimension of ``shape``; None: never, or they are others."""
    view, own = self.of.view, self.region.shape(self.of.tensor)
    assert view is not None
    kept = [(n, view.repeat(d)) for d, n in enumerate(own) if n > 1]
    if not view.repeats or tuple(n for n, _ in kept) != tuple(n for n in shape if n > 1):
      return None
    times = iter(r for _, r in kept)
    return tuple(next(times) if n > 1 else 1 for n in shape)


class Weights(Mapping[str, np.ndarray]):
  """ONNX tensor name -> values, of the weights of one region; each is read once.

  ``parts``: names of parts of weights -> the part.
  """

  def __init__(
    self,
    names: tuple[str, ...],
    read: Callable[[str], np.ndarray],
    measure: Measure,
    parts: Mapping[str, PartOfWeight],
  ) -> None:
    self._names, self._read, self._measure = dict.fromkeys((*names, *parts)), read, measure
    self._parts = parts
    self._arrays: dict[str, np.ndarray] = {}
    self._known: dict[tuple[str, tuple[int, ...]], Extremes] = {}

  def extremes(self, name: str, shape: tuple[int, ...]) -> Extremes:
    """What is measured of a weight, or here of a part of one."""
    if name not in self._parts:
      return self._measure(name, shape)
    if (name, shape) not in self._known:
      self._known[name, shape] = self._parts[name].extremes(self.__getitem__, shape)
    return self._known[name, shape]

  def __getitem__(self, name: str) -> np.ndarray:
    if name not in self._names:
      raise KeyError(name)
    if name not in self._arrays:
      if name in self._parts:
        part = self._parts[name]
        self._arrays[name] = part.take(self[part.source])
      else:
        self._arrays[name] = self._read(name)
    return self._arrays[name]

  def __contains__(self, name: object) -> bool:
    return name in self._names

  def __iter__(self) -> Iterator[str]:
    return iter(self._names)

  def __len__(self) -> int:
    return len(self._names)


#: Model -> name of a weight -> its hash, and who works it out: who asks again, on whatever way, does not read
#: it again.
_DIGESTS: WeakKeyDictionary[LoadedModel, tuple[dict[str, str], dict[str, threading.Lock]]] = (
  WeakKeyDictionary()
)
#: Weights of so many bytes are hashed before they are asked for, by so many threads.
LARGE_BYTES, THREADS = 1 << 20, 8


class ModelWeights:
  """The weights of one model. ``measure``: asked instead of measuring here, in a worker.

  ``extremes`` may be called from any thread; the others wait for one that measures the same.
  """

  def __init__(self, loaded: LoadedModel, measure: Measure | None = None) -> None:
    self._loaded, self._measure = loaded, measure or self._measured
    self._known: dict[tuple[str, tuple[int, ...]], Extremes] = {}
    self._digests, self._hashing = _DIGESTS.setdefault(loaded, ({}, {}))
    self._locks: dict[tuple[str, tuple[int, ...]], threading.Lock] = {}

  @cached_property
  def _values(self) -> dict[str, TensorProto]:
    return constant_values(self._loaded)

  def of(self, region: Region) -> Weights:
    """Those that ``region`` reads."""
    held = [i for i in region.weights if self._stored(i.source.name)]
    parts = {i.tensor.name: PartOfWeight(region, i) for i in held if i.view}
    shapes = {i.source.name: region.shape(i.source) for i in held}
    return Weights(tuple(shapes), lambda name: self._first(name, shapes[name]), self.extremes, parts)

  def extremes(self, name: str, shape: tuple[int, ...]) -> Extremes:
    """What is measured of a weight whose elements, in their order, have ``shape``."""
    with self._locks.setdefault((name, shape), threading.Lock()):
      if (name, shape) not in self._known:
        self._known[name, shape] = self._measure(name, shape)
    return self._known[name, shape]

  def digest(self, region: Region) -> str:
    """A hash of the weights that ``region`` reads, in the order of its inputs; names are none of it."""
    found = [self._digest(i.source.name) for i in region.weights]
    return hashlib.sha256(" ".join(found).encode()).hexdigest()

  @property
  def outside(self) -> dict[str, TensorProto]:
    """Name -> a weight that lies in a file of its own or with others."""
    return {n: t for n, t in self._values.items() if t.data_location == TensorProto.EXTERNAL}

  @property
  def digests(self) -> dict[str, str]:
    """Name -> hash, of those that are known by now. More come while others hash."""
    return self._digests

  def hash_large(self) -> None:
    """Hash the large weights of the model, the largest first."""
    sizes = {n: size_bytes(t) or len(t.raw_data) for n, t in self._values.items()}
    names = sorted((n for n, size in sizes.items() if size >= LARGE_BYTES), key=lambda n: (-sizes[n], n))
    with ThreadPoolExecutor(min(THREADS, available_cores()), thread_name_prefix="hash") as pool:
      for _ in pool.map(self._digest, names):
        pass

  def hash_ahead(self, regions: Sequence[Region], threads: int) -> None:
    """Hash what ``regions`` read, side by side: 4 s of a repeat of four layers of LLaMA one by one."""
    end = deadline.end()

    def hashed(region: Region) -> None:
      with deadline.until(end):
        self.digest(region)

    with ThreadPoolExecutor(threads, thread_name_prefix="hash") as pool:
      for _ in pool.map(hashed, regions):
        pass

  def _digest(self, name: str) -> str:
    with self._hashing.setdefault(name, threading.Lock()):
      if name not in self._digests:
        stored = self._stored(name)
        values = hashlib.sha256(
          b"drawn" if stored is None else f"{stored.data_type} {[*stored.dims]}".encode()
        )
        if stored is not None:
          data = self._array(name).reshape(-1)
          for start in range(0, data.size, BLOCK):
            deadline.check()
            values.update(np.ascontiguousarray(data[start : start + BLOCK]).view(np.uint8).data)
        self._digests[name] = values.hexdigest()
    return self._digests[name]

  def _stored(self, name: str) -> TensorProto | None:
    return self._values.get(name) or implied(name)

  def _array(self, name: str) -> np.ndarray:
    stored = self._stored(name)
    assert stored is not None
    return self._loaded.read(stored)

  def _first(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A weight; of places as many as a tensor of this shape has."""
    return self._array(name)[: shape[0]] if has_more_places(name, shape) else self._array(name)

  def _measured(self, name: str, shape: tuple[int, ...]) -> Extremes:
    return extremes(self._first(name, shape).reshape(shape))


def hash_beside(loaded: LoadedModel) -> None:
  """Let others hash the weights of a model that is to be looked for in what is kept; nobody waits."""

  def hashed() -> None:
    with suppress(Exception):  # who asks for it meets the same
      ModelWeights(loaded).hash_large()

  if available_cores() > 1:
    threading.Thread(target=hashed, name="hashes", daemon=True).start()


def sample_weights(loaded: LoadedModel, region: Region) -> Mapping[str, np.ndarray]:
  """ONNX tensor name -> values, for every weight that ``region`` reads."""
  return ModelWeights(loaded).of(region)
