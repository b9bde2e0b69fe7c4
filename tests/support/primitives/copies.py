"""mbarriers and asynchronous copies: cp.async, bulk, multicast, between blocks of a cluster."""

import numpy as np

from tests.support.primitives.case import U32, case, random_words

# ---- mbarriers. Shared memory: barriers in the first 64 bytes, then data

_BARRIERS = """
  ptx::U64* bar = ptx::smem<ptx::U64>();
  unsigned* s = ptx::smem<unsigned>() + 16;
  int i = ptx::thread();
"""


def _init(count, bars=1, sync="sync_block"):
    return (
        f"  for (int b = 0; b < {bars}; ++b)\n"
        f"    if (i == 0) ptx::mbarrier_init(bar + b, {count});\n"
        f"  ptx::fence_mbarrier_init();\n  ptx::{sync}();\n"
    )


# Warp 0 fills a ring of three stages, warp 1 empties it; the memory of the barriers is used again.
_RING = (
    _BARRIERS
    + _init(32, 6)
    + """
  for (int r = 0; r < 10; ++r) {
    int stage = r % 3;
    unsigned parity = r / 3 % 2;
    if (ptx::warp() == 0) {
      ptx::wait(bar + 3 + stage, parity ^ 1);
      s[stage * 32 + ptx::lane()] = ptx::ld_u32(x + r * 32 + ptx::lane());
      ptx::mbarrier_arrive(bar + stage);
    } else {
      ptx::wait(bar + stage, parity);
      ptx::st_u32(y + r * 32 + ptx::lane(), s[stage * 32 + 31 - ptx::lane()]);
      ptx::mbarrier_arrive(bar + 3 + stage);
    }
  }
  ptx::sync_block();
  if (i < 6) {
    ptx::mbarrier_inval(bar + i);
    bar[i] = i * 5;
    ptx::st_u32(z + i, static_cast<unsigned>(bar[i]));
  }
"""
)

# What a phase's parity says before and after the arrivals that complete it.
_TRY_WAIT = (
    _BARRIERS
    + _init(2, 1, "sync_warp")
    + """
  for (int r = 0; r < 3; ++r) {
    ptx::st_u32(y + (r * 32 + i) * 2, ptx::mbarrier_try_wait(bar, 0));
    ptx::st_u32(y + (r * 32 + i) * 2 + 1, ptx::mbarrier_try_wait(bar, 1));
    ptx::sync_warp();
    if (i == 5) ptx::mbarrier_arrive(bar);
    ptx::sync_warp();
  }
"""
)


def _try_wait(_):
    # Two arrivals complete phase 0: until then only parity 1, of the phase before, is complete.
    return {"y": np.repeat(np.array([[0, 1], [0, 1], [1, 0]], U32)[:, None], 32, 1)}


# Each block stores into the other's shared memory and arrives at its barrier.
_REMOTE = (
    _BARRIERS
    + _init(64, 1, "cluster_sync")
    + """
  unsigned other = ptx::cluster_rank() ^ 1;
  int at = ptx::block_x() * 64 + i;
  ptx::dsmem_st(s + i, other, ptx::ld_u32(x + at));
  ptx::mbarrier_arrive_remote(bar, other);
  ptx::wait_cluster(bar, 0);
  ptx::st_u32(y + at, s[63 - i]);
  ptx::cluster_sync();
"""
)


def _exchanged(given):
    x = given["x"].reshape(-1, 2, 64)
    return {"y": x[:, ::-1, ::-1].reshape(given["x"].shape)}


# ---- cp.async

# Groups complete in order: what is waited for is read at once by the thread that copied it.
_GROUPS = """
  int i = ptx::thread();
  unsigned* a = ptx::smem<unsigned>();
  unsigned* b = a + 256;
  unsigned* c = b + 128;
  const unsigned* from = x + i * 8;
  ptx::cp_async_16(a + i * 4, from);
  ptx::cp_async_commit();
  ptx::cp_async_8(b + i * 2, from + 4);
  ptx::cp_async_commit();
  ptx::cp_async_4(c + i, from + 7);
  ptx::cp_async_commit();
  ptx::cp_async_wait<2>();
  ptx::st_u32(y + i * 3, a[i * 4 + 1]);
  ptx::cp_async_wait<1>();
  ptx::st_u32(y + i * 3 + 1, b[i * 2]);
  ptx::cp_async_wait<0>();
  ptx::st_u32(y + i * 3 + 2, c[i]);
  ptx::sync_block();
  for (int k = 0; k < 7; ++k) ptx::st_u32(z + i * 7 + k, a[(k * 64 + i * 5) % 448]);
"""


