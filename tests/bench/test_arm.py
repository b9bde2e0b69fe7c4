"""What is not run for want of time, fails, or is not there is told apart; the rest goes on."""

import time

from arm import NOT_THERE, Arm, Arms


def fail(text):
  raise RuntimeError(text)


def test_errors_go_no_further():
  arms = Arms(time.monotonic() + 60)
  arms.add("bad", lambda: fail("broken"))
  arms.add("unknown", lambda: fail(f" {NOT_THERE[0]}. Aborting."))
  arms.add("good", lambda: Arm(lambda: None))
  assert [*arms.made] == ["good"]
  assert arms.failed == ["bad: RuntimeError: broken"]
  assert arms.absent == ["unknown"]
  assert not arms.left_out


def test_nothing_begins_after_the_deadline():
  arms = Arms(time.monotonic() - 1)
  arms.add("late", lambda: fail("was begun"))
  assert arms.left_out == ["late"]
  assert not arms.failed
