"""The largest inputs that a model takes are found, and drawn."""

import ml_dtypes
import numpy as np
import pytest

from mirage_onnx.custom_op.edge_inputs import EDGES, edge_inputs
from mirage_onnx.custom_op.input_facts import InputFacts
from tests.custom_op.test_compare_inputs import Argument

ARGUMENTS = [Argument("x", "float16", [16, 32]), Argument("ids", "int64", [4])]


def drawn(is_finite, arguments=ARGUMENTS, masks=()):
  return dict(edge_inputs(arguments, 0, {}, {}, InputFacts(masks=frozenset(masks)), is_finite))


@pytest.mark.parametrize("limit", [8.0, 300.0, 20000.0])
def test_the_edge_is_found(limit):
  found = drawn(lambda feeds: abs(feeds["x"]).max() <= limit)
  assert list(found) == list(EDGES)
  for feeds in found.values():
    assert 0.5 * limit <= abs(feeds["x"].astype(float)).max() <= limit
  one = abs(found["channel at the edge"]["x"])
  assert (one[:, one[0] > 5] == one.max()).all() and (np.sort(one, axis=1)[:, -2] < 6).all()


def test_the_edge_of_the_type():
  for dtype in ("float16", "bfloat16", "float", "double"):
    arguments = [Argument("x", dtype, [16, 32])]
    for feeds in drawn(lambda feeds: True, arguments).values():
      assert abs(feeds["x"]).max() == ml_dtypes.finfo(feeds["x"].dtype).max
      assert np.isfinite(feeds["x"].astype(np.float64)).all()


def test_what_has_no_edge():
  assert not drawn(lambda feeds: False), "the original is never finite"
  assert not drawn(lambda feeds: True, ARGUMENTS[1:]), "no floats"


def test_masks_are_not_scaled():
  both = [Argument("m", "float16", [16, 32]), *ARGUMENTS[:1]]
  for feeds in drawn(lambda feeds: True, both, "m").values():
    assert not feeds["m"].any() and abs(feeds["x"]).max() > 6e4
  for feeds in drawn(lambda feeds: True, both, "mx").values():
    assert abs(feeds["x"]).max() > 6e4, "both are added to logits"


def test_the_number_of_runs_is_small():
  runs = []

  def count(feeds):
    runs.append(1)
    return abs(feeds["x"]).max() < 100

  drawn(count)
  assert len(runs) <= 2 * 8
