"""What comes next is compiled while the GPU times what is before it."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from mirage_onnx import deadline
from mirage_onnx.codegen.candidates import Compiled, compile_candidates
from mirage_onnx.cores import available_cores
from mirage_onnx.errors import Rejection
from mirage_onnx.ir import Candidate
from mirage_onnx.superopt.result import varied
from mirage_onnx.target import Target
from mirage_onnx.tune.outcome import Outcome
from mirage_onnx.tune.refine import of_warpgroups


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
  compiled, refused = compile_candidates(outcome.region, candidates, target, keep=keep, workers=workers)
  if measured:
    beside = of_warpgroups(outcome.region, candidates, target, tries)
    compiled += compile_candidates(outcome.region, beside, target, keep=tries, workers=workers)[0]
  return Ready(candidates, compiled, refused)


class Ahead:
  """Compiles the first ``tries`` programs of regions in a thread, whose pool has all cores.

  ``until``: of ``time.monotonic``, when that ends.
  """

  def __init__(self, target: Target, tries: int, until: float) -> None:
    self._target, self._tries, self._until = target, tries, until
    self._pool = ThreadPoolExecutor(1, thread_name_prefix="ahead")
    self._asked: dict[str, tuple[Outcome, Future[Ready]]] = {}

  def __enter__(self) -> Self:
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    self._pool.shutdown(wait=kind is None, cancel_futures=True)

  def soon(self, some: Sequence[Outcome]) -> None:
    """These come next, in this order."""
    for o in some:
      if self._known(o) is None:
        self._asked[o.region.key] = o, self._pool.submit(self._made, o)

  def take(self, o: Outcome) -> Ready:
    """What was made ready of ``o``, or is now.

    Raises:
        OverdueError: the time is over.
    """
    future = self._known(o)
    if future is None:
      return first_kernels(o, self._target, self._tries, self._tries, available_cores())
    del self._asked[o.region.key]
    return future.result()

  def _known(self, o: Outcome) -> Future[Ready] | None:
    asked = self._asked.get(o.region.key)
    return asked[1] if asked is not None and asked[0].result is o.result else None

  def _made(self, o: Outcome) -> Ready:
    with deadline.until(self._until):
      deadline.check()
      return first_kernels(o, self._target, self._tries, self._tries, available_cores())
