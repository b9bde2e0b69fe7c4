"""Ctrl-C: once asks to stop and keep the best found so far, twice aborts.

A handler that raised at once would lose what a search has; this one sets a flag that the search
polls between two states. The second signal raises KeyboardInterrupt wherever the program is, as
Python does by itself.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self, TypeVar

Answer = TypeVar("Answer")


class Interrupt:
  """While entered, SIGINT is a question first; afterwards the earlier handler is back.

  Signals come to the main thread only, so that entering it in another thread changes nothing. A
  SIGINT that is ignored, as for a background job of a shell, stays ignored, and one that is not
  handled by Python is left alone.
  """

  def __init__(self) -> None:
    self._asked = False
    self._previous: Callable[[int, FrameType | None], object] | int | None = None

  @property
  def asked(self) -> bool:
    """Whether there was a SIGINT."""
    return self._asked

  def then(self, answer: Answer) -> Callable[[], Answer | None]:
    """A poll: None until there was a SIGINT, ``answer`` from then on."""
    return lambda: answer if self._asked else None

  def __enter__(self) -> Self:
    present = signal.getsignal(signal.SIGINT)
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and present not in (None, signal.SIG_IGN):
      self._previous = present
      signal.signal(signal.SIGINT, self._handle)
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
  ) -> None:
    if self._previous is not None:
      signal.signal(signal.SIGINT, self._previous)
      self._previous = None

  def _handle(self, number: int, frame: FrameType | None) -> None:
    if self._asked:
      raise KeyboardInterrupt
    self._asked = True
