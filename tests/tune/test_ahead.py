"""What is made ready in threads is what would have been made here; failures come when it is taken."""

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import stand_ins

from mirage_onnx import deadline
from mirage_onnx.target import H200
from mirage_onnx.tune import ahead
from mirage_onnx.tune.ahead import Ahead, Ready
from mirage_onnx.tune.outcome import Outcome


def outcome(key):
  return Outcome(stand_ins.region(key), (), 0.0, stand_ins.found())


@pytest.fixture
def compiled(monkeypatch):
  """Who compiled what, in which thread."""
  made = []

  def first_kernels(o, target, tries, keep, workers):
    made.append((o.region.key, threading.current_thread() is threading.main_thread()))
    if o.region.key == "bad":
      raise ValueError("no")
    one = SimpleNamespace(of=o.region.key, candidate=stand_ins.candidate(0.0))
    return Ready([o.region.key], [one], [])

  monkeypatch.setattr(ahead, "first_kernels", first_kernels)
  monkeypatch.setattr(
    ahead, "compile_candidates", lambda region, others, *_, **__: made.append(tuple(others))
  )
  return made


def made(draws=None, until=float("inf")):
  return Ahead(H200, 8, until, lambda o: draws.append(o.region.key) or [], lambda o, best: [f"{best.of}2"])


def test_kernels_are_there_when_they_are_asked_for(compiled):
  a, b, c = map(outcome, "abc")
  with made() as some:
    some.soon([a, b])
    some.soon([b])
    assert some.take(a).candidates == ["a"] and some.take(b).candidates == ["b"]
    assert some.take(c).candidates == ["c"]
    ends = time.monotonic() + 60
    while ("b2",) not in compiled and time.monotonic() < ends:
      time.sleep(0.01)
  assert sorted(x for x in compiled if isinstance(x[-1], bool)) == [("a", False), ("b", False), ("c", True)]
  assert ("a2",) in compiled and ("b2",) in compiled  # what is likely to be asked for next


def test_what_was_timed_before_needs_no_more(compiled):
  """All that its second look asks for is kept, and so are its results: inputs are drawn if asked for."""
  a, b, draws = outcome("a"), outcome("b"), []
  draw, more = (lambda o: draws.append(o.region.key) or []), lambda o, best: [f"{best.of}2"]
  with Ahead(H200, 8, float("inf"), draw, more, lambda o: o is a) as some:
    assert some.draws(a) is None
    some.soon([a, b])
    some.take(a)
    some.take(b)
    ends = time.monotonic() + 60
    while (("b2",) not in compiled or draws != ["b"]) and time.monotonic() < ends:
      time.sleep(0.01)
  assert ("a2",) not in compiled and ("b2",) in compiled and draws == ["b"]


def test_another_search_result_is_another_region(compiled):
  a = outcome("a")
  with made() as some:
    some.soon([a])
    some.take(replace(a, result=stand_ins.found()))
  assert ("a", True) in compiled


def test_failures_come_when_it_is_taken(compiled):
  bad, late = outcome("bad"), outcome("late")
  with made() as some:
    some.soon([bad])
    with pytest.raises(ValueError, match="no"):
      some.take(bad)
  with made(until=time.monotonic() - 1) as some:
    some.soon([late])
    with pytest.raises(deadline.OverdueError):
      some.take(late)


def test_nobody_waits_longer_than_there_is_time(compiled, monkeypatch):
  """Whatever a thread is at: who asks for it ends in time, and so does the whole."""
  ended = threading.Event()
  monkeypatch.setattr(ahead, "first_kernels", lambda *_: ended.wait(600))
  a, start = outcome("a"), time.monotonic()
  with made(until=start + 0.2) as some, pytest.raises(deadline.OverdueError):
    some.soon([a])
    some.take(a)
  assert time.monotonic() - start < 300
  ended.set()


def test_inputs_are_drawn_ahead_once_any_were_needed(compiled):
  drawn, (a, b, c) = [], map(outcome, "abc")
  with made(drawn) as some:
    some.soon([a, b])
    assert some.draws(a) is None  # nobody knew that the GPU would be asked
    some.soon([b, c])
    assert some.draws(b) == []
  assert drawn[0] == "b" and "a" not in drawn


def test_what_is_under_way_is_not_waited_for(compiled):
  """A draw of half a minute behind the last region took the time of the checks, and nothing was left."""
  begun, go_on = threading.Event(), threading.Event()

  def draw(o):
    begun.set()
    go_on.wait(600)
    return []

  start = time.monotonic()
  try:
    with Ahead(H200, 8, float("inf"), draw, lambda o, best: []) as some:
      some.draws(outcome("a"))
      some.soon([outcome("b"), outcome("c")])
      assert begun.wait(60)
    assert time.monotonic() - start < 300
  finally:
    go_on.set()
