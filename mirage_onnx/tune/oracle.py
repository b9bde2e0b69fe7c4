"""What a region's outputs have to be, and whether a kernel's are that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Protocol

import numpy as np

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import DType, Region, RegionTensor, as_input, round_to
from mirage_onnx.tune import hard_inputs
from mirage_onnx.tune.expected_rows import ExpectedRows, allowed_errors, distances
from mirage_onnx.tune.gpu_arrays import as_given, held, interpreted

#: Largest relative L2 error of an output row, beyond twice that of rounding every step.
SLACK = 1e-3
#: Rows that are smaller than this beside normal ones (of their kind's size) are measured against it.
SMALL_ROW = 1e-3


class Memory(Protocol):
  """What is asked of a GPU."""

  def poison(self, at: int, size: int) -> None: ...
  def get(self, at: int, shape: Sequence[int], dtype: np.dtype) -> np.ndarray: ...


class Buffers(dict[str, int]):
  """Output -> its address; ``scratch``: the address of a workspace -> its bytes."""

  def __init__(self) -> None:
    super().__init__()
    self.scratch: dict[int, int] = {}


@dataclass(frozen=True)
class Oracle:
  """A region's values on some inputs: in float64, and with ONNX's rounding after every step.

  ``kinds``: output -> the kind of each of its elements, an index of ``KINDS``; empty: all normal.
  ``classes``: likewise the kinds of all inputs that meet there, as one number.
  """

  region: Region
  exact: Mapping[str, np.ndarray]
  rounded: Mapping[str, np.ndarray]
  kinds: Mapping[str, np.ndarray] = field(default_factory=dict)
  classes: Mapping[str, np.ndarray] = field(default_factory=dict)

  @classmethod
  def of(
    cls,
    region: Region,
    data: Mapping[str, np.ndarray],
    kinds: Mapping[str, np.ndarray] | None = None,
    known: Mapping[str, np.ndarray] | None = None,
    classes: Mapping[str, np.ndarray] | None = None,
    xp: Any = np,
  ) -> Oracle:
    """``known``: inputs that are as they are computed with. ``xp``: the module of arrays that computes."""
    given = dict(known or {})
    for i in region.inputs:
      if i.tensor.name not in given:
        given[i.tensor.name] = as_given(part(region, i, data), xp)
    names = [o.tensor.name for o in region.outputs]
    exact, rounded = interpreted(region, given, names, xp=xp)
    return cls(region, exact, rounded, kinds or {}, classes or {})

  @property
  def finite(self) -> bool:
    names = [o.tensor.name for o in self.region.outputs]
    return all(np.isfinite(x[n]).all() for x in (self.exact, self.rounded) for n in names)

  @property
  def measured(self) -> float:
    """The share of the outputs' elements that are finite in the original: only these are compared."""
    found = [self._measured(o) for o in self.region.outputs]
    return sum(int(x.sum()) for x in found) / max(1, sum(x.size for x in found))

  def _measured(self, output: RegionTensor) -> np.ndarray:
    name = output.tensor.name
    with np.errstate(over="ignore"):
      # What is nearly infinite may round to either side: a masked score of -16 is 65520 in all, or 65504.
      fits = round_to(self.exact[name] * (1 + 2 * SLACK), output.dtype)
    return np.asarray(np.isfinite(fits) & np.isfinite(self.rounded[name]))

  def errors(
    self, gpu: Memory, replay: Callable[[], object], outputs: Mapping[str, int]
  ) -> dict[str, tuple[float, float]]:
    """Output -> (relative L2 error of the worst row, what is allowed there); infinite for one that is NaN."""
    return self.errors_of(self.made(gpu, replay, outputs))

  def made(
    self, gpu: Memory, replay: Callable[[], object], outputs: Mapping[str, int]
  ) -> dict[str, np.ndarray]:
    """Output -> what a replay writes; all is poisoned before, so an element that is not written is NaN."""
    for o in self.region.outputs:
      shape = self.region.shape(o.source)
      gpu.poison(outputs[o.name], prod(shape) * o.dtype.size_bytes)
    for at, size in outputs.scratch.items() if isinstance(outputs, Buffers) else ():
      gpu.poison(at, size)
    replay()
    every = self.region.outputs
    return {o.tensor.name: _read(gpu, outputs[o.name], self.region.shape(o.source), o.dtype) for o in every}

  def errors_of(self, made: Mapping[str, np.ndarray]) -> dict[str, tuple[float, float]]:
    """As of ``errors``, of what was ``made``; no GPU is asked."""
    found = {}
    for o in self.region.outputs:
      name = o.tensor.name
      if (last := self._last.get(name)) is None or not _same_bytes(last[0], made[name]):
        expected = self._expected[name]
        error, allowed = expected.errors(self.region.part(o, made[name])), expected.allowed
        worst = int(np.argmax(error - allowed)) if error.size else 0
        own = (float(error[worst]), float(allowed[worst])) if error.size else (0.0, SLACK)
        last = self._last[name] = made[name].copy(), own  # what was made may lie where the next one is made
      found[name] = last[1]
    return found

  @cached_property
  def _last(self) -> dict[str, tuple[np.ndarray, tuple[float, float]]]:
    """By output what was compared last: of a cache of 268 million elements all kernels make the same."""
    return {}

  @cached_property
  def _expected(self) -> dict[str, ExpectedRows]:
    return {o.tensor.name: self._rows(o) for o in self.region.outputs}

  def _rows(self, o: RegionTensor) -> ExpectedRows:
    shape, name = self.region.shape(o.source), o.tensor.name
    mask = rows_of(self._measured(o), shape)
    rows = mask.shape[:-1]
    width = mask.shape[-1] if mask.ndim else 1
    mask, want, rounded = (x.reshape(-1, width) for x in (mask, self.exact[name], self.rounded[name]))
    kinds = self._of_rows(self.kinds, o, rows)
    norms = np.maximum(self._norms(o, np.zeros(len(mask), int) if kinds is None else kinds), 1e-30).ravel()
    off = distances(rounded, want, mask)
    allowed = allowed_errors(off, norms, kinds, self._of_rows(self.classes, o, rows), SLACK)
    return ExpectedRows(want, mask, norms, allowed)

  def _of_rows(
    self, known: Mapping[str, np.ndarray], o: RegionTensor, rows: tuple[int, ...]
  ) -> np.ndarray | None:
    """What is known of the elements of an output, for its rows."""
    if o.tensor.name not in known:
      return None
    if not rows:
      return known[o.tensor.name].ravel()[:1]
    found = known[o.tensor.name].reshape(self.exact[o.tensor.name].shape)
    return np.asarray(rows_of(found, self.region.shape(o.source))[..., 0].ravel())

  def _norms(self, output: RegionTensor, kinds: np.ndarray) -> np.ndarray:
    """The norms of an output's rows: of a part of a row, what it has to be by the rms of all its parts.

    One score beside 4095 others may be as good as zero, which is no reason to ask more of it. Nor
    is a row that is zero but for its roundings, beside rows that are not.
    """
    shape = self.region.shape(output.source)
    own = rows_of(self._clean(output), shape)
    same = (o for o in self.region.outputs if o.source == output.source)
    rows = (rows_of(self._clean(o), shape) for o in same)
    parts = [x for x in rows if x.shape[:-1] == own.shape[:-1]]
    squares = sum((x * x).sum(-1) for x in parts) / sum(x.shape[-1] for x in parts)
    norms = np.sqrt(squares * own.shape[-1]).ravel()
    if self.kinds:
      normal = norms[kinds == 0]
      size = np.array([size for _, size in hard_inputs.KINDS])[kinds]
      norms = np.maximum(norms, SMALL_ROW * np.minimum(size, 1.0) * (normal.mean() if normal.size else 0.0))
    return np.asarray(norms)

  def _clean(self, output: RegionTensor) -> np.ndarray:
    return np.where(self._measured(output), self.exact[output.tensor.name], 0.0)

  def complaint(self, gpu: Memory, replay: Callable[[], object], outputs: Mapping[str, int]) -> str | None:
    """What is wrong with the kernels' outputs, or None."""
    return self.complaint_of(self.made(gpu, replay, outputs))

  def complaint_of(self, made: Mapping[str, np.ndarray]) -> str | None:
    """As of ``complaint``, of what was ``made``."""
    for name, (error, allowed) in self.errors_of(made).items():
      if not error <= allowed:
        return f"{name} is off by {error:.2e}, {allowed:.2e} allowed (float64 oracle)"
    return None


