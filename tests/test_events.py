"""Consumers of events."""

from mirage_onnx.events import StageStarted, at_stage


def test_what_begins_with_a_stage_begins_in_front_of_it():
  told = []
  emit = at_stage("tune", lambda: told.append("begins"), told.append)
  first, second = StageStarted("match"), StageStarted("tune")
  for event in (first, second):
    emit(event)
  assert told == [first, "begins", second]
