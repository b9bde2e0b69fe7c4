"""Blocks whose copies are made by a warpgroup of its own: whose they can be, and how registers are shared."""

from dataclasses import replace

import pytest
from banded import ADDED, banded, banded_text
from tiled_kernels import ATTENTION, Case

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import KernelParams
from mirage_onnx.lower.ring_feed import RingFeed
from mirage_onnx.lower.tiled_graph import tiled_graph
from mirage_onnx.target import H100

SIZES = {"a0": 2, "a1": 392, "a2": 64, "a3": 330, "a4": 64}


def threads(rows=128, keys=64, text=ATTENTION, sizes=SIZES, **numbers):
  params = KernelParams((rows, 1), 1, keys, rows // 16, 3, "wgmma", teams=1)
  case = Case(text, (replace(params, **numbers),), sizes)
  graph = case.graph
  return tiled_graph(graph, graph.kernels[0], case.params[0], case.all_extents(), H100)


@pytest.mark.parametrize(("rows", "registers"), [(64, (40, 240)), (128, (40, 232)), (192, (40, 152))])
def test_registers_are_shared_out(rows, registers):
  found = threads(rows)
  assert isinstance(found.feed, RingFeed) and found.feed.registers == registers
  copying, computing = registers
  launched = H100.registers_per_sm // found.threads // 8 * 8
  assert 128 * copying + (found.threads - 128) * computing <= launched * found.threads
  assert found.threads == 2 * rows + 128


def test_barriers_lie_behind_the_tiles():
  found = threads()
  assert found.feed.barriers == found.plan.memory.size
  assert found.smem_bytes == found.feed.barriers + 16 * (found.plan.lowering.stages + 2)


@pytest.mark.parametrize(
  ("change", "reason"),
  [({"teams": 2}, "teams"), ({"sharing": 2}, "teams"), ({"stages": 1}, "no ring"),
   ({"instruction": "mma", "keys": 32}, "not all products")],
)  # fmt: skip
def test_refused(change, reason):
  with pytest.raises(RejectionError, match=reason):
    threads(**change)


@pytest.mark.parametrize(
  ("columns", "band"), [(391, "..0 else 0"), (392, "..0 else 0"), (391, "..0 else -65504 sharp")]
)
def test_masks_in_the_ring(columns, band):
  """Rows of 391 elements of a mask do not begin at multiples of 16 bytes; one that is not read may."""
  case = banded(banded_text(band, ADDED, kind="f16"), 128, 64, 3, a1=columns, a3=330)
  read = not band.endswith("sharp")
  if read and columns % 8:
    with pytest.raises(RejectionError, match="by elements"):
      threads(text=case.text, sizes=case.extents)
  else:
    assert threads(text=case.text, sizes=case.extents).feed.read == read
