"""From the counters of a running search to events, few enough to cost nothing."""

import time
from collections import deque
from collections.abc import Callable, Mapping

from mirage_onnx.events import Emit, SearchProgress

#: Shortest time between two events: what an eye can follow.
INTERVAL_S = 0.2
#: The rate is that of this time: a state can take much longer than the one before.
WINDOW_S = 3.0


class ProgressMeter:
  """Emits ``SearchProgress`` for one region; ``is_due`` may be asked in a hot loop.

  ``clock`` gives seconds that never go back. Progress is for people only: nothing that a search
  decides may depend on it, because it depends on the clock.
  """

  def __init__(
    self,
    region: str,
    budget_s: float,
    emit: Emit,
    *,
    clock: Callable[[], float] = time.monotonic,
  ) -> None:
    self._region, self._budget_s, self._emit, self._clock = region, budget_s, emit, clock
    self._start = self._last = clock()
    self._past = deque([(self._start, 0)])

  @property
  def is_due(self) -> bool:
    """Whether the last event is long enough ago for another."""
    return self._clock() - self._last >= INTERVAL_S

  def tick(
    self,
    states: int,
    pruned: Mapping[str, int],
    best_us: float | None,
    *,
    units_done: int = 0,
    units_known: int = 0,
  ) -> None:
    """Tell the totals so far; an event goes out if one is due."""
    if not self.is_due:
      return
    self._last = now = self._clock()
    self._past.append((now, states))
    while len(self._past) > 2 and self._past[1][0] <= now - WINDOW_S:
      self._past.popleft()
    (then, before), (_, after) = self._past[0], self._past[-1]
    self._emit(
      SearchProgress(
        region=self._region,
        seconds=now - self._start,
        states=states,
        states_per_s=max(0, after - before) / (now - then),
        pruned=tuple(sorted(pruned.items(), key=lambda p: (-p[1], p[0]))),
        best_us=best_us,
        budget_left_s=max(0.0, self._budget_s - (now - self._start)),
        units_done=units_done,
        units_known=units_known,
      )
    )
