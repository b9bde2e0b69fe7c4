"""One process for the checks of all results of a run (``stock_check.py``): the original runs in it once.

It may do so before there is a result, beside the search: of BERT-base 8x512 that takes a dozen seconds of
many cores, and so does the result.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mirage_onnx.custom_op.child import Child
from mirage_onnx.rewrite import stock_check

if TYPE_CHECKING:
  from pathlib import Path

#: A stage behind which results come soon, and cores have less to do.
BEFORE = "tune"
#: An original that takes longer is run where its result is checked.
MOST_S = 120.0


class CheckProcess:
  """Answers ``stock_check``'s questions; entered and left, its process has ended."""

  def __init__(self) -> None:
    self._child = Child(stock_check.__name__)
    self._thread: threading.Thread | None = None

  def __enter__(self) -> Self:
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    self._stop()
    self._child.close()

  def begin(self, original: Path | bytes) -> None:
    """Let it run the original; nobody waits."""
    if self._thread is None:
      self._child.begin()
      self._child.yields()
      question = stock_check.Question(original, None, True)
      ask = lambda: self._child.ask(question, MOST_S)  # noqa: E731
      self._thread = threading.Thread(target=ask, name="original", daemon=True)
      self._thread.start()

  def __call__(self, question: stock_check.Question, seconds: float) -> Any:
    """As ``stock_check.Ask``; what began before has these seconds, too."""
    start = time.monotonic()
    if self._thread is not None:
      self._thread.join(seconds)
      self._stop()
    return self._child.ask(question, max(0.0, seconds - (time.monotonic() - start)))

  def _stop(self) -> None:
    """End what it is at of its own accord."""
    thread, self._thread = self._thread, None
    while thread is not None and thread.is_alive():
      with suppress(OSError):
        self._child.kill()
      thread.join(0.1)
