"""Choosing with a GPU: candidates and ONNX Runtime's own kernels, timed side by side.

One thread of one process uses the GPU at a time (``machine.gpu_alone``), so that regions can be worked on
side by side: what is compiled for one leaves the GPU to another. Every arm is a CUDA-graph replay on one
stream, ONNX Runtime's run too, which is captured like ours: its own replay waits for the GPU, and that wait
would be charged to it.
A time is T(flush + arm) - T(flush) with a flush of two clean reads of many times its L2, all arms interleaved
(``Gpu.time_us``). The times that count are of kernels that agreed with a float64 oracle on hard inputs
(``hard_inputs.py``) before, caches half full. What was measured is kept (``kept_bench.py``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import cached_property
from math import prod
from typing import Protocol, Self

import numpy as np

from mirage_onnx.compiler.candidates import Compiled
from mirage_onnx.deadline import OverdueError
from mirage_onnx.delegates import Delegates
from mirage_onnx.errors import Rejection
from mirage_onnx.importer import LoadedModel
from mirage_onnx.ir import Region, RegionTensor, dim_permutation, ugraph_extents
from mirage_onnx.ir.dtype import in_memory
from mirage_onnx.ir.tiled_copies import contiguous
from mirage_onnx.lower.in_place import update_of
from mirage_onnx.target import Target
from mirage_onnx.tune import hard_inputs
from mirage_onnx.tune.device import Gpu
from mirage_onnx.tune.gpu_arrays import gpu_arrays
from mirage_onnx.tune.graph_clock import looked_us
from mirage_onnx.tune.kept_bench import kept_bench
from mirage_onnx.tune.machine import gpu_alone
from mirage_onnx.tune.node_times import share_of
from mirage_onnx.tune.oracle import Buffers, Oracle, hard_draws
from mirage_onnx.tune.ort_run import own_run, region_feeds, region_model
from mirage_onnx.tune.race import Bench, Measured, More, raced
from mirage_onnx.verify.interpret_steps import by_axes
from mirage_onnx.verify.weights import ModelWeights, sample_weights

#: Inputs by name, with what they have to become.
Draws = list[tuple[dict[str, np.ndarray], Oracle]]


class RegionBench(Bench, AbstractContextManager["RegionBench"], Protocol):
  """The bench of one region, which is left when it is done."""

  def ready(self) -> None:
    """Waits for what it needs of other threads."""
    ...

  def alone(self) -> AbstractContextManager[None]:
    """Inside, nobody else has the GPU that it times on."""
    ...


#: Who else times a region, given the bench here; None of what is left to that (``timed_elsewhere``).
Elsewhere = Callable[[LoadedModel, Region, Target, Callable[[], RegionBench]], RegionBench | None]
_elsewhere = Delegates[Elsewhere]()

#: Bytes of results that are read before they are compared.
MOST_READ = 1 << 28

_of_thread = threading.local()


def gpu_of(target: Target) -> Gpu:
  """What this thread has of the GPU: a stream and memory of its own; one of them works at a time."""
  if not hasattr(_of_thread, "gpu"):
    _of_thread.gpu = Gpu(target)
  found: Gpu = _of_thread.gpu
  return found


def measure_region(
  loaded: LoadedModel,
  region: Region,
  compiled: Sequence[Compiled],
  target: Target,
  more: More = lambda best, tried: (),
  draws: Callable[[], Draws | None] = lambda: None,
  weights: ModelWeights | None = None,
) -> tuple[Compiled | None, Measured | Rejection]:
  """The fastest right candidate with its time, or why ONNX Runtime's kernels stay.

  ``more``: what else is worth a try, by the fastest so far and all that were tried; asked again
  until there is none. ``draws``: the inputs with their oracles, if they are known already; ``weights``: of
  the model, with what is known of them. The fastest
  are timed once more in the end, side by side with ONNX Runtime. Whatever goes wrong on the way (the
  driver, memory, a region model that ONNX Runtime refuses) concerns this region alone.

  Raises:
      OverdueError: the time is over that the caller has set.
  """
  try:
    with _bench_of(loaded, region, target, draws) as bench:
      known = kept_bench(bench, loaded, region, bench.ready, weights, bench.alone)
      return raced(known, region.nodes, compiled, more)
  except Exception as error:
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return None, Rejection("MEASURE_FAILED", reason, region.nodes)


def complaints_of(
  loaded: LoadedModel, region: Region, compiled: Sequence[Compiled], target: Target, weights: ModelWeights
) -> list[str | None]:
  """For each what is wrong with its results, or None; the GPU is asked where that is not known.

  Raises:
      RejectionError: INCONCLUSIVE.
  """
  with _bench_of(loaded, region, target) as bench:
    return kept_bench(bench, loaded, region, bench.ready, weights, bench.alone).complaints(compiled)


def timed_elsewhere(by: Elsewhere) -> AbstractContextManager[None]:
  """Inside, ``by`` is asked for the bench of a region first, by any thread."""
  return _elsewhere.asked(by)


def _bench_of(
  loaded: LoadedModel, region: Region, target: Target, draws: Callable[[], Draws | None] = lambda: None
) -> RegionBench:
  def here() -> RegionBench:
    return GpuBench(loaded, region, target, draws)

  there = _elsewhere[-1](loaded, region, target, here) if _elsewhere else None
  return here() if there is None else there


def draws_of(loaded: LoadedModel, region: Region) -> Draws:
  """What the kernels of ``region`` are checked with.

  Raises:
      RejectionError: INCONCLUSIVE.
  """
  weights = sample_weights(loaded, region)
  return hard_draws(region, weights, np.random.default_rng(0), gpu_arrays() or np)


class GpuBench:
  """The ``Bench`` of a region on the GPU. What it needs there is made when it is needed first."""

  def __init__(
    self,
    loaded: LoadedModel,
    region: Region,
    target: Target,
    draws: Callable[[], Draws | None] = lambda: None,
  ) -> None:
    self._loaded, self._region, self._target, self._given = loaded, region, target, draws
    self._open = ExitStack()
    self._prepared: dict[int, tuple[Compiled, Callable[[], None], Buffers]] = {}
    self._in_place: dict[int, tuple[Compiled, Callable[[], None]]] = {}

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *error: object) -> None:
    with ExitStack() as alone:
      with suppress(OverdueError):  # then another thread's times may suffer, but nothing is left behind
        alone.enter_context(gpu_alone())
      self._open.close()

  @cached_property
  def _draws(self) -> Draws:
    return self._given() or draws_of(self._loaded, self._region)

  @cached_property
  def _timed_on(self) -> Mapping[str, np.ndarray]:
    return hard_inputs.half_full(self._region, self._draws[0][0])

  def ready(self) -> None:
    """Waits for inputs and right results."""
    self._draws  # noqa: B018

  def alone(self) -> AbstractContextManager[None]:
    """As of ``RegionBench``."""
    return gpu_alone()

  @cached_property
  def _gpu(self) -> Gpu:
    gpu = gpu_of(self._target)
    self._open.enter_context(gpu.scope())
    return gpu

  @cached_property
  def _inputs(self) -> Inputs:
    return Inputs(self._gpu, self._region, self._timed_on)

  @cached_property
  def _ort(self) -> Callable[[], None]:
    return ort_replay(self._gpu, self._loaded, self._region, self._timed_on)

  def _arm(self, c: Compiled) -> tuple[Compiled, Callable[[], None], Buffers]:
    if id(c) not in self._prepared:  # held, so that no other one gets its id
      self._prepared[id(c)] = (c, *prepare(self._gpu, self._region, c, self._inputs))
    return self._prepared[id(c)]

  def _timed(self, c: Compiled) -> Callable[[], None]:
    """The replay whose time counts: of what updates a cache, as a decoder has it, where the cache is."""
    graph = c.candidate.ugraph
    updates = (update_of(graph, k) for k in graph.kernels)
    shared = {made: old for u in updates if u for made, old in u.pairs}
    if not shared:
      return self._arm(c)[1]
    if id(c) not in self._in_place:
      self._in_place[id(c)] = c, prepare(self._gpu, self._region, c, self._inputs, shared)[0]
    return self._in_place[id(c)][1]

  def complaints(self, some: Sequence[Compiled]) -> list[str | None]:
    """As of ``Bench``."""
    self.ready()  # whoever draws may want the GPU, too
    found: dict[int, str] = {}
    with gpu_alone():
      inputs = self._inputs
    inputs.make_ready(some)  # to transpose the weights of a head takes 4 s, in which others have the GPU
    with gpu_alone():
      arms = [self._arm(c) for c in some]
    size = sum(prod(self._region.shape(o.source)) * o.dtype.size_bytes for o in self._region.outputs)
    step = max(1, MOST_READ // max(1, size))
    for at, oracle in self._draws:
      left = [n for n in range(len(arms)) if n not in found]
      for some_left in (left[i : i + step] for i in range(0, len(left), step)):
        with gpu_alone():
          inputs.become(at)
          made = [oracle.made(self._gpu, *arms[n][1:]) for n in some_left]
        # Others have the GPU while results are compared: of 25 million elements that takes a second.
        found |= {n: e for n, m in zip(some_left, made, strict=True) if (e := oracle.complaint_of(m))}
    with gpu_alone():
      inputs.become(self._timed_on)
    return [found.get(n) for n in range(len(arms))]

  def times_us(self, some: Sequence[Compiled], samples: int, *, beside_ort: bool) -> np.ndarray:
    """As of ``Bench``."""
    self.ready()
    with gpu_alone():
      replays = [self._timed(c) for c in some]
      arms = [self._ort, *replays] if beside_ort else replays
      found = looked_us(self._gpu, arms, samples)
    if beside_ort:
      share = share_of(self._loaded, self._region.nodes)
      return np.concatenate([found[:1] * share, found[1:]])
    return found


def ort_replay(
  gpu: Gpu, loaded: LoadedModel, region: Region, data: Mapping[str, np.ndarray]
) -> Callable[[], None]:
  """ONNX Runtime's kernels for the region, captured on the GPU's stream."""
  feeds = region_feeds(loaded, region, data)
  return own_run(gpu, loaded, lambda out: region_model(loaded, region, outside=out), feeds).captured()


def stored(
  source: RegionTensor, axes: tuple[str, ...], x: np.ndarray, extents: Mapping[str, int]
) -> np.ndarray:
  """What a region input is a part of, in the memory order that the kernels read."""
  if source.view is not None:
    return in_memory(contiguous(x.transpose(dim_permutation(source, axes))))
  order = [source.axes.index(a) for a in axes]
  return contiguous(by_axes(source, x, extents).transpose(order))


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
    self._made: dict[tuple[str, tuple[str, ...] | tuple[int, ...]], np.ndarray] = {}

  def make_ready(self, some: Sequence[Compiled]) -> None:
    """Work out what ``some`` will ask for; the GPU is not needed."""
    for t in (t for c in some for t in c.candidate.ugraph.tensors):
      source = self._sources.get(t.name)
      if source is None:
        continue
      key = self._key(source, t.axes)
      if key not in self._at and key not in self._made:
        self._made[key] = stored(source, t.axes, self._data[source.source.name], self._extents)

  def _key(
    self, source: RegionTensor, axes: tuple[str, ...]
  ) -> tuple[str, tuple[str, ...] | tuple[int, ...]]:
    """What parts of a tensor in one order of memory have in common."""
    return source.source.name, dim_permutation(source, axes) if source.view is not None else axes

  def address(self, name: str, axes: tuple[str, ...]) -> int | None:
    """Where the input of this canonical name is; None for what is no input."""
    source = self._sources.get(name)
    if source is None:
      return None
    key = self._key(source, axes)
    if key not in self._at:
      made = self._made.pop(key, None)
      if made is None:
        made = stored(source, axes, self._data[source.source.name], self._extents)
      self._at[key] = at = self._gpu.put(made)
      self._asked[at] = source, axes
    return self._at[key]

  def become(self, data: Mapping[str, np.ndarray]) -> None:
    """Put other values where the present ones are."""
    before, self._data, self._made = self._data, data, {}
    for at, (source, axes) in self._asked.items():
      whole = source.source.name
      if not np.may_share_memory(before[whole], data[whole]):  # weights are the same
        self._gpu.write(at, stored(source, axes, data[whole], self._extents))


def prepare(
  gpu: Gpu, region: Region, compiled: Compiled, inputs: Inputs, shared: Mapping[str, str] | None = None
) -> tuple[Callable[[], None], Buffers]:
  """A graph replay of the candidate's kernels, and where what its outputs are parts of is.

  ``shared``: outputs that are in the memory of an input, and are not known then.
  """
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
    if shared and t.name in shared:
      at[t.name] = at[shared[t.name]]
      continue
    name = whole.get(t.name, t.name)
    if name not in made:
      size = t.bytes(extents)
      made[name] = gpu.empty(size)
      gpu.poison(made[name], size)
    at[t.name] = made[name]
    if t.role == "output":
      outputs[t.name] = at[t.name]
    else:
      outputs.scratch[at[t.name]] = t.bytes(extents)
  kernels = [
    (gpu.load(c, s.name, s.smem_bytes), s) for s, c in zip(compiled.sources, compiled.cubins, strict=True)
  ]

  def work() -> None:
    for function, source in kernels:
      gpu.launch_source(function, source, at)

  work()
  gpu.wait()
  return gpu.capture(work), outputs
