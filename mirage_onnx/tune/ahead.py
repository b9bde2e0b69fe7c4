"""What comes next is made ready while the GPU times what is before it: kernels, inputs, right results."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from mirage_onnx import deadline
from mirage_onnx.compiler.candidates import Compiled, compile_candidates
from mirage_onnx.compiler.compile_processes import apart
from mirage_onnx.cores import available_cores
from mirage_onnx.deadline import OverdueError
from mirage_onnx.errors import Rejection
from mirage_onnx.instructions import WGMMA
from mirage_onnx.ir import Candidate
from mirage_onnx.superopt.result import varied
from mirage_onnx.target import Target
from mirage_onnx.tune.measure import Draws
from mirage_onnx.tune.outcome import Outcome
from mirage_onnx.tune.refine import of_warpgroups, with_room

#: Programs by warpgroups that are timed first: the best prediction took 1.004 times as long as the fastest on
#: an H100 (``warpgroup_numbers.py``), and the compiler takes a second for each, for others a tenth of one.
WARPGROUPS = 4
#: Cores that the first kernels of one region keep busy: of 26 of BERT-base, one after the other on 16 cores,
#: the GPU waited for 88 s, and half of the cores had nothing to do.
CORES = 4
#: Of the time that is left, what the compiler may take for the first programs of a region; seconds at least.
PART, LEAST_S = 0.1, 2.0
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Ready:
  """The first programs of a region, those that compile, and the refusals of others."""

  candidates: Sequence[Candidate]
  compiled: list[Compiled]
  refused: list[Rejection]


def first_kernels(
  outcome: Outcome, target: Target, tries: int, keep: int, workers: int, *, measured: bool = True
) -> Ready:
  """The first ``keep`` of ``tries`` programs that compile; if they are timed, those by warpgroups, too."""
  assert outcome.result is not None
  candidates = [v.candidate for v in varied(outcome.result.candidates, tries)]
  with _part_of_time():
    compiled, refused = compile_candidates(outcome.region, candidates, target, keep=keep, workers=workers)
  if not compiled and refused and all(r.code == "SPILLS" for r in refused):
    candidates += (roomy := with_room(outcome.region, candidates, target, tries))
    with _part_of_time():
      compiled, more = compile_candidates(outcome.region, roomy, target, keep=keep, workers=workers)
    refused += more
  if measured:
    beside = apart(of_warpgroups, outcome.region, candidates, target, min(tries, WARPGROUPS))
    with _part_of_time():
      compiled += compile_candidates(outcome.region, beside, target, keep=tries, workers=workers)[0]
  return Ready(candidates, compiled, refused)


def _part_of_time() -> AbstractContextManager[None]:
  """Inside, a part of the time that is left: on a slow machine fewer programs are timed, but some are."""
  now = time.monotonic()
  return deadline.until(now + max(LEAST_S, PART * (deadline.end() - now)))


class Ahead:
  """Makes the first ``tries`` programs of a few regions at a time ready; the compiler has all cores.

  ``until``: of ``time.monotonic``, when that ends. ``draw``: a region's inputs and right results, which
  are made before they are asked for once any were (what is known from an earlier run needs none).
  ``more``: programs that are likely to be compiled after the first ones; they are then found in the cache.
  ``known``: whether it is kept what became of a region: it asks for nothing.
  """

  def __init__(
    self,
    target: Target,
    tries: int,
    until: float,
    draw: Callable[[Outcome], Draws],
    more: Callable[[Outcome, Compiled], Sequence[Candidate]],
    known: Callable[[Outcome], bool] = lambda o: False,
  ) -> None:
    self._target, self._tries, self._until = target, tries, until
    self._draw, self._more, self._draws_wanted = draw, more, False
    self._timed_before = known
    kernels = max(1, available_cores() // CORES)
    self._pools = [
      ThreadPoolExecutor(count, thread_name_prefix=f"ahead {what}")
      for what, count in (("kernels", kernels), ("draws", 1))
    ]
    self._kernels = dict[str, tuple[Outcome, Future[Ready]]]()
    self._draws = dict[str, tuple[Outcome, Future[Draws]]]()

  def __enter__(self) -> Self:
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    # What is under way is of no use any more, and ends when it asks for the time.
    for pool in self._pools:
      pool.shutdown(wait=False, cancel_futures=True)

  def soon(self, some: Sequence[Outcome]) -> None:
    """These come next, in this order."""
    for o in some:
      if self._timed_before(o):
        continue
      if _known(self._kernels, o) is None:
        self._kernels[o.region.key] = o, self._pools[0].submit(self._compiled, o)
      if self._draws_wanted and _known(self._draws, o) is None:
        self._draws[o.region.key] = o, self._pools[1].submit(self._drawn, o)

  def take(self, o: Outcome) -> Ready:
    """What was made ready of ``o``, or is now.

    Raises:
        OverdueError: the time is over.
    """
    future = _known(self._kernels, o)
    if future is None:
      return first_kernels(o, self._target, self._tries, self._tries, available_cores())
    del self._kernels[o.region.key]
    return self._result(future)

  def draws(self, o: Outcome) -> Draws | None:
    """The inputs of ``o`` if they were made ready; large, so nothing holds them here any more.

    Raises:
        RejectionError: INCONCLUSIVE.
        OverdueError: the time is over.
    """
    self._draws_wanted = True
    future = _known(self._draws, o)
    if future is None:
      return None
    del self._draws[o.region.key]
    return self._result(future)

  def _result(self, future: Future[_T]) -> _T:
    """What a thread has made, if it is there in time."""
    try:
      return future.result(timeout=max(0.0, min(self._until - time.monotonic(), threading.TIMEOUT_MAX)))
    except TimeoutError:
      raise OverdueError from None

  def _compiled(self, o: Outcome) -> Ready:
    with deadline.until(self._until):
      deadline.check()
      ready = first_kernels(o, self._target, self._tries, self._tries, available_cores())
    if ready.compiled:
      by_warpgroups = (c for c in ready.compiled if WGMMA.name in {p.instruction for p in c.candidate.params})
      self._pools[0].submit(self._compile_more, o, next(by_warpgroups, ready.compiled[0]))
    return ready

  def _compile_more(self, o: Outcome, best: Compiled) -> None:
    with deadline.until(self._until):
      deadline.check()
      others = self._more(o, best)
      compile_candidates(o.region, others, self._target, keep=len(others), workers=available_cores())

  def _drawn(self, o: Outcome) -> Draws:
    with deadline.until(self._until):
      deadline.check()
      return self._draw(o)


def _known(asked: Mapping[str, tuple[Outcome, Future[_T]]], o: Outcome) -> Future[_T] | None:
  found = asked.get(o.region.key)
  return found[1] if found is not None and found[0].result is o.result else None
