"""Which regions stay: harmful ones go, without a loss to be seen half of them, and all when time is over."""

from types import SimpleNamespace

import numpy as np

from mirage_onnx.tune.gate import Gain, is_faster, to_drop
from mirage_onnx.tune.paired import speedup


def seen(*ratios):
  return tuple(speedup(np.full(20, r), 0.01) for r in ratios)


def test_faster_is_faster_everywhere():
  rows = [SimpleNamespace(speedups=seen(1.1)), SimpleNamespace(speedups=seen(1.01))]
  assert is_faster(rows)
  assert not is_faster([*rows, SimpleNamespace(speedups=seen(0.99))])
  assert not is_faster([SimpleNamespace(speedups=(speedup(np.array([0.9, *[1.1] * 8]), 0.001),))])
  assert not is_faster([])


def test_harmful():
  assert Gain(seen(1.05)).is_harmful and Gain(seen(1.2, 0.95)).is_harmful
  assert not Gain(seen(1.02, 0.9)).is_harmful  # more is lost than gained without it
  assert not Gain(seen(0.99, 0.98)).is_harmful and not Gain(()).is_harmful


def dropped(gains, *, faster=False, over=lambda some: False, batch=2):
  asked = []

  def without(some):
    asked.append(tuple(some))
    return {g: Gain(seen(*gains[g])) for g in some if gains[g]}

  return to_drop(tuple(gains), without, batch=batch, over=over, faster=faster), asked


def test_those_that_cost_time_go():
  gains = {"a": (1.1,), "b": (0.8,), "c": (1.02, 1.3)}
  for faster in (False, True):
    keys, asked = dropped(gains, faster=faster)
    assert keys == ("a", "c") and asked == [("a", "b"), ("c",)]


def test_half_go_where_none_is_seen_to_cost_time():
  gains = {"a": (0.9,), "b": (0.99,), "c": (0.95,), "d": (), "e": (0.5,)}
  keys, _ = dropped(gains)
  assert keys == ("d", "b", "c")  # first what is not known to be worth its place
  assert dropped(gains, faster=True)[0] == ()
  assert dropped({"a": (0.9,)})[0] == ("a",)


def test_no_time():
  gains = {"a": (0.9,), "b": (1.1,), "c": (0.5,)}
  assert dropped(gains, over=lambda some: True) == (("a", "b", "c"), [])
  assert dropped(gains, over=lambda some: True, faster=True) == ((), [])
  looks = iter([False, True])
  keys, asked = dropped(gains, over=lambda some: next(looks), batch=1)
  assert asked == [("a",)] and keys == ("b", "c")
