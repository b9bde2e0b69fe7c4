"""ldmatrix, stmatrix, movmatrix and mma.sync, fragments by the tables of the PTX ISA."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tests.support.primitives import tensor_core
from tests.support.primitives.case import F32, U16, U32, case, random_words

LANE = np.arange(32)
G, T = LANE // 4, LANE % 4
ROWS = 64  # of eight 16-bit elements in shared memory
ROUNDS = 4

# ---- tiles: every lane gives the address of a row


def _tiles(rng):
  return {
    "x": rng.integers(0, 2**16, (ROWS, 8), dtype=U16),
    "rows": np.stack([rng.permutation(ROWS)[:32] for _ in range(ROUNDS)]).astype(U32),
  }


def _place(transposed):
  """Row and column in the tile of each lane's low and high half."""
  halves = [(G, 2 * T), (G, 2 * T + 1)]
  return [(column, row) for row, column in halves] if transposed else halves


def _ldmatrix(n, transposed):
  """The lanes beyond the last tile give an address that cannot be read."""

  def reference(given):
    y = np.empty((ROUNDS, 32, n), U32)
    for r in range(ROUNDS):
      for i in range(n):
        tile = given["x"][given["rows"][r, 8 * i : 8 * i + 8]]
        low, high = (tile[place].astype(U32) for place in _place(transposed))
        y[r, :, i] = low | high << 16
    return {"y": y}

  name = f"ldmatrix_x{n}" + "_trans" * transposed
  return case(
    name, name, draw=_tiles, reference=reference,
    outputs={"y": ((ROUNDS, 32, n), U32)}, smem=ROWS * 16,
  )  # fmt: skip


def _stmatrix(n, transposed):
  def draw(rng):
    return _tiles(rng) | {"v0": rng.integers(0, 2**32, (32, n), dtype=U32)}

  def reference(given):
    y = given["x"].copy()
    for i in range(n):
      tile = np.empty((8, 8), U16)
      for half, place in enumerate(_place(transposed)):
        tile[place] = (given["v0"][:, i] >> (16 * half)).astype(U16)
      y[given["rows"][0, 8 * i : 8 * i + 8]] = tile
    return {"y": y}

  name = f"stmatrix_x{n}" + "_trans" * transposed
  return case(
    name, name, draw=draw, reference=reference, outputs={"y": ((ROWS, 8), U16)},
    smem=ROWS * 16,
  )  # fmt: skip


def _movmatrix(given):
  tiles = np.empty((64, 8, 8), U16)
  tiles[:, G, 2 * T], tiles[:, G, 2 * T + 1] = given["x"] & 0xFFFF, given["x"] >> 16
  low, high = (tiles[:, place[0], place[1]].astype(U32) for place in _place(True))
  return {"y": low | high << 16}


# ---- mma: D = A B + C, a block a tile


@dataclass(frozen=True)
class Shape:
  """``storage``: what memory holds."""

  name: str
  k: int
  dtype: np.dtype

  @property
  def storage(self):
    return np.dtype(U32 if self.dtype == np.float32 else U16)


SHAPES = tuple(
  Shape(name, k, np.dtype(dtype))
  for name, k, dtype in (
    ("mma_16816_f16", 16, np.float16), ("mma_16816_bf16", 16, ml_dtypes.bfloat16),
    ("mma_1688_f16", 8, np.float16), ("mma_1688_bf16", 8, ml_dtypes.bfloat16),
    ("mma_1688_tf32", 8, np.float32), ("mma_1684_tf32", 4, np.float32),
  )
)  # fmt: skip


def _mma(shape):
  """Loads the fragments element by element: A[row][k], B[k][column], C[row][column]."""

  def draw(rng):
    parts = [data(rng, shape.dtype, shape.k) for data in tensor_core.DATA.values()]
    a, b, c = (np.concatenate(x) for x in zip(*parts, strict=True))
    return {"a": a.view(shape.storage), "b": b.view(shape.storage), "c": c}

  def reference(given):
    a, b = given["a"].view(shape.dtype), given["b"].view(shape.dtype)
    return {"d": tensor_core.multiply_add(a, b, given["c"])}

  tiles = len(tensor_core.DATA) * tensor_core.TILES
  return case(
    shape.name, shape.name, draw=draw, reference=reference,
    outputs={"d": ((tiles, 16, 8), F32)}, grid=(tiles, 1, 1),
  )  # fmt: skip


MMA = tuple(_mma(shape) for shape in SHAPES)

CASES = (
  *(_ldmatrix(n, transposed) for n in (1, 2, 4) for transposed in (False, True)),
  *(_stmatrix(n, transposed) for n in (1, 2, 4) for transposed in (False, True)),
  case(
    "movmatrix", "movmatrix",
    "  for (int i = 0; i < 64; ++i) {\n    int at = i * 32 + ptx::lane();\n"
    "    ptx::st_u32(y + at, ptx::movmatrix(ptx::ld_u32(x + at)));\n  }\n",
    draw=random_words(64, 32),
    outputs={"y": ((64, 32), U32)}, reference=_movmatrix,
  ),
  *MMA,
)  # fmt: skip
