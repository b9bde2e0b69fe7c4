"""Choosing with a GPU: candidates and ONNX Runtime's own kernels, timed side by side.

One process owns the GPU. Every arm is a CUDA-graph replay on one stream, ONNX Runtime's run too,
which is captured like ours: its own replay waits for the GPU, and that wait would be charged to it.
A time is T(flush + arm) - T(flush) with a flush of two clean reads of 256 MB, all arms interleaved
(``Gpu.time_us``). A kernel is timed only after it agreed with a float64 oracle on hard inputs
(``hard_inputs.py``). It must be at least ``MIN_GAIN`` faster than ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mirage_onnx.codegen.candidates import Compiled
from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.importer import LoadedModel
from mirage_onnx.ir import Region, RegionTensor, dim_permutation, ugraph_extents
from mirage_onnx.target import Target
from mirage_onnx.tune.device import Gpu
from mirage_onnx.tune.oracle import Buffers, hard_draws
from mirage_onnx.tune.ort_run import OrtRun, region_model
from mirage_onnx.verify.interpret_steps import by_axes
from mirage_onnx.verify.weights import sample_weights

MIN_GAIN = 0.03
#: Candidates that stay in the race from one look to the next.
FINALISTS = 4
SAMPLES = 15


@dataclass(frozen=True, slots=True)
class Measured:
  """Medians in microseconds (cold L2), and how many candidates were right.

  ``timed``: of every candidate that was timed, what was predicted and what was measured last.
  """

  kernel_us: float
  ort_us: float
  tried: int
  timed: tuple[tuple[float, float], ...] = ()


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
    draws = hard_draws(region, sample_weights(loaded, region), np.random.default_rng(0))
  except RejectionError as refused:
    return None, refused.rejection
  data = draws[0][0]
  with gpu.scope():
    inputs = Inputs(gpu, region, data)
    tried: list[Compiled] = []
    wrong: list[str] = []
    arms: list[tuple[Compiled, Callable[[], None]]] = []
    timed: dict[int, tuple[float, float]] = {}
    others = compiled
    while others:
      tried += others
      asked = [(c, *prepare(gpu, region, c, inputs)) for c in others]
      for at, oracle in draws:
        inputs.become(at)
        complaints = [oracle.complaint(gpu, replay, outputs) for _, replay, outputs in asked]
        wrong += [error for error in complaints if error]
        asked = [a for a, error in zip(asked, complaints, strict=True) if not error]
      inputs.become(data)
      arms += [(c, replay) for c, replay, _ in asked]
      if not arms:
        return None, Rejection("KERNEL_WRONG", wrong[0], region.nodes)
      took = np.median(gpu.time_us([replay for _, replay in arms], SAMPLES), axis=1)
      timed |= {id(c): (c.candidate.predicted_us, float(us)) for (c, _), us in zip(arms, took, strict=True)}
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
  timed |= {id(c): (c.candidate.predicted_us, us) for (c, _), us in zip(arms, ours, strict=True)}
  return arms[best][0], Measured(ours[best], ort_us, len(tried) - len(wrong), tuple(timed.values()))


def ort_replay(
  gpu: Gpu, loaded: LoadedModel, region: Region, data: Mapping[str, np.ndarray]
) -> Callable[[], None]:
  """ONNX Runtime's kernels for the region, captured on the GPU's stream."""
  feeds = {i.source.name: data[i.source.name] for i in region.given if not i.is_weight}
  run = OrtRun(gpu, region_model(loaded, region).SerializeToString(), feeds)
  return run.captured()


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
    self._asked: dict[int, tuple[RegionTensor, tuple[str, ...]]] = {}

  def address(self, name: str, axes: tuple[str, ...]) -> int | None:
    """Where the input of this canonical name is; None for what is no input."""
    source = self._sources.get(name)
    if source is None:
      return None
    whole = source.source.name
    key = whole, dim_permutation(source, axes) if source.view is not None else axes
    if key not in self._at:
      self._at[key] = at = self._gpu.put(stored(source, axes, self._data[whole], self._extents))
      self._asked[at] = source, axes
    return self._at[key]

  def become(self, data: Mapping[str, np.ndarray]) -> None:
    """Put other values where the present ones are."""
    before, self._data = self._data, data
    for at, (source, axes) in self._asked.items():
      whole = source.source.name
      if not np.may_share_memory(before[whole], data[whole]):  # weights are the same
        self._gpu.write(at, stored(source, axes, data[whole], self._extents))


def prepare(
  gpu: Gpu, region: Region, compiled: Compiled, inputs: Inputs
) -> tuple[Callable[[], None], Buffers]:
  """A graph replay of the candidate's kernels, and where what its outputs are parts of is."""
  at = {axis: region.extents[axis] for axis in region.runtime}
  outputs = Buffers()
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
    else:
      outputs.scratch[at[t.name]] = t.elements(extents) * t.dtype.size_bytes
  kernels = [
    (gpu.load(c, s.name, s.smem_bytes), s) for s, c in zip(compiled.sources, compiled.cubins, strict=True)
  ]

  def work() -> None:
    for function, source in kernels:
      gpu.launch_source(function, source, at)

  work()
  gpu.wait()
  return gpu.capture(work), outputs
