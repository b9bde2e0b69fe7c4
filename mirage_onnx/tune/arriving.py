"""What ends in threads comes to the one who decides what is timed next: searches, and what was timed.

    search (a thread, worker processes) --Searched-->  news --> what is timed next (exploring.py)
    timing (a thread for each of a few) ---Timed---->

So the GPU times a region as soon as its programs are there, and while the kernels of one are compiled,
another one has the GPU (``machine.gpu_alone``).
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self

from mirage_onnx.tune.outcome import Outcome

#: News that come close to each other are one: a choice of what is next takes longer.
CLOSE_S = 0.1
#: Who waits for news looks so often whether the user asks for the end.
POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class Searched:
  """A region was searched; without an ``outcome`` the search has ended, by ``error`` if there is one."""

  outcome: Outcome | None
  error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Timed:
  """What became of ``before`` in ``seconds``, or the error that ends the run."""

  before: Outcome
  after: Outcome | BaseException
  seconds: float


class News:
  """What has ended, in the order in which it has; one thread takes it."""

  def __init__(self) -> None:
    self._queue = SimpleQueue[Searched | Timed]()

  def tell(self, one: Searched | Timed) -> None:
    """From any thread."""
    self._queue.put(one)

  def take(self, seconds: float) -> list[Searched | Timed]:
    """What there is, or what comes within so many seconds, and in ``CLOSE_S`` behind the first of it."""
    found = list[Searched | Timed]()
    end = time.monotonic() + seconds
    while (wait := end - time.monotonic()) > 0:
      try:
        found.append(self._queue.get(timeout=wait))
      except Empty:
        break
      if len(found) == 1:  # who tells much is not heard for ever
        end = min(end, time.monotonic() + CLOSE_S)
    with suppress(Empty):
      for _ in range(self._queue.qsize()):
        found.append(self._queue.get_nowait())
    return found


class Arriving:
  """Searches in a thread of their own; entered, they begin, and left, they have ended.

  ``search`` is given what it tells each outcome, and asks this one which are ``preferred`` (keys, the most
  wanted first) and whether nobody wants more. ``over`` is called by the one who takes the news when all
  were searched; what else that thread does may take longer.
  """

  def __init__(
    self,
    search: "Callable[[Callable[[Outcome], None], Arriving], object]",
    over: Callable[[], None] = lambda: None,
  ) -> None:
    self.news, self.over, self.preferred = News(), over, tuple[str, ...]()
    self._search, self._left = search, threading.Event()
    self._error: BaseException | None = None
    self._thread = threading.Thread(target=self._run, name="searching", daemon=True)

  def __enter__(self) -> Self:
    self._thread.start()
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    self._left.set()
    self._thread.join()
    if kind is None and self._error is not None:
      raise self._error

  @property
  def is_left(self) -> bool:
    """Whether nobody wants more."""
    return self._left.is_set()

  def leave(self) -> None:
    """Nobody wants more: what is not searched comes as INTERRUPTED."""
    self._left.set()

  def _run(self) -> None:
    try:
      self._search(lambda o: self.news.tell(Searched(o)), self)
    except BaseException as raised:  # it is raised where the news are taken
      self._error = raised
    self.news.tell(Searched(None, self._error))


class Hands:
  """``count`` threads that time regions; what becomes of one is told to ``news``.

  ``spare``: how many more may be given to them, which begin when one of them is free.
  """

  def __init__(
    self, tune: Callable[[Outcome, float], Outcome], count: int, news: News, spare: int = 0
  ) -> None:
    self._tune, self._most, self._news = tune, count + spare, news
    self._pool = ThreadPoolExecutor(count, thread_name_prefix="timing")
    self.busy = dict[str, Outcome]()
    self._given = dict[str, Future[None]]()

  def __enter__(self) -> Self:
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    # Where all went well none is busy; what an error leaves behind must not use the GPU any more.
    self._pool.shutdown(wait=kind is None or issubclass(kind, Exception), cancel_futures=True)

  @property
  def are_free(self) -> bool:
    """Whether one more can be given to them."""
    return len(self.busy) < self._most

  def begin(self, o: Outcome, seconds: float) -> None:
    """Time ``o``, in so many seconds."""
    self.busy[o.region.key] = o
    self._given[o.region.key] = self._pool.submit(self._work, o, seconds)

  def cancel(self) -> None:
    """What has not begun does not."""
    for key in [key for key, future in self._given.items() if key in self.busy and future.cancel()]:
      del self.busy[key]

  def end(self, timed: Timed) -> Outcome:
    """What became of a region, of which the news were taken."""
    del self.busy[timed.before.region.key]
    if isinstance(timed.after, BaseException):
      raise timed.after
    return timed.after

  def _work(self, o: Outcome, seconds: float) -> None:
    begun = time.monotonic()
    try:
      after: Outcome | BaseException = self._tune(o, seconds)
    except BaseException as error:
      after = error
    self._news.tell(Timed(o, after, time.monotonic() - begun))
