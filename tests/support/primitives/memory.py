"""Loads and stores of every cache variant, and the shared memory of other blocks of a cluster."""

import numpy as np

from tests.support.primitives.case import F32, U16, U32, case, random_words

_V4 = ("ld_stream_v4", "ld_nc_v4", "ld_v4", "ld_cg_v4", "ld_cs_v4")
_V4_IF = ("ld_stream_v4_if", "ld_nc_v4_if", "ld_v4_if")
_V2 = ("ld_nc_v2", "ld_v2", "ld_cg_v2")
_U32 = ("ld_nc_u32", "ld_u32", "ld_cg_u32")
_F32 = ("ld_nc_f32", "ld_f32", "ld_cg_f32")
_U16 = ("ld_nc_u16", "ld_u16")
_U8 = ("ld_nc_u8", "ld_u8")


def _draw_loads(rng):
  return {"x": rng.integers(0, 2**32, (32, 4), dtype=U32), "p": rng.permutation(32).astype(U32)}


def _loads(given):
  rows = given["x"][given["p"]]
  some = np.where((np.arange(32) % 3 > 0)[:, None], rows, np.array([1, 2, 3, 4], U32))
  return {
    "v4": np.stack([rows] * len(_V4)),
    "some": np.stack([some] * len(_V4_IF)),
    "v2": np.stack([rows[:, 2:]] * len(_V2)),
    "u": np.stack([rows[:, 1]] * len(_U32)),
    "f": np.stack([rows[:, 3].view(F32)] * len(_F32)),
    "h": np.stack([np.ascontiguousarray(rows).view(U16)[:, 5]] * len(_U16)),
    "b": np.stack([rows[:, 1] >> U32(24)] * len(_U8)),
  }


def _stores(given):
  rows = np.empty_like(given["x"])
  rows[given["p"]] = given["x"]
  return {
    "v4": np.stack([rows, rows]),
    "v2": np.stack([rows[:, :2], rows[:, 2:]]),
    "u": rows[:, 1],
    "f": rows[:, 2].view(F32),
    "h": rows[:, 3].astype(U16),
  }


def _dsmem(given):
  x = given["x"].reshape(2, 4, 64, 4)  # cluster, rank, thread
  held = np.concatenate([x[..., :2], x], -1)  # f, u, v
  y = np.stack([np.roll(np.roll(held, -1, 2), -k, 1) for k in range(4)], 2)
  moved = np.roll(held, 5, 2)
  z = np.empty_like(held)
  for part, shift in ((slice(0, 1), 1), (slice(1, 2), 2), (slice(2, 6), 3)):
    z[..., part] = np.roll(moved[..., part], shift, 1)
  return {"y": y.reshape(8, 4, 64, 6), "z": z.reshape(8, 64, 6)}


CASES = (
  case(
    "loads", " ".join((*_V4, *_V4_IF, *_V2, *_U32, *_F32, *_U16, *_U8)),
    draw=_draw_loads, reference=_loads,
    outputs={
      "v4": ((len(_V4), 32, 4), U32), "some": ((len(_V4_IF), 32, 4), U32),
      "v2": ((len(_V2), 32, 2), U32), "u": ((len(_U32), 32), U32),
      "f": ((len(_F32), 32), F32), "h": ((len(_U16), 32), U16),
      "b": ((len(_U8), 32), U32),
    },
  ),
  case(
    "stores", "st_v4 st_cs_v4 st_v2 st_cs_v2 st_u32 st_f32 st_u16",
    draw=_draw_loads, reference=_stores,
    outputs={
      "v4": ((2, 32, 4), U32), "v2": ((2, 32, 2), U32), "u": ((32,), U32),
      "f": ((32,), F32), "h": ((32,), U16),
    },
  ),
  # Every block reads from the next ones, then writes to them: row k of rank r is of rank r + k.
  case(
    "dsmem", "dsmem_ld dsmem_ld_v4 dsmem_st dsmem_st_v4 cluster_sync smem",
    draw=random_words(8, 64, 4), reference=_dsmem,
    outputs={"y": ((8, 4, 64, 6), U32), "z": ((8, 64, 6), U32)},
    grid=(8, 1, 1), block=64, cluster=4, smem=1536,
  ),
  # A prefetch is no access: also far beyond the tensor nothing happens.
  case(
    "prefetch", "prefetch_l2",
    draw=random_words(32),
    outputs={"y": ((32,), U32)}, reference=lambda given: {"y": given["x"]},
  ),
)  # fmt: skip
