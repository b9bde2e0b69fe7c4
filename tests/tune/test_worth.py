"""Refusals before a search."""

import pytest

from mirage_onnx.tune.worth import FLOOR_US, refuse_search


@pytest.mark.parametrize(
  ("baseline", "margin", "refused"),
  [
    (0.0, 0.2, True),
    (FLOOR_US, 0.0, True),
    (1.2, 0.2, True),
    (1.3, 0.2, False),
    (9.0, 0.9, True),
  ],
)
def test_a_region_too_cheap_to_search(baseline, margin, refused):
  found = refuse_search(baseline, margin, ("a", "b"))
  assert (found is not None) == refused
  if found:
    assert (found.code, found.nodes) == ("NOT_FASTER", ("a", "b"))
    assert (f"{baseline:.2f} us" if baseline else "no time of their own") in found.reason
