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

_LOADS = (
    """
  int i = ptx::lane();
  const unsigned* row = x + 4 * ptx::ld_u32(p + i);
  const unsigned short* half = reinterpret_cast<const unsigned short*>(row);
"""
    + "".join(f"  ptx::st_v4(v4 + ({n} * 32 + i) * 4, ptx::{f}(row));\n" for n, f in enumerate(_V4))
    + "".join(
        f"  {{\n    ptx::U4 v = {{1, 2, 3, 4}};\n"
        f"    ptx::{f}(v, i % 3 ? row : x + (1 << 24), i % 3);\n"
        f"    ptx::st_v4(some + ({n} * 32 + i) * 4, v);\n  }}\n"
        for n, f in enumerate(_V4_IF)
    )
    + "".join(
        f"  ptx::st_v2(v2 + ({n} * 32 + i) * 2, ptx::{f}(row + 2));\n" for n, f in enumerate(_V2)
    )
    + "".join(f"  ptx::st_u32(u + {n} * 32 + i, ptx::{f}(row + 1));\n" for n, f in enumerate(_U32))
    + "".join(f"  ptx::st_f32(f + {n} * 32 + i, ptx::{g}(row + 3));\n" for n, g in enumerate(_F32))
    + "".join(f"  ptx::st_u16(h + {n} * 32 + i, ptx::{f}(half + 5));\n" for n, f in enumerate(_U16))
    + "  const unsigned char* byte = reinterpret_cast<const unsigned char*>(row);\n"
    + "".join(f"  ptx::st_u32(b + {n} * 32 + i, ptx::{f}(byte + 7));\n" for n, f in enumerate(_U8))
)


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


_STORES = """
  int i = ptx::lane(), to = ptx::ld_u32(p + i);
  ptx::U4 v = ptx::ld_v4(x + 4 * i);
  ptx::st_v4(v4 + to * 4, v);
  ptx::st_cs_v4(v4 + (32 + to) * 4, v);
  ptx::st_v2(v2 + to * 2, {v.x, v.y});
  ptx::st_cs_v2(v2 + (32 + to) * 2, {v.z, v.w});
  ptx::st_u32(u + to, v.y);
  ptx::st_f32(f + to, ptx::bits_to_f32(v.z));
  ptx::st_u16(h + to, static_cast<unsigned short>(v.w));
"""


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


# Every block reads from the next ones, then writes to them: rank r's row k comes from rank r + k.
_DSMEM = """
  float* f = ptx::smem<float>();
  unsigned* u = ptx::smem<unsigned>() + 64;
  ptx::U4* v = reinterpret_cast<ptx::U4*>(ptx::smem<unsigned>() + 128);
  int i = ptx::thread(), b = ptx::block_x();
  unsigned rank = ptx::cluster_rank();
  const unsigned* mine = x + (b * 64 + i) * 4;
  f[i] = ptx::ld_nc_f32(mine);
  u[i] = ptx::ld_nc_u32(mine + 1);
  v[i] = ptx::ld_nc_v4(mine);
  ptx::cluster_sync();
  for (unsigned k = 0; k < 4; ++k) {
    unsigned from = (rank + k) % 4;
    int at = ((b * 4 + k) * 64 + i) * 6;
    unsigned w = ptx::dsmem_ld(u + (i + 1) % 64, from);
    ptx::st_v2(y + at, {ptx::f32_to_bits(ptx::dsmem_ld(f + (i + 1) % 64, from)), w});
    ptx::U4 q = ptx::dsmem_ld_v4(v + (i + 1) % 64, from);
    ptx::st_v2(y + at + 2, {q.x, q.y});
    ptx::st_v2(y + at + 4, {q.z, q.w});
  }
  float f0 = f[i];
  unsigned u0 = u[i];
  ptx::U4 v0 = v[i];
  ptx::cluster_sync();
  ptx::dsmem_st(f + (i + 5) % 64, (rank + 1) % 4, f0);
  ptx::dsmem_st(u + (i + 5) % 64, (rank + 2) % 4, u0);
  ptx::dsmem_st_v4(v + (i + 5) % 64, (rank + 3) % 4, v0);
  ptx::cluster_sync();
  int at = (b * 64 + i) * 6;
  ptx::st_v2(z + at, {ptx::f32_to_bits(f[i]), u[i]});
  ptx::st_v2(z + at + 2, {v[i].x, v[i].y});
  ptx::st_v2(z + at + 4, {v[i].z, v[i].w});
"""


def _dsmem(given):
    x = given["x"].reshape(2, 4, 64, 4)  # cluster, rank, thread
    held = np.concatenate([x[..., :2], x], -1)  # f, u, v
    y = np.stack([np.roll(np.roll(held, -1, 2), -k, 1) for k in range(4)], 2)
    moved = np.roll(held, 5, 2)
    z = np.empty_like(held)
    for part, shift in ((slice(0, 1), 1), (slice(1, 2), 2), (slice(2, 6), 3)):
        z[..., part] = np.roll(moved[..., part], shift, 1)
    return {"y": y.reshape(8, 4, 64, 6), "z": z.reshape(8, 64, 6)}


# A prefetch is no access: also far beyond the tensor nothing happens.
_PREFETCH = """
  ptx::prefetch_l2(x + ptx::lane());
  ptx::prefetch_l2(x + (1 << 24) + ptx::lane() * 64);
  ptx::st_u32(y + ptx::lane(), ptx::ld_u32(x + ptx::lane()));
"""

CASES = (
    case(
        "loads", " ".join((*_V4, *_V4_IF, *_V2, *_U32, *_F32, *_U16, *_U8)), _LOADS,
        draw=_draw_loads, reference=_loads,
        outputs={
            "v4": ((len(_V4), 32, 4), U32), "some": ((len(_V4_IF), 32, 4), U32),
            "v2": ((len(_V2), 32, 2), U32), "u": ((len(_U32), 32), U32),
            "f": ((len(_F32), 32), F32), "h": ((len(_U16), 32), U16),
            "b": ((len(_U8), 32), U32),
        },
    ),
    case(
        "stores", "st_v4 st_cs_v4 st_v2 st_cs_v2 st_u32 st_f32 st_u16", _STORES,
        draw=_draw_loads, reference=_stores,
        outputs={
            "v4": ((2, 32, 4), U32), "v2": ((2, 32, 2), U32), "u": ((32,), U32),
            "f": ((32,), F32), "h": ((32,), U16),
        },
    ),
    case(
        "dsmem", "dsmem_ld dsmem_ld_v4 dsmem_st dsmem_st_v4 cluster_sync smem", _DSMEM,
        draw=random_words(8, 64, 4), reference=_dsmem,
        outputs={"y": ((8, 4, 64, 6), U32), "z": ((8, 64, 6), U32)},
        grid=(8, 1, 1), block=64, cluster=4, smem=1536,
    ),
    case(
        "prefetch", "prefetch_l2", _PREFETCH,
        draw=random_words(32),
        outputs={"y": ((32,), U32)}, reference=lambda given: {"y": given["x"]},
    ),
)  # fmt: skip
