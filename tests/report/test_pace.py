"""When a line is due."""

from mirage_onnx.report.pace import Pace


def test_a_line_is_due_so_long_after_the_last():
  now = [100.0]
  pace = Pace(lambda: now[0], 5.0)
  shown = []
  for now[0] in (100.0, 104.9, 105.0, 105.1, 109.9, 110.0, 130.0, 131.0):
    if pace.due:
      shown.append(now[0])
  assert shown == [105.0, 110.0, 130.0]


def test_it_begins_anew():
  now = [0.0]
  pace = Pace(lambda: now[0], 5.0)
  assert not pace.due
  now[0] = 9.0
  pace.restart()
  assert not pace.due
  now[0] = 14.0
  assert pace.due
