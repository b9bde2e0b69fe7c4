"""Bounds of what candidate regions are made of, by what a run is."""

import pytest

from mirage_onnx.match.cuts import TILED, TILED_PREDICTED, TILED_STEPS, Limits, limits_of


@pytest.mark.parametrize(
  ("asked", "limits"),
  [
    ({"tiled": False, "steps": True, "timed": True}, Limits()),
    ({"tiled": True, "steps": True, "timed": False}, TILED_STEPS),
    ({"tiled": True, "steps": False, "timed": True}, TILED),
    ({"tiled": True, "steps": False, "timed": False}, TILED_PREDICTED),
  ],
)
def test_limits_of_a_run(asked, limits):
  assert limits_of(**asked) == limits


def test_what_is_not_timed_is_computed_once():
  assert (TILED.again, TILED_STEPS.again, TILED_PREDICTED.again) == (2, 1, 0)
  assert TILED_PREDICTED.runtime and TILED_PREDICTED.depth == TILED.depth
