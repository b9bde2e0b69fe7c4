# ruff: noqa: N802
"""Samples as one graph: times are those of the arms, whatever the host does between its calls."""

import numpy as np

from mirage_onnx.tune.graph_clock import AHEAD, CALLS, Replay, flush_sample, looked_us

FLUSH_US = 100.0


class Driver:
  """Graphs are lists of events and of microseconds; a clock that only launches move."""

  class CUevent_record_flags:  # noqa: N801
    CU_EVENT_RECORD_EXTERNAL = 1

  def __init__(self):
    self.now, self.stamps, self.launched, self.refused, self.timed = 0.0, {}, 0, (), True

  def cuGraphCreate(self, flags):
    return 0, []

  def cuGraphDestroy(self, graph):
    return (0,)

  def cuGraphAddChildGraphNode(self, graph, deps, count, child):
    assert len(deps) == count
    if any(child is r for r in self.refused):
      return 801, None
    graph.extend(child)
    return 0, len(graph)

  def cuGraphAddEventRecordNode(self, graph, deps, count, event):
    graph.append(event)
    return 0, len(graph)

  def cuGraphLaunch(self, executable, stream):
    self.launched += 1
    for x in executable:
      if isinstance(x, float):
        self.now += x
      else:
        self.stamps[x] = self.now
    self.now += 5000.0  # whoever launches is held up: it is in no sample
    return (0,)

  def cuEventRecordWithFlags(self, event, stream, flags):
    stream.append(event)
    return (0,)

  def cuEventElapsedTime(self, start, end):
    return (0, (self.stamps[end] - self.stamps[start]) / 1e3) if self.timed else (400, None)


class Gpu:
  def __init__(self):
    self.d, self.stream, self.events, self.one_by_one = Driver(), [], 0, []
    self.looked = self.capture(self.put_flush)
    self.flushes = flush_sample(self, self.looked)

  def put_flush(self):
    self.stream.append(FLUSH_US)

  def event(self):
    self.events += 1
    return f"event {self.events}"

  def instantiated(self, graph):
    return [*graph]

  def capture(self, work):
    self.stream.clear()
    work()
    graph = [*self.stream]
    return Replay(graph, lambda: self.d.cuGraphLaunch(graph, self.stream), work)

  def wait(self):
    pass

  def time_us(self, arms, samples):
    self.one_by_one.append(len(arms))
    return np.zeros((len(arms), samples))

  def arm(self, us):
    return self.capture(lambda: self.stream.extend(us))


def test_the_times_of_arms():
  gpu = Gpu()
  arms = [gpu.arm([3.0]), gpu.arm([10.0, 2.5])]
  np.testing.assert_allclose(looked_us(gpu, arms, 4), [[3.0] * 4, [12.5] * 4])
  assert gpu.d.launched == 3 * 5 and not gpu.one_by_one
  before = gpu.events
  looked_us(gpu, arms, 2)
  assert gpu.events == before, "samples are made once"
  assert gpu.flushes.start == "event 1" and AHEAD >= 1 and CALLS > 1


def test_a_graph_that_no_other_can_have_is_captured_in_its_sample():
  gpu = Gpu()
  arms = [gpu.arm([3.0]), gpu.arm([7.0])]
  gpu.d.refused = (arms[1].graph,)
  np.testing.assert_allclose(looked_us(gpu, arms, 3), [[3.0] * 3, [7.0] * 3])
  assert not gpu.one_by_one


def test_what_is_no_graph_is_timed_call_by_call(monkeypatch):
  gpu = Gpu()
  looked_us(gpu, [gpu.arm([3.0]), lambda: None], 3)
  assert gpu.one_by_one == [2]
  gpu.d.timed = False  # a driver whose graphs have no times
  looked_us(gpu, [gpu.arm([3.0])], 3)
  assert gpu.one_by_one == [2, 1]
  monkeypatch.setattr(Driver, "cuGraphCreate", lambda self, flags: (801, None))
  old = Gpu()
  assert old.flushes is None
  looked_us(old, [old.arm([3.0])], 3)
  assert old.one_by_one == [1]
