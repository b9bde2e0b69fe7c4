"""Bounds of what candidate regions are made of, by what a run is."""

import pytest

from mirage_onnx.match.cuts import PREDICTED, STEPS, TIMED, limits_of


@pytest.mark.parametrize(
  ("asked", "limits"),
  [
    ({"steps": True, "timed": True}, STEPS),
    ({"steps": True, "timed": False}, STEPS),
    ({"steps": False, "timed": True}, TIMED),
    ({"steps": False, "timed": False}, PREDICTED),
  ],
)
def test_limits_of_a_run(asked, limits):
  assert limits_of(**asked) == limits


def test_attention_that_is_not_timed_computes_nothing_again():
  assert (TIMED.again_meeting, STEPS.again_meeting, PREDICTED.again_meeting) == (2, 1, 0)
  assert PREDICTED.again == TIMED.again and PREDICTED.depth == TIMED.depth > PREDICTED.weights_depth