def _groups(given):
    x = given["x"]
    held = np.concatenate([x[:, :4].ravel(), x[:, 4:6].ravel(), x[:, 7]])
    k, i = np.meshgrid(np.arange(7), np.arange(64))
    return {"y": x[:, [1, 4, 7]], "z": held[(k * 64 + i * 5) % 448]}


# Every count of bytes from 0 to 16; a copy of none may point just behind the tensor.
_ZFILL = """
  int i = ptx::thread();
  unsigned* s = ptx::smem<unsigned>();
  int bytes = i %% 17;
  ptx::cp_async_16_zfill(s + i * 4, bytes ? x + i * 4 : x + 256, bytes);
  ptx::cp_async_wait_all();
  ptx::sync_block();
  for (int k = 0; k < 4; ++k) ptx::st_u32(y + i * 4 + k, s[(63 - i) * 4 + k]);
""".replace("%%", "%")


def _zfill(given):
    held = given["x"].copy().view(np.uint8)
    for i in range(64):
        held[i, i % 17 :] = 0
    return {"y": held.view(U32)[::-1]}


_CP_MBARRIER = (
    _BARRIERS
    + _init(64)
    + """
  for (unsigned r = 0; r < 3; ++r) {
    ptx::cp_async_16(s + i * 4, x + (r * 64 + i) * 4);
    ptx::cp_async_mbarrier_arrive(bar);
    ptx::wait(bar, r % 2);
    for (int k = 0; k < 4; ++k) ptx::st_u32(y + (r * 64 + i) * 4 + k, s[(63 - i) * 4 + k]);
    ptx::sync_block();
  }
"""
)

# ---- bulk copies

# Three copies on one phase, then one whose bytes are announced apart from the arrival.
_BULK_LOAD = (
    _BARRIERS
    + _init(1)
    + """
  if (i == 0) {
    ptx::mbarrier_arrive_expect_tx(bar, 2048 + 16 + 512);
    ptx::bulk_load(s, x, 2048, bar);
    ptx::bulk_load(s + 512, x + 600, 16, bar);
    ptx::bulk_load(s + 516, x + 700, 512, bar);
  }
  ptx::wait(bar, 0);
  for (int k = i; k < 644; k += 64) ptx::st_u32(y + k, s[643 - k]);
  ptx::sync_block();
  if (i == 0) {
    ptx::mbarrier_expect_tx(bar, 1024);
    ptx::bulk_load(s, x + 1000, 1024, bar);
    ptx::mbarrier_arrive(bar);
  }
  ptx::wait(bar, 1);
  for (int k = i; k < 256; k += 64) ptx::st_u32(z + k, s[255 - k]);
"""
)


def _bulk_load(given):
    x = given["x"]
    held = np.concatenate([x[:512], x[600:604], x[700:828]])
    return {"y": held[::-1], "z": x[1000:1256][::-1]}


# A source may be written again once its group has read it.
_BULK_STORE = """
  unsigned* s = ptx::smem<unsigned>();
  int i = ptx::thread();
  for (int r = 0; r < 6; ++r) {
    unsigned* stage = s + r % 2 * 256;
    if (i == 0) ptx::bulk_wait_read<1>();
    ptx::sync_block();
    for (int k = i; k < 256; k += 64) stage[k] = ptx::ld_u32(x + r * 256 + k) + r;
    ptx::fence_proxy_async();
    ptx::sync_block();
    if (i == 0) {
      ptx::bulk_store(y + r * 256, stage, 512);
      ptx::bulk_store(y + r * 256 + 128, stage + 128, 512);
      ptx::bulk_commit();
    }
  }
  if (i == 0) ptx::bulk_wait<0>();
"""

# Each block loads one half for both.
_MULTICAST = (
    _BARRIERS
    + _init(1, 1, "cluster_sync")
    + """
  unsigned rank = ptx::cluster_rank();
  if (i == 0) {
    ptx::mbarrier_arrive_expect_tx(bar, 2048);
    ptx::bulk_load_multicast(s + rank * 256, x + ptx::block_x() * 256, 1024, bar, 3);
  }
  ptx::wait(bar, 0);
  for (int k = i; k < 512; k += 64) ptx::st_u32(y + ptx::block_x() * 512 + k, s[511 - k]);
  ptx::cluster_sync();
"""
)


