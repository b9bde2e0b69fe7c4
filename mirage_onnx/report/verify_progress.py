"""How far ``verify`` is: a live line on a terminal, now and then a line elsewhere.

    verify: both models on input normal 2, 1,314 kernels emulated, 0:35

There is no bar: which inputs are drawn, and what they reach, shows as it goes.
"""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status
from rich.text import Text

from mirage_onnx.custom_op.steps import SessionStep
from mirage_onnx.report.pace import LIVE_EVERY_S, PLAIN_EVERY_S, Pace
from mirage_onnx.report.progress import minutes


class VerifyProgress:
  """A ``Tell`` that prints where the comparison is."""

  def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
    self._console, self._clock = console, clock
    self._step, self._launches = "starting", 0
    self._began = clock()
    self._status = Status("verify", console=console) if console.is_terminal else None
    self._pace = Pace(clock, LIVE_EVERY_S if self._status else PLAIN_EVERY_S)
    self._pace.begin()

  def __enter__(self) -> Self:
    if self._status:
      self._status.start()
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    if self._status:
      self._status.stop()

  def __call__(self, step: SessionStep, name: str) -> None:
    """Show it, unless something was shown just now."""
    if step is SessionStep.LAUNCH:
      self._launches += 1
    else:
      self._step = f"{step} {name}".strip()
    if not self._pace.due:
      return
    if self._status:
      self._status.update(Text(self.line))
    else:
      self._console.print(f"  {self.line}", soft_wrap=True)

  @property
  def line(self) -> str:
    """``verify: both models on input normal 2, 1,314 kernels emulated, 0:35``."""
    emulated = f"{self._launches:,} kernels emulated, " if self._launches else ""
    return f"verify: {self._step}, {emulated}{minutes(self._clock() - self._began)}"
