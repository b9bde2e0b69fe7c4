"""Choosing with a GPU: candidates and ONNX Runtime's own kernels, timed side by side.

One process owns the GPU. Every arm is a CUDA-graph replay on one stream, ONNX Runtime's run too,
which is captured like ours: its own replay waits for the GPU, and that wait would be charged to it.
A time is T(flush + arm) - T(flush) with a flush of two clean reads of 256 MB, all arms interleaved
(``Gpu.time_us``). A kernel is timed only after it agreed with a float64 oracle. It must be at least
``MIN_GAIN`` faster than ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from mirage_onnx import deadline
from mirage_onnx.codegen.candidates import Compiled
from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.importer import LoadedModel
from mirage_onnx.ir import Region, RegionTensor, as_input, dim_permutation, ugraph_extents
from mirage_onnx.target import Target
from mirage_onnx.tune.device import Gpu
from mirage_onnx.tune.ort_run import OrtRun, region_model
from mirage_onnx.verify.interpret_steps import by_axes, interpret_steps
from mirage_onnx.verify.weights import sample_weights

MIN_GAIN = 0.03
#: Candidates that stay in the race from one look to the next.
FINALISTS = 4
SAMPLES = 15
#: Numbers that are drawn of one tensor (a prime, so no two of its rows are the same); the rest repeats them.
MOST_DRAWN = 8388593
#: Largest relative L2 error of an output row, beyond twice that of rounding every step.
SLACK = 1e-3


@dataclass(frozen=True, slots=True)
class Measured:
  """Medians in microseconds (cold L2), and how many candidates were right."""

  kernel_us: float
  ort_us: float
  tried: int


_gpu: Gpu | None = None


def gpu_of(target: Target) -> Gpu:
  """The process's one owner of the GPU."""
  global _gpu
  if _gpu is None:
    _gpu = Gpu(target)
  return _gpu


def measure_region(
  loaded: LoadedModel,
  region: Region,
  compiled: Sequence[Compiled],
  target: Target,
  more: Callable[[Compiled, Sequence[Compiled]], Sequence[Compiled]] = lambda best, tried: (),
) -> tuple[Compiled | None, Measured | Rejection]:
  """The fastest right candidate with its time, or why ONNX Runtime's kernels stay.

  ``more``: what else is worth a try, by the fastest so far and all that were tried; asked again
  until there is none. The fastest are then timed once more, side by side with ONNX Runtime.
  Whatever goes wrong on the way (the driver, memory, a region model that ONNX Runtime refuses)
  concerns this region alone.

  Raises:
      OverdueError: the time is over that the caller has set.
  """
  try:
    return _raced(loaded, region, compiled, target, more)
  except deadline.OverdueError:
    raise
  except Exception as error:
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return None, Rejection("MEASURE_FAILED", reason, region.nodes)


def _raced(
  loaded: LoadedModel,
  region: Region,
  compiled: Sequence[Compiled],
  target: Target,
  more: Callable[[Compiled, Sequence[Compiled]], Sequence[Compiled]],
) -> tuple[Compiled | None, Measured | Rejection]:
  gpu = gpu_of(target)
  try:
    data, oracle = draw(region, sample_weights(loaded, region), np.random.default_rng(0))
  except RejectionError as refused:
    return None, refused.rejection
  with gpu.scope():
    inputs = Inputs(gpu, region, data)
    tried: list[Compiled] = []
    wrong: list[str] = []
    arms: list[tuple[Compiled, Callable[[], None]]] = []
    others = compiled
    while others:
      tried += others
      for c in others:
        replay, outputs = prepare(gpu, region, c, inputs)
        if error := oracle.complaint(gpu, replay, outputs):
          wrong.append(error)
        else:
          arms.append((c, replay))
      if not arms:
        return None, Rejection("KERNEL_WRONG", wrong[0], region.nodes)
      took = np.median(gpu.time_us([replay for _, replay in arms], SAMPLES), axis=1)
      arms = [arms[i] for i in np.argsort(took, kind="stable")[:FINALISTS]]
      others = more(arms[0][0], tried)
    ort = ort_replay(gpu, loaded, region, data)
    times = gpu.time_us([ort, *(replay for _, replay in arms)], SAMPLES)
  medians = [float(t) for t in np.median(times, axis=1)]
  ort_us, ours = medians[0], medians[1:]
  best = int(np.argmin(ours))
  if ours[best] > ort_us * (1 - MIN_GAIN):
    reason = f"{ours[best]:.2f} us measured against {ort_us:.2f} us of onnxruntime"
    return None, Rejection("NOT_FASTER", reason, region.nodes)
  return arms[best][0], Measured(ours[best], ort_us, len(tried) - len(wrong))


