"""The trace: JSON that a viewer reads, in which what begins on a track ends there."""

import io
import json

from reported import small_model

from mirage_onnx import api, searching
from mirage_onnx.events import (
  RegionDone,
  SearchProgress,
  StageEnded,
  StageStarted,
  Warned,
  WorkEnded,
  WorkStarted,
)
from mirage_onnx.report.trace import Trace


class Clock:
  def __init__(self):
    self.now = 5.0

  def __call__(self):
    self.now += 0.5
    return self.now


def spans(events):
  """(track, name, begin, end) of what begins and ends; nothing on a track overlaps."""
  found, open_now, names = [], {}, {}
  for e in events:
    if e["ph"] == "M" and e["name"] == "thread_name":
      names[e["tid"]] = e["args"]["name"]
    if e["ph"] == "B":
      assert e["tid"] not in open_now
      open_now[e["tid"]] = e
    if e["ph"] == "E":
      begin = open_now.pop(e["tid"])
      assert begin["name"] == e["name"] and begin["ts"] <= e["ts"]
      found.append((names[e["tid"]], e["name"], begin["ts"], e["ts"]))
  assert not open_now
  return found


def test_every_event():
  stream = io.StringIO()
  trace = Trace(stream, Clock())
  for event in (
    StageStarted("superopt"),
    WorkStarted("search", 1, "k"),
    SearchProgress("k", 1.0, 3, 2.6, (("a rule", 4),), None, 9.0, 1, 2),
    Warned("ödd\nline"),
    WorkEnded("search", 1, "k"),
    RegionDone("k", ("a", "b"), 3, 1, 2.5, None),
    StageEnded("superopt", 1.0, "a detail"),
    StageStarted("tune"),
    WorkStarted("compile", 0, "k"),
  ):
    trace(event)
  trace.close()
  events = json.loads(stream.getvalue())
  assert [(track, name) for track, name, *_ in spans(events)] == [
    ("search worker 1", "search k"),
    ("stages", "superopt"),
    ("stages", "tune"),
    ("compile and time", "compile k"),
  ]  # fmt: skip
  times = [e["ts"] for e in events]
  assert times == sorted(times) and len({e["pid"] for e in events}) == 1
  assert [e["args"] for e in events if e["ph"] == "C"] == [{"k": 3}, {"k": 0}]
  assert [e["name"] for e in events if e["ph"] == "i"] == ["warning", "region k"]
  assert events[-1]["args"] == {"cut off": True}


def test_a_run_that_is_killed_leaves_what_can_be_read():
  """The end of the list may be missing: so the format says."""
  stream = io.StringIO()
  Trace(stream)(StageStarted("match"))
  assert json.loads(stream.getvalue() + "]")[-1]["name"] == "match"


def test_a_reader_that_goes_away_ends_nothing():
  class Gone(io.StringIO):
    def write(self, text):
      raise BrokenPipeError

  trace = Trace(Gone())
  trace(StageStarted("match"))
  trace.close()


def test_of_a_run_with_two_workers(monkeypatch):
  monkeypatch.setattr(searching, "MIN_REGIONS", 1)
  stream = io.StringIO()
  trace = Trace(stream)
  api.optimize(small_model(), target="h200", workers=2, emit=trace)
  trace.close()
  found = spans(json.loads(stream.getvalue()))
  stages = [s for s in found if s[0] == "stages"]
  assert [name for _, name, *_ in stages] == ["importer", "match", "superopt", "tune", "rewrite"]
  tracks = {track for track, *_ in found}
  # Predicted choices are compiled by several threads, where there are cores.
  numbered = {track.rstrip(" 0123456789") for track in tracks}
  assert numbered == {"stages", "search worker", "compile and time"}
  workers = {track for track in tracks if track.startswith("search")}
  assert {"search worker 0"} <= workers <= {"search worker 0", "search worker 1"}
  begin, end = next(s[2:] for s in stages if s[1] == "superopt")
  searched = [s for s in found if s[0].startswith("search")]
  assert searched and all(begin <= s[2] <= s[3] <= end for s in searched)
