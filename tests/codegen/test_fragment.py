"""The permuted depth order of device/fragment.cuh, with the fragment maps of mma.m16n8k16."""

import numpy as np

from mirage_onnx.ir.block_ops import SUM
from mirage_onnx.lower.stream_plan import Accumulator, AccumulatorForm

LANES = 32


def mma_m16n8k16(a, b):
  """a[lane, 8], b[lane, 4] in register order -> d[lane, 4], as the PTX manual maps them."""
  full_a, full_b = np.zeros((16, 16)), np.zeros((16, 8))
  for lane in range(LANES):
    g, t = divmod(lane, 4)
    for register, (row, k) in enumerate([(g, 2 * t), (g + 8, 2 * t), (g, 2 * t + 8),
                                         (g + 8, 2 * t + 8)]):  # fmt: skip
      full_a[row, k : k + 2] = a[lane, 2 * register : 2 * register + 2]
    for register, k in enumerate([2 * t, 2 * t + 8]):
      full_b[k : k + 2, g] = b[lane, 2 * register : 2 * register + 2]
  d = full_a @ full_b
  lanes = np.zeros((LANES, 4))
  for lane in range(LANES):
    g, t = divmod(lane, 4)
    lanes[lane] = [d[g, 2 * t], d[g, 2 * t + 1], d[g + 8, 2 * t], d[g + 8, 2 * t + 1]]
  return lanes


def test_two_mmas_contract_a_step_of_32(rng):
  columns, rows = rng.standard_normal((16, 32)), rng.standard_normal((8, 32))
  d = np.zeros((LANES, 4))
  lane_of = [divmod(lane, 4) for lane in range(LANES)]
  low = np.array([columns[g, 8 * t : 8 * t + 8] for g, t in lane_of])
  high = np.array([columns[g + 8, 8 * t : 8 * t + 8] for g, t in lane_of])
  own = np.array([rows[g, 8 * t : 8 * t + 8] for g, t in lane_of])
  for half in (0, 4):  # elements 0..3 of each lane's eight, then 4..7: x, y of U4, then z, w
    x, y = slice(half, half + 2), slice(half + 2, half + 4)
    a = np.concatenate([low[:, x], high[:, x], low[:, y], high[:, y]], axis=1)
    b = np.concatenate([own[:, x], own[:, y]], axis=1)
    d += mma_m16n8k16(a, b)
  tile = np.zeros((8, 16))  # [row][column], as store_accumulator writes it
  for lane, (g, t) in enumerate(lane_of):
    tile[2 * t, g], tile[2 * t + 1, g], tile[2 * t, g + 8], tile[2 * t + 1, g + 8] = d[lane]
  np.testing.assert_allclose(tile, rows @ columns.T, atol=1e-12)


def test_accumulator_stores_hit_all_banks():
  for tiles in range(1, 9):
    pitch = Accumulator(0, 0, AccumulatorForm.MMA, "a0", SUM, 1, tiles).pitch
    for row, column in ((0, 0), (1, 0), (0, 8), (1, 8)):
      words = {((2 * t + row) * pitch + g + column) % 32 for g in range(8) for t in range(4)}
      assert len(words) == LANES
