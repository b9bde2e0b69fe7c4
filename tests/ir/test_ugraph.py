"""Part axes and their extents; the text of numbers."""

import pytest
from golden_texts import PROGRAMS

from mirage_onnx.ir import KernelParams, is_part_axis, parse_ugraph, part_axis, ugraph_extents

TWICE = parse_ugraph(PROGRAMS["parts_of_parts"])


def test_parts_of_parts_are_counted():
  params = (KernelParams((3, 2)), KernelParams((1, 2)), KernelParams((1,)))
  extents = ugraph_extents(TWICE, params, {"a": 5, "b": 13})
  assert extents == {"a": 5, "b": 13, "b/k0": 5, "b/k0/k1": 3}
  assert part_axis("b/k0", "k1") == "b/k0/k1"
  assert is_part_axis(part_axis("b", "k0")) and not is_part_axis("b")


def test_a_graph_without_parts_has_the_extents_of_its_region():
  plain = parse_ugraph("ugraph 1\ntensor i0 f32[a] input\n")
  assert ugraph_extents(plain, (), {"a": 5}) == {"a": 5}


@pytest.mark.parametrize("params", [KernelParams(), KernelParams((64, 16), 4, 32, 8, 3)])
def test_numbers_are_read_from_their_text(params):
  assert KernelParams.from_text(params.to_text()) == params


@pytest.mark.parametrize(
  "text",
  [
    "",
    "cluster=1 loop_tile=0 warps=4 stages=1",
    "tile=- cluster=1 loop_tile=0 warps=4 stages=x",
    "tile=- cluster=1 loop_tile=0 warps=4 stages=1 depth=2",
    "tile=- cluster=1 loop_tile=0 warps=04 stages=1",
    "cluster=1 tile=- loop_tile=0 warps=4 stages=1",
  ],
)
def test_other_text_is_refused(text):
  with pytest.raises((ValueError, TypeError, KeyError)):
    KernelParams.from_text(text)