def _multicast(given):
    both = given["x"].reshape(2, 1, 512)[:, :, ::-1]
    return {"y": np.repeat(both, 2, 1).reshape(4, 512)}


# Each block copies its shared memory into the other's.
_COPY_REMOTE = (
    _BARRIERS
    + _init(1)
    + """
  unsigned other = ptx::cluster_rank() ^ 1;
  int at = ptx::block_x() * 64 + i;
  s[i] = ptx::ld_u32(x + at);
  ptx::fence_proxy_async();
  ptx::cluster_sync();
  if (i == 0) {
    ptx::mbarrier_arrive_expect_tx(bar, 256);
    ptx::bulk_copy_remote(s + 64, other, s, 256, bar);
  }
  ptx::wait(bar, 0);
  ptx::st_u32(y + at, s[64 + 63 - i]);
  ptx::cluster_sync();
"""
)

CASES = (
    case(
        "mbarrier_ring",
        "mbarrier_init mbarrier_inval fence_mbarrier_init mbarrier_arrive wait", _RING,
        draw=random_words(10, 32),
        reference=lambda given: {"y": given["x"][:, ::-1], "z": np.arange(0, 30, 5, dtype=U32)},
        outputs={"y": ((10, 32), U32), "z": ((6,), U32)}, block=64, smem=64 + 384,
    ),
    case(
        "mbarrier_try_wait", "mbarrier_try_wait mbarrier_arrive", _TRY_WAIT,
        draw=lambda _: {}, reference=_try_wait, outputs={"y": ((3, 32, 2), U32)}, smem=64,
    ),
    case(
        "mbarrier_remote", "mbarrier_arrive_remote wait_cluster dsmem_st", _REMOTE,
        draw=random_words(6, 64), reference=_exchanged, outputs={"y": ((6, 64), U32)},
        grid=(6, 1, 1), block=64, cluster=2, smem=64 + 256,
    ),
    case(
        "cp_async_groups", "cp_async_16 cp_async_8 cp_async_4 cp_async_commit cp_async_wait",
        _GROUPS, draw=random_words(64, 8), reference=_groups,
        outputs={"y": ((64, 3), U32), "z": ((64, 7), U32)}, block=64, smem=448 * 4,
    ),
    case(
        "cp_async_zfill", "cp_async_16_zfill cp_async_wait_all", _ZFILL, draw=random_words(64, 4),
        reference=_zfill, outputs={"y": ((64, 4), U32)}, block=64, smem=1024,
    ),
    case(
        "cp_async_mbarrier", "cp_async_mbarrier_arrive", _CP_MBARRIER, draw=random_words(3, 64, 4),
        reference=lambda given: {"y": given["x"][:, ::-1]},
        outputs={"y": ((3, 64, 4), U32)}, block=64, smem=64 + 1024,
    ),
    case(
        "bulk_load", "bulk_load mbarrier_arrive_expect_tx mbarrier_expect_tx", _BULK_LOAD,
        draw=random_words(1256), reference=_bulk_load,
        outputs={"y": ((644,), U32), "z": ((256,), U32)}, block=64, smem=64 + 2576,
    ),
    case(
        "bulk_store", "bulk_store bulk_commit bulk_wait bulk_wait_read fence_proxy_async",
        _BULK_STORE, draw=random_words(6, 256),
        reference=lambda given: {"y": given["x"] + np.arange(6, dtype=U32)[:, None]},
        outputs={"y": ((6, 256), U32)}, block=64, smem=2048,
    ),
    case(
        "bulk_multicast", "bulk_load_multicast", _MULTICAST, draw=random_words(4, 256),
        reference=_multicast, outputs={"y": ((4, 512), U32)},
        grid=(4, 1, 1), block=64, cluster=2, smem=64 + 2048,
    ),
    case(
        "bulk_copy_remote", "bulk_copy_remote fence_proxy_async", _COPY_REMOTE,
        draw=random_words(6, 64), reference=_exchanged, outputs={"y": ((6, 64), U32)},
        grid=(6, 1, 1), block=64, cluster=2, smem=64 + 512,
    ),
)  # fmt: skip
