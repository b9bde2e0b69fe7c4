"""Arrays in C order are those of numpy, bit for bit, whatever their order was."""

from itertools import permutations

import ml_dtypes
import numpy as np
import pytest

from mirage_onnx.ir import tiled_copies
from mirage_onnx.ir.tiled_copies import contiguous, copy_tiles


@pytest.mark.parametrize("dtype", [np.uint8, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("shape", [(7, 300), (65, 3, 257), (1, 130, 1, 129), (0, 5)])
def test_the_same_as_numpy(shape, dtype, monkeypatch):
  monkeypatch.setattr(tiled_copies, "LEAST_BYTES", 1)
  monkeypatch.setattr(tiled_copies, "PART_BYTES", 1 << 12)
  monkeypatch.setattr(tiled_copies, "available_cores", lambda: 3)
  x = np.random.default_rng(0).integers(0, 200, shape).astype(dtype)
  for order in permutations(range(len(shape))):
    given = x.transpose(order)
    found = contiguous(given)
    assert found.flags.c_contiguous and found.dtype == x.dtype
    np.testing.assert_array_equal(found.view(np.uint8), np.ascontiguousarray(given).view(np.uint8))
  np.testing.assert_array_equal(contiguous(x[::-1, ..., ::2]), x[::-1, ..., ::2])


def test_what_is_in_order_or_small_is_left_to_numpy():
  x = np.arange(12.0).reshape(3, 4)
  assert contiguous(x) is x and contiguous(np.float64(3.0)) == 3.0
  np.testing.assert_array_equal(contiguous(x.T), x.T)


@pytest.mark.parametrize("tile", [(3, 5), (64, 256), (1, 1)])
def test_tiles_are_the_whole_copy(monkeypatch, tile):
  monkeypatch.setattr(tiled_copies, "TILE", tile)
  rng = np.random.default_rng(0)
  cases = ((70, 300), (1, 0)), ((5, 1, 9, 7), (3, 2, 0, 1)), ((4, 6, 8), (0, 2, 1)), ((6, 8), (0, 1))
  for shape, perm in cases:
    x = rng.integers(0, 1 << 15, shape).astype(np.uint16)
    want = x.transpose(perm)
    made = np.full(want.shape, 7, np.uint16)
    copy_tiles(want, made)
    assert made.tobytes() == want.tobytes()
