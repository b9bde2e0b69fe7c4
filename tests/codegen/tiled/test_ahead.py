"""What begins before it is waited for, where that shows in the text, and that results stay right."""

import pytest
from tiled_kernels import NORM_LINEAR, TWO_PRODUCTS, case, near, tiled_source

from mirage_onnx.lower.steps import Copy
from mirage_onnx.target import H200


def _two(*, depth=64, stages=1, keys=16, out=24):
  return case(TWO_PRODUCTS, 16, loop_tile=16, warps=2, stages=stages, a0=33, a1=depth, a2=keys, a3=out)


def _text(c):
  return tiled_source(c.graph, c.graph.kernels[0], c.params[0], c.all_extents(), H200).text


def _in_order(text, *parts):
  places = [text.index(p) for p in parts]
  assert places == sorted(places), text


LOOP = "for (int step"


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_where_everything_begins(stages):
  text = _text(_two(stages=stages))
  _in_order(text, "The first stages", "%10: i2 to shared memory", LOOP, "ldmatrix")
  _in_order(text, "%12: i4, t(a3), is under way", LOOP, "F16::unpack(bv12")
  _in_order(text, LOOP, "%1: i3, t(a1_s), is under way", "ptx::cp_async_wait<", "F16::unpack(bv1[")
  assert text.count("i2 to shared memory") == 1


def test_all_steps_begin_before_the_loop_if_there_are_stages_for_them():
  all_of_them, most = _text(_two(depth=48, stages=3)), _text(_two(depth=64, stages=3))
  assert "if (2 < steps)" in all_of_them
  assert "const int ahead" not in all_of_them
  assert "if (2 < steps)" not in most
  assert "const int ahead = step + 2;" in most


def test_one_step_does_not_wait_for_what_is_behind_it():
  """The copies behind the loop are a group of their own."""
  text = _text(_two(depth=16))
  _in_order(text, "cp_async_commit", "%10: i2 to", LOOP, "ptx::cp_async_wait<1>();", "cp_async_wait_all")
  assert text.count("cp_async_commit") == 2


def test_a_tile_that_takes_the_room_of_a_block_is_copied_behind_the_loop():
  wide = case(TWO_PRODUCTS, 16, loop_tile=16, warps=4, stages=4, a0=8192, a1=64, a2=512, a3=64)
  plan = wide.plan()
  assert any(isinstance(s, Copy) for s in wide.threads().steps.after)
  assert plan.memory.early == frozenset()
  _in_order(_text(wide), LOOP, "%10: i2 to shared memory")


def test_without_a_loop_loads_stay_where_they_are():
  c = case(NORM_LINEAR, 16, 8, a0=5, a1=40, a2=40)
  assert c.plan().issued.body == c.plan().issued.after == ()
  assert "is under way" not in _text(c)


def test_results():
  """Odd sizes: pairs that are no neighbours, a last step that is short, fewer steps than stages."""
  near(
    [
      _two(depth=d, stages=s, keys=k, out=o)
      for d, k, o in ((64, 16, 24), (57, 15, 23), (16, 8, 9), (5, 3, 2), (130, 17, 40))
      for s in (1, 2, 3, 4)
    ]
  )