def _same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
  """Whether two arrays are one to the bit; NaN and -0 are what they are."""
  if (a.shape, a.dtype) != (b.shape, b.dtype):
    return False
  x, y = (np.ascontiguousarray(v).reshape(-1).view(f"u{v.dtype.itemsize}") for v in (a, b))
  return bool((x == y).all())


def _read(gpu: Memory, at: int, shape: Sequence[int], dtype: DType) -> np.ndarray:
  """What is in memory; a byte that is no boolean is NaN."""
  if dtype is not DType.BOOL:
    return gpu.get(at, shape, dtype.numpy)
  found = gpu.get(at, shape, np.dtype(np.uint8)).astype(np.float64)
  return np.where(found > 1, np.nan, found)


def part(region: Region, i: RegionTensor, data: Mapping[str, np.ndarray]) -> np.ndarray:
  """What an input has of the tensors of the model."""
  rows = data[i.view.picks] if i.view and i.view.picks else None
  return np.asarray(region.part(i, data[i.source.name], rows))


def rows_of(x: np.ndarray, whole: Sequence[int]) -> np.ndarray:
  """``x`` without the dimensions of one element that ``whole``, of which it is a part, ends with.

  Its last one is its rows: one element by itself has no scale.
  """
  ones = next((k for k, n in enumerate(reversed(whole)) if n != 1), 0)
  return x.reshape(x.shape[: x.ndim - ones])


