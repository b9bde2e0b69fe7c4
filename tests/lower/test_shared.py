"""Tiles in shared memory."""

from itertools import product

import pytest
from tiled_kernels import ATTENTION, case

from mirage_onnx.codegen.tiled.tile_text import tile_offset
from mirage_onnx.ir.dtype import DType
from mirage_onnx.lower.pieces import Piece
from mirage_onnx.lower.shared import STORED, SharedTile


def _tile(dtype, *lengths, **more):
  order = tuple(Piece(f"a{n}", "", size, True, 1) for n, size in enumerate(lengths))
  return SharedTile(f"s{len(lengths)}{lengths}", dtype, order, **more)


@pytest.mark.parametrize("dtype", sorted(STORED))
@pytest.mark.parametrize("lengths", [(5,), (3, 8), (4, 7), (2, 3, 9), (1, 1)])
def test_elements_have_places_of_their_own(dtype, lengths):
  tile = _tile(dtype, *lengths)
  places = [
    eval(tile_offset(tile, {p: str(i) for p, i in zip(tile.order, index, strict=True)}))
    for index in product(*map(range, lengths))
  ]
  assert len(set(places)) == len(places)
  assert max(places) < tile.elements
  assert tile.elements * dtype.size_bytes % 16 == 0


@pytest.mark.parametrize("columns", [8, 16, 24, 64, 128])
def test_rows_of_a_matrix_load_lie_in_different_banks(columns):
  """Eight rows of 16 bytes, 32 banks of 4."""
  pitch = _tile(DType.F16, 8, columns).pitch
  assert pitch % 8 == 0
  assert columns <= pitch <= columns + 8
  banks = {(row * pitch * 2 // 16) % 8 for row in range(8)}
  assert len(banks) == 8


def test_tiles_of_a_kernel():
  """The loads that the loop moves have a copy a stage; exchanges a slot a thread and register."""
  plan = case(
    ATTENTION,
    16,
    1,
    cluster=2,
    loop_tile=16,
    warps=2,
    stages=3,
    a0=1,
    a1=96,
    a2=32,
    a3=16,
    a4=24,
  ).plan()
  tiles = plan.lowering.tiles
  assert [(tiles[n].copies, tiles[n].pitch, tiles[n].zeroed) for n in ("s0", "s18")] == [
    (3, 40, True), (3, 24, True)
  ]  # fmt: skip
  assert tiles["r13"].slots == 2 * 32 * plan.warps.registers(plan.lowering.forms[13])
