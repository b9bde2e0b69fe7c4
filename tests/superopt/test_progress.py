"""Progress events: not too many, with the rate of the last seconds."""

from mirage_onnx.events import Event, SearchProgress
from mirage_onnx.superopt.progress import INTERVAL_S, WINDOW_S, ProgressMeter


class Clock:
  now = 100.0

  def __call__(self):
    return self.now


def test_events_of_a_meter():
  clock, found = Clock(), list[Event]()
  meter = ProgressMeter("r", 10.0, found.append, clock=clock)
  pruned = {"b": 5, "a": 5, "c": 9}
  for states in range(0, 1001, 10):  # one second
    meter.tick(states, pruned, None, units_done=states // 100, units_known=12)
    clock.now += 0.01
  assert 1 / INTERVAL_S - 1 <= len(found) <= 1 / INTERVAL_S
  first = found[0]
  assert isinstance(first, SearchProgress)
  assert (first.region, first.best_us, first.units_known) == ("r", None, 12)
  assert first.pruned == (("c", 9), ("a", 5), ("b", 5))
  assert first.seconds >= INTERVAL_S and abs(first.seconds + first.budget_left_s - 10) < 1e-9
  assert all(abs(e.states_per_s - 1000) < 60 for e in found if isinstance(e, SearchProgress))
  clock.now += 1
  meter.tick(2_000, pruned, 3.5)
  last = found[-1]
  assert isinstance(last, SearchProgress)
  assert last.states == 2_000 and last.best_us == 3.5 and 500 < last.states_per_s < 1300
  clock.now += 100
  meter.tick(2_000, {}, 3.5)
  clock.now += WINDOW_S
  meter.tick(2_000, {}, 3.5)
  assert isinstance(found[-1], SearchProgress)
  assert (found[-1].budget_left_s, found[-1].states_per_s) == (0, 0)
