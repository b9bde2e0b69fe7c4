"""Checks of instances in processes of their own: whoever times regions needs Python's lock meanwhile.

To run the instances of one region of 28 layers on samples takes seconds of small arrays: 63 core seconds of
Qwen3 in 230 s on an H200. A process has the model as searches have theirs; what is measured of whole weights
is asked of the parent, which measures each once.
"""

import pickle
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from queue import SimpleQueue
from types import TracebackType
from typing import Self, cast

import onnx

from mirage_onnx import deadline
from mirage_onnx.deadline import OverdueError
from mirage_onnx.errors import Rejection
from mirage_onnx.importer import LoadedModel
from mirage_onnx.importer.inline import sent
from mirage_onnx.ir import KernelParams, Region, UGraph
from mirage_onnx.superopt.remote_hooks import Parent
from mirage_onnx.verify.instance_checks import SIDE_BY_SIDE, check_instances
from mirage_onnx.verify.weights import ModelWeights
from mirage_onnx.worker_process import WorkerProcess, worker_streams

MODULE = "mirage_onnx.tune.instance_processes"
#: Every process has the model (not the weights that are in a file); what all copies may take.
MAX_COPIED_BYTES = 1 << 30
#: They have less than who times, as those that compile.
NICE = 2


class InstanceProcesses:
  """At most ``count`` of them, started when they are needed first; for any thread, while this is entered.

  ``asked``: how often a process has answered.
  """

  def __init__(self, loaded: LoadedModel, weights: ModelWeights, count: int) -> None:
    self._loaded, self._weights, self.asked = loaded, weights, 0
    self._idle = SimpleQueue[WorkerProcess | None]()
    for _ in range(count):
      self._idle.put(None)
    self._started = list[WorkerProcess]()
    self._header: tuple[object, ...] | None = None
    self._closed = False

  def __enter__(self) -> Self:
    given = sent(self._loaded)
    if given.ByteSize() * max(1, self._idle.qsize()) <= MAX_COPIED_BYTES:
      self._header = given.SerializeToString(), self._loaded.known
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    self._closed = True
    for worker in self._started:
      with suppress(OSError):
        worker.kill()
        worker.close()

  def __call__(
    self, regions: Sequence[Region], graph: UGraph, params: Sequence[KernelParams], weights: ModelWeights
  ) -> tuple[Rejection | None, ...]:
    """As ``check_instances``, here where no process does it.

    Raises:
        OverdueError: the time is over that the caller has set.
    """
    if self._header is None or not regions:
      return check_instances(regions, graph, params, weights)
    end = deadline.end()

    def some(at: int) -> tuple[Rejection | None, ...]:
      own = regions[at : at + SIDE_BY_SIDE]
      with deadline.until(end):
        found = self._there(own, graph, params)
        return check_instances(own, graph, params, weights) if found is None else found

    parts = range(0, len(regions), SIDE_BY_SIDE)  # so many run side by side in one process, too
    if len(parts) < 2:
      return some(0)
    with ThreadPoolExecutor(len(parts), thread_name_prefix="instances") as pool:
      return tuple(chain.from_iterable(pool.map(some, parts)))

  def _there(
    self, regions: Sequence[Region], graph: UGraph, params: Sequence[KernelParams]
  ) -> tuple[Rejection | None, ...] | None:
    worker = self._idle.get()
    try:
      if self._closed:
        return None
      if worker is None:
        worker = WorkerProcess(MODULE)
        self._started.append(worker)
        worker.yields(NICE)
        worker.send(self._header)
      worker.send((regions, graph, tuple(params), deadline.end() - time.monotonic()))
      while True:
        name, told = worker.receive()
        if name != "measure":
          break
        worker.send(self._weights.extremes(*told))
    except (EOFError, OSError, ValueError):
      worker = None
      return None
    except BaseException:  # it waits for an answer
      worker = None
      raise
    finally:
      self._idle.put(worker)
    if name == "late":
      raise OverdueError
    if name != "checked":
      return None
    self.asked += 1
    return cast(tuple[Rejection | None, ...], told[0])


def _serve() -> None:
  """A process: the model, then (regions, program, seconds) -> a verdict of each, until stdin ends."""
  requests, answers = worker_streams()
  model, known = pickle.load(requests)
  loaded = known.loaded(onnx.ModelProto.FromString(model))
  del model
  parent = Parent(requests, answers)
  weights = ModelWeights(loaded, lambda name, shape: parent.tell("measure", name, shape))
  while True:
    try:
      regions, graph, params, seconds = pickle.load(requests)
    except EOFError:
      return
    try:
      with deadline.until(time.monotonic() + seconds):
        found = check_instances(regions, graph, params, weights)
    except OverdueError:
      parent.tell("late")
    except Exception as error:  # who asks checks them itself, and meets the same error
      parent.tell("failed", f"{type(error).__name__}: {error}")
    else:
      parent.tell("checked", found)


if __name__ == "__main__":
  with suppress(KeyboardInterrupt, BrokenPipeError):
    _serve()
