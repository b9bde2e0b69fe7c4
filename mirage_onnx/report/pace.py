"""How often a line is printed: now and then where there is no terminal, live lines several times a second."""

from collections.abc import Callable

#: Without a terminal, a line is printed this often at most; on one it changes so often.
PLAIN_EVERY_S, LIVE_EVERY_S = 5.0, 0.2


class Pace:
  """Says when a line is due: ``every_s`` after the last one, the first so long after it began.

  It begins with ``begin``, else with the first question. What is shorter than that needs no line.
  """

  def __init__(self, clock: Callable[[], float], every_s: float = PLAIN_EVERY_S) -> None:
    self._clock, self._every_s = clock, every_s
    self._last: float | None = None

  def begin(self) -> None:
    """Now."""
    self._last = self._clock()

  def restart(self) -> None:
    """With the next question, about something else."""
    self._last = None

  @property
  def due(self) -> bool:
    """Whether a line is printed now; then the next one is due after as long again."""
    now = self._clock()
    self._last = now if self._last is None else self._last
    if now - self._last < self._every_s:
      return False
    self._last = now
    return True
