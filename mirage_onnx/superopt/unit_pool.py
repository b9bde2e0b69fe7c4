"""Worker processes that run jobs of a search, and who runs which: every job at most once.

A thread of this process attends each worker. A worker is started only when a search has lasted as
long as its start takes and there is a job for it, so that short searches pay nothing. Jobs are
begun in the order of their floors, as the search comes to them; what nobody begins is never run.

A worker that ends gives its job back, whatever ended it: the caller then runs the job itself, and
meets the same error if it was one.
"""

import heapq
import pickle
import threading
from collections.abc import Callable
from math import inf
from typing import cast

from mirage_onnx.superopt.outlines import Derivations
from mirage_onnx.superopt.search_setting import generator_digest
from mirage_onnx.superopt.unit_worker import Found, Job
from mirage_onnx.worker_process import WorkerProcess

#: A search shorter than this starts no worker; to start one takes about as long.
START_AFTER_S = 1.0
#: The floor of a job that the search needs now: none is lower.
NOW_US = -1.0
#: Results that nobody has taken, for each worker: with more it begins only what is needed now,
#: because the search does not come to what is foreseen.
AHEAD = 32
MODULE = "mirage_onnx.superopt.unit_worker"


class UnitPool:
  """At most ``count`` worker processes for the search that ``setting`` is the pickle of.

  ``derivations``: of a job that can be begun.
  """

  def __init__(self, setting: bytes, count: int, derivations: Callable[[Job], Derivations]) -> None:
    self._setting, self._derivations = setting, derivations
    self._source = generator_digest()
    self._changed = threading.Condition()
    self._waiting: list[tuple[float, int, Job]] = []
    self._offered = 0
    self._begun: set[Job] = set()  # by anyone
    self._running: set[Job] = set()  # by a worker
    self._found: dict[Job, bytes] = {}  # read when it is taken, which may be never
    self._workers: list[WorkerProcess] = []
    self._closed = threading.Event()
    self._threads = [threading.Thread(target=self._attend, daemon=True) for _ in range(count)]
    for thread in self._threads:
      thread.start()

  # -- what the search calls

  def offer(self, floor_us: float, job: Job) -> None:
    """The search may come to this job, the sooner the lower its floor is."""
    with self._changed:
      if job not in self._begun:
        heapq.heappush(self._waiting, (floor_us, self._offered, job))
        self._offered += 1
        self._changed.notify()

  def claim(self, job: Job) -> Job | None:
    """A job that the caller must run now: this one, or if a worker has it another needed now.

    None if there is only to wait, or if the result is there by now: what may never be needed
    is left to the workers, because it would hold up the search.
    """
    with self._changed:
      if job in self._found:
        return None
      if job not in self._running:
        self._begun.add(job)
        return job
      return self._next(most_us=NOW_US)

  def result(self, job: Job, seconds: float) -> Found | None:
    """What a worker found; None if after this time it still runs, or gave the job back."""
    with self._changed:
      self._changed.wait_for(lambda: job not in self._running, timeout=seconds)
      found = self._found.pop(job, None)
      self._changed.notify_all()
    return None if found is None else cast(Found, pickle.loads(found))

  @property
  def pids(self) -> tuple[int, ...]:
    """The worker processes that were started."""
    with self._changed:
      return tuple(worker.pid for worker in self._workers)

  def close(self) -> None:
    """End all workers, also in the middle of a job."""
    with self._changed:
      self._closed.set()
      for worker in self._workers:
        worker.kill()
      self._changed.notify_all()
    for thread in self._threads:
      thread.join()
    for worker in self._workers:
      worker.close()

  # -- the threads

  def _attend(self) -> None:
    if self._closed.wait(START_AFTER_S) or (worker := self._start()) is None:
      return
    try:
      worker.send(self._setting)
      if worker.receive() != ("ready", (self._source,)):
        return  # Its source has changed since ours was loaded.
      while (job := self._begin()) is not None:
        self._run(worker, job)
    except (EOFError, OSError):
      pass  # The worker has ended, and its job is given back.

  def _start(self) -> WorkerProcess | None:
    """A new worker, as soon as there is a job for it; None if the search is over."""
    with self._changed:
      self._changed.wait_for(lambda: self._closed.is_set() or self._waiting)
      if self._closed.is_set():
        return None
      self._workers.append(worker := WorkerProcess(MODULE))
      return worker

  def _begin(self) -> Job | None:
    """The next job for a worker, when there is one; None if the search is over."""
    with self._changed:
      while not self._closed.is_set():
        wasted = len(self._found) >= AHEAD * len(self._threads)
        if (job := self._next(most_us=NOW_US if wasted else inf)) is not None:
          self._running.add(job)
          return job
        self._changed.wait()
      return None

  def _next(self, most_us: float) -> Job | None:
    """The job with the least floor that nobody has begun, if that is no more than this."""
    while self._waiting and self._waiting[0][0] <= most_us:
      _, _, job = heapq.heappop(self._waiting)
      if job not in self._begun:
        self._begun.add(job)
        return job
    return None

  def _run(self, worker: WorkerProcess, job: Job) -> None:
    found: bytes | None = None
    try:
      worker.send((job, self._derivations(job)))
      _, (found,) = worker.receive()
    finally:
      with self._changed:
        self._running.remove(job)
        if found is not None:
          self._found[job] = found
        self._changed.notify_all()