def ort_replay(
  gpu: Gpu, loaded: LoadedModel, region: Region, data: Mapping[str, np.ndarray]
) -> Callable[[], None]:
  """ONNX Runtime's kernels for the region, captured on the GPU's stream."""
  feeds = {i.source.name: data[i.source.name] for i in region.given if not i.is_weight}
  run = OrtRun(gpu, region_model(loaded, region).SerializeToString(), feeds)
  return run.captured()


def draw(
  region: Region, weights: Mapping[str, np.ndarray], rng: np.random.Generator
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
      name, shape = i.source.name, region.shape(i.source)
      if name in data:
        continue
      if name in weights:
        data[name] = np.asarray(weights[name]).astype(i.dtype.numpy).reshape(shape)
      else:
        x = rng.standard_normal(min(prod(shape), MOST_DRAWN))
        x = np.abs(x) + 0.5 if positive and i.dtype.is_float else x
        data[name] = np.resize(as_input(x, i.dtype).astype(i.dtype.numpy), shape)
    for p in region.picks:
      data[p.source.name] = rng.integers(0, region.count_of(p), region.shape(p.source))
    oracle = Oracle.of(region, data)
    if oracle.finite:
      return data, oracle
  raise RejectionError("INCONCLUSIVE", "no random input gives finite values", region.nodes)


def _part(region: Region, i: RegionTensor, data: Mapping[str, np.ndarray]) -> np.ndarray:
  """What an input has of the tensors of the model."""
  rows = data[i.view.picks] if i.view and i.view.picks else None
  return np.asarray(region.part(i, data[i.source.name], rows))


def stored(
  source: RegionTensor, axes: tuple[str, ...], x: np.ndarray, extents: Mapping[str, int]
) -> np.ndarray:
  """What a region input is a part of, in the memory order that the kernels read."""
  if source.view is not None:
    return np.ascontiguousarray(x.transpose(dim_permutation(source, axes)))
  order = [source.axes.index(a) for a in axes]
  return np.ascontiguousarray(by_axes(source, x, extents).transpose(order))


class Inputs:
  """What region inputs are parts of, on the GPU, once per memory order that kernels want it in.

  One belongs to the ``Gpu.scope`` in which it is asked for first.
  """

  def __init__(self, gpu: Gpu, region: Region, data: Mapping[str, np.ndarray]) -> None:
    self._gpu, self._data = gpu, data
    self._sources = {i.name: i for i in region.given}
    self._extents = region.extents
    self._at: dict[tuple[str, tuple[str, ...] | tuple[int, ...]], int] = {}

  def address(self, name: str, axes: tuple[str, ...]) -> int | None:
    """Where the input of this canonical name is; None for what is no input."""
    source = self._sources.get(name)
    if source is None:
      return None
    whole = source.source.name
    key = whole, dim_permutation(source, axes) if source.view is not None else axes
    if key not in self._at:
      self._at[key] = self._gpu.put(stored(source, axes, self._data[whole], self._extents))
    return self._at[key]


def prepare(
  gpu: Gpu, region: Region, compiled: Compiled, inputs: Inputs
) -> tuple[Callable[[], None], dict[str, int]]:
  """A graph replay of the candidate's kernels, and where what its outputs are parts of is."""
  at = {axis: region.extents[axis] for axis in region.runtime}
  outputs: dict[str, int] = {}
  made: dict[str, int] = {}
  whole = {o.name: o.source.name for o in region.outputs}
  candidate = compiled.candidate
  extents = ugraph_extents(candidate.ugraph, candidate.params, region.extents)
  for t in candidate.ugraph.tensors:
    source = inputs.address(t.name, t.axes)
    if source is not None:
      at[t.name] = source
      continue
    name = whole.get(t.name, t.name)
    if name not in made:
      size = t.elements(extents) * t.dtype.size_bytes
      made[name] = gpu.empty(size)
      gpu.poison(made[name], size)
    at[t.name] = made[name]
    if t.role == "output":
      outputs[t.name] = at[t.name]
  kernels = [
    (gpu.load(c, s.name, s.smem_bytes), s) for s, c in zip(compiled.sources, compiled.cubins, strict=True)
  ]

  def work() -> None:
    for function, source in kernels:
      gpu.launch_source(function, source, at)

  work()
  gpu.wait()
  return gpu.capture(work), outputs


@dataclass(frozen=True, slots=True)
class Oracle:
  """A region's values on some inputs: in float64, and with ONNX's rounding after every step."""

  region: Region
  exact: Mapping[str, np.ndarray]
  rounded: Mapping[str, np.ndarray]

  @classmethod
  def of(cls, region: Region, data: Mapping[str, np.ndarray]) -> Oracle:
    wide = {i.tensor.name: _part(region, i, data).astype(np.float64) for i in region.inputs}
    exact = interpret_steps(region, wide, rounded=False)
    return cls(region, exact, interpret_steps(region, wide, rounded=True))

  @property
  def finite(self) -> bool:
    names = [o.tensor.name for o in self.region.outputs]
    return all(np.isfinite(x[n]).all() for x in (self.exact, self.rounded) for n in names)

  def errors(
    self, gpu: Gpu, replay: Callable[[], object], outputs: Mapping[str, int]
  ) -> dict[str, tuple[float, float]]:
    """Output -> (relative L2 error of the worst row, what is allowed there).

    The outputs are poisoned before the replay, so an element that is not written is NaN; an
    error that is NaN is reported as infinite.
    """
    for o in self.region.outputs:
      shape = self.region.shape(o.source)
      gpu.poison(outputs[o.name], prod(shape) * o.dtype.size_bytes)
    replay()
    found = {}
    for o in self.region.outputs:
      shape = self.region.shape(o.source)
      memory = gpu.get(outputs[o.name], shape, o.dtype.numpy)
      got = _rows(self.region.part(o, memory).astype(np.float64), shape)
      want, baseline = (_rows(x[o.tensor.name], shape) for x in (self.exact, self.rounded))
      norm = np.maximum(self._norms(o), 1e-30)
      error = np.nan_to_num(np.linalg.norm(got - want, axis=-1) / norm, nan=np.inf).ravel()
      allowed = (2 * np.linalg.norm(baseline - want, axis=-1) / norm + SLACK).ravel()
      worst = int(np.argmax(error - allowed))
      found[o.tensor.name] = float(error[worst]), float(allowed[worst])
    return found

  def _norms(self, output: RegionTensor) -> np.ndarray:
    """The norms of an output's rows: of a part of a row, what it has to be by the rms of all its parts.

    One score beside 4095 others may be as good as zero, which is no reason to ask more of it.
    """
    shape = self.region.shape(output.source)
    own = _rows(self.exact[output.tensor.name], shape)
    same = (o.tensor.name for o in self.region.outputs if o.source == output.source)
    rows = (_rows(self.exact[name], shape) for name in same)
    parts = [x for x in rows if x.shape[:-1] == own.shape[:-1]]
    squares = sum((x * x).sum(-1) for x in parts) / sum(x.shape[-1] for x in parts)
    return np.asarray(np.sqrt(squares * own.shape[-1]))

  def complaint(self, gpu: Gpu, replay: Callable[[], object], outputs: Mapping[str, int]) -> str | None:
    """What is wrong with the kernels' outputs, or None."""
    for name, (error, allowed) in self.errors(gpu, replay, outputs).items():
      if not error <= allowed:
        return f"{name} is off by {error:.2e}, {allowed:.2e} allowed (float64 oracle)"
    return None


def _rows(x: np.ndarray, whole: Sequence[int]) -> np.ndarray:
  """``x`` without the dimensions of one element that ``whole``, of which it is a part, ends with.

  Its last one is its rows: one element by itself has no scale.
  """
  ones = next((k for k, n in enumerate(reversed(whole)) if n != 1), 0)
  return x.reshape(x.shape[: x.ndim - ones])