def draw(
  region: Region, weights: Mapping[str, np.ndarray], rng: np.random.Generator, xp: Any = np
) -> tuple[dict[str, np.ndarray], Oracle]:
  """Inputs (ONNX name -> values in their type and shape) where the region is finite, its values.

  They are the tensors that the region's inputs are parts of.

  Weights are the real ones; the rest is normal, or positive where that leaves the region's domain
  (a root of a value that comes from outside).

  Raises:
      RejectionError: INCONCLUSIVE, neither is in the domain.
  """
  for positive in (False, True):
    data: dict[str, np.ndarray] = {}
    for i in region.inputs:
      name, shape, stored = i.source.name, region.shape(i.source), i.source.dtype or i.dtype
      if name in data:
        continue
      if name in weights:
        data[name] = np.asarray(weights[name]).astype(stored.numpy, copy=False).reshape(shape)
      else:
        x = hard_inputs.drawn(shape, rng)
        x = np.abs(x) + 0.5 if positive and i.dtype.is_float else x
        data[name] = as_input(x, stored).astype(stored.numpy)
    for p in region.picks:
      data[p.source.name] = rng.integers(0, region.count_of(p), region.shape(p.source))
    data |= hard_inputs.drawn_lengths(region, rng, 1)
    oracle = Oracle.of(region, data, xp=xp)
    if oracle.finite:
      return data, oracle
  raise RejectionError("INCONCLUSIVE", "no random input gives finite values", region.nodes)


def hard_draws(
  region: Region, weights: Mapping[str, np.ndarray], rng: np.random.Generator, xp: Any = np
) -> list[tuple[dict[str, np.ndarray], Oracle]]:
  """Draws that have rows of all kinds, the last one a plain one where the others left the domain.

  Raises:
      RejectionError: INCONCLUSIVE, no input is in the domain.
  """
  found = list[tuple[dict[str, np.ndarray], Oracle]]()
  with ExitStack() as open_:
    known: Mapping[str, np.ndarray] = {}
    for number in range(hard_inputs.draws(region)):
      data = hard_inputs.hard_inputs(region, weights, rng, number, found[0][0] if found else {})
      if not known:  # large ones take a second, and are the same in all draws
        same = [i for i in region.inputs if i.source.name in weights and not (i.view and i.view.picks)]
        known = {i.tensor.name: as_given(part(region, i, data), xp) for i in same}
        known = open_.enter_context(held(known, xp))
      # A part of a tensor has no rows of its own.
      outputs = () if any(o.view is not None for o in region.outputs) else region.outputs
      count = len(hard_inputs.KINDS)
      kinds = {o.tensor.name: hard_inputs.kinds_of(region, o, number) % count for o in outputs}
      classes = {o.tensor.name: hard_inputs.classes_of(region, o, number) for o in outputs}
      oracle = Oracle.of(region, data, kinds, known, classes, xp)
      if oracle.measured > 0:
        found.append((data, oracle))
  if not found or found[0][1].measured < LEAST_MEASURED:
    found.append(draw(region, weights, rng, xp))
  return found


#: A first draw with a smaller share of finite elements says too little.
LEAST_MEASURED = 0.25
