"""Cold times of replays, each sample one launch of one CUDA graph: what the host is busy with is in none.

    a sample of an arm: flush, event, (flush, arm) x CALLS, event -- a graph of graphs, with the events in it
    a round: a sample of every arm and one of flushes alone, all put on the stream before any is waited for

Whoever puts flushes and arms on the stream one by one needs Python's lock behind each call of the driver: in
247 looks at regions of four layers of LLaMA, beside threads that plan and check, who timed ran for 73 of
111 s. What cannot be part of a graph (memory that it allocates) is timed call by call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mirage_onnx.errors import MirageError
from mirage_onnx.tune.driver_call import ok

if TYPE_CHECKING:
  from mirage_onnx.tune.device import Gpu

#: Calls in a row that make one sample, and flushes in front of it.
CALLS, AHEAD = 8, 1


@dataclass(eq=False)
class Sample:
  """What launches a graph, and the events at its begin and its end."""

  launch: Callable[[], object]
  start: Any
  end: Any


@dataclass(eq=False)
class Replay:
  """A captured graph, called to launch it; ``work``: what it was captured of, which has its memory."""

  graph: Any
  launch: Callable[[], object]
  work: Callable[[], object]
  sample: Sample | None = field(default=None, init=False)

  def __call__(self) -> None:
    self.launch()


def looked_us(gpu: Gpu, arms: Sequence[Callable[[], object]], samples: int) -> np.ndarray:
  """As ``Gpu.time_us``: (arms, samples) in microseconds, interleaved."""
  replays = [arm for arm in arms if isinstance(arm, Replay)]
  if len(replays) == len(arms) and gpu.flushes is not None:
    try:
      return _of_graphs(gpu, gpu.flushes, replays, samples)
    except MirageError:  # the driver does not take one of them into another graph
      pass
  return gpu.time_us(arms, samples)


def _of_graphs(gpu: Gpu, flushes: Sample, replays: Sequence[Replay], samples: int) -> np.ndarray:
  for r in replays:
    if r.sample is None:  # it lives as long as the replay
      r.sample = _sample_of(gpu, r)
  rows = [flushes, *(r.sample for r in replays if r.sample)]
  found = np.empty((len(rows), samples + 1))
  for s in range(samples + 1):  # the first: clocks up, code loaded
    order = range(len(rows)) if s % 2 == 0 else range(len(rows) - 1, -1, -1)
    for i in order:
      rows[i].launch()
    gpu.wait()
    for i in order:
      found[i, s] = 1e3 * float(ok(gpu.d.cuEventElapsedTime(rows[i].start, rows[i].end))) / CALLS
  return found[1:, 1:] - np.median(found[0, 1:])


def _sample_of(gpu: Gpu, replay: Replay) -> Sample:
  try:
    return sample_graph(gpu, gpu.looked.graph, replay.graph)
  except MirageError:  # its graph has what no other graph can have a copy of
    return _captured(gpu, replay.work)


def _captured(gpu: Gpu, work: Callable[[], object]) -> Sample:
  """As ``sample_graph``, of what is put on the stream once more."""
  d = gpu.d
  start, end = (gpu.event() for _ in range(2))
  external = d.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL

  def calls() -> None:
    for _ in range(AHEAD):
      gpu.looked.work()
    ok(d.cuEventRecordWithFlags(start, gpu.stream, external))
    for _ in range(CALLS):
      gpu.looked.work()
      work()
    ok(d.cuEventRecordWithFlags(end, gpu.stream, external))

  return Sample(gpu.capture(calls), start, end)


def flush_sample(gpu: Gpu, flush: Replay) -> Sample | None:
  """That of flushes alone; None where the driver knows no graphs of graphs."""
  try:
    return sample_graph(gpu, flush.graph, None)
  except MirageError:
    return None


def sample_graph(gpu: Gpu, flush: Any, arm: Any | None) -> Sample:
  """The graph of one sample of ``arm``, or of flushes alone.

  Raises:
      MirageError: the driver takes it in no other graph.
  """
  d, deps = gpu.d, list[Any]()
  start, end = (gpu.event() for _ in range(2))
  graph = ok(d.cuGraphCreate(0))
  try:
    for row in [flush] * AHEAD:
      deps = [ok(d.cuGraphAddChildGraphNode(graph, deps, len(deps), row))]
    deps = [ok(d.cuGraphAddEventRecordNode(graph, deps, len(deps), start))]
    for row in [flush, *([] if arm is None else [arm])] * CALLS:
      deps = [ok(d.cuGraphAddChildGraphNode(graph, deps, len(deps), row))]
    ok(d.cuGraphAddEventRecordNode(graph, deps, len(deps), end))
    executable = gpu.instantiated(graph)
  finally:
    ok(d.cuGraphDestroy(graph))
  return Sample(lambda: ok(d.cuGraphLaunch(executable, gpu.stream)), start, end)
