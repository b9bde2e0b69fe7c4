"""Events as JSON lines."""

import io
import json

from mirage_onnx.events import RegionDone, SearchProgress, StageStarted, Warned, both, silent
from mirage_onnx.report.event_lines import EventLines

EVENTS = (
  StageStarted("match"),
  Warned("ödd\nline"),
  SearchProgress("k", 1.0, 3, 2.0, (("a rule", 4),), None, 9.0, 1, 2),
  RegionDone("k", ("a", "b"), 3, 1, 2.5, None),
)


def test_a_line_an_event():
  stream = io.StringIO()
  emit = EventLines(stream)
  for event in EVENTS:
    emit(event)
  found = [json.loads(line) for line in stream.getvalue().splitlines()]
  assert [f["event"] for f in found] == ["StageStarted", "Warned", "SearchProgress", "RegionDone"]
  assert found[1]["text"] == "ödd\nline" and found[3]["ops"] == ["a", "b"]
  assert found[2]["pruned"] == [["a rule", 4]] and found[2]["best_us"] is None
  times = [f["at_s"] for f in found]
  assert times == sorted(times)


def test_a_reader_that_goes_away_ends_nothing():
  class Gone(io.StringIO):
    def write(self, text):
      raise BrokenPipeError

  emit = EventLines(Gone())
  for event in EVENTS:
    emit(event)


def test_both():
  seen = []
  emit = both(seen.append, both(silent, lambda e: seen.append(type(e))))
  emit(EVENTS[0])
  assert seen == [EVENTS[0], StageStarted]
