"""mbarriers and asynchronous copies: cp.async, bulk, multicast, between blocks of a cluster."""

import numpy as np

from tests.support.primitives.case import U32, case, random_words

# ---- mbarriers. Shared memory: barriers in the first 64 bytes, then data


def _try_wait(_):
  # Two arrivals complete phase 0: until then only parity 1, of the phase before, is complete.
  return {"y": np.repeat(np.array([[0, 1], [0, 1], [1, 0]], U32)[:, None], 32, 1)}


def _exchanged(given):
  x = given["x"].reshape(-1, 2, 64)
  return {"y": x[:, ::-1, ::-1].reshape(given["x"].shape)}


# ---- cp.async


def _groups(given):
  x = given["x"]
  held = np.concatenate([x[:, :4].ravel(), x[:, 4:6].ravel(), x[:, 7]])
  k, i = np.meshgrid(np.arange(7), np.arange(64))
  return {"y": x[:, [1, 4, 7]], "z": held[(k * 64 + i * 5) % 448]}


def _zfill(given):
  held = given["x"].copy().view(np.uint8)
  for i in range(64):
    held[i, i % 17 :] = 0
  return {"y": held.view(U32)[::-1]}


# ---- bulk copies


def _bulk_load(given):
  x = given["x"]
  held = np.concatenate([x[:512], x[600:604], x[700:828]])
  return {"y": held[::-1], "z": x[1000:1256][::-1]}


def _multicast(given):
  both = given["x"].reshape(2, 1, 512)[:, :, ::-1]
  return {"y": np.repeat(both, 2, 1).reshape(4, 512)}


CASES = (
  # Warp 0 fills a ring of three stages, warp 1 empties it; the barriers' memory is used again.
  case(
    "mbarrier_ring",
    "mbarrier_init mbarrier_inval fence_mbarrier_init mbarrier_arrive wait",
    draw=random_words(10, 32),
    reference=lambda given: {"y": given["x"][:, ::-1], "z": np.arange(0, 30, 5, dtype=U32)},
    outputs={"y": ((10, 32), U32), "z": ((6,), U32)}, block=64, smem=64 + 384,
  ),
  # What a phase's parity says before and after the arrivals that complete it.
  case(
    "mbarrier_try_wait", "mbarrier_try_wait mbarrier_arrive",
    draw=lambda _: {}, reference=_try_wait, outputs={"y": ((3, 32, 2), U32)}, smem=64,
  ),
  # Each block stores into the other's shared memory and arrives at its barrier.
  case(
    "mbarrier_remote", "mbarrier_arrive_remote wait_cluster dsmem_st",
    draw=random_words(6, 64), reference=_exchanged, outputs={"y": ((6, 64), U32)},
    grid=(6, 1, 1), block=64, cluster=2, smem=64 + 256,
  ),
  # Groups complete in order: who copied reads at once what it waited for.
  case(
    "cp_async_groups", "cp_async_16 cp_async_8 cp_async_4 cp_async_commit cp_async_wait",
    draw=random_words(64, 8), reference=_groups,
    outputs={"y": ((64, 3), U32), "z": ((64, 7), U32)}, block=64, smem=448 * 4,
  ),
  # Every count of bytes from 0 to 16; a copy of none may point just behind the tensor.
  case(
    "cp_async_zfill", "cp_async_16_zfill cp_async_wait_all", draw=random_words(64, 4),
    reference=_zfill, outputs={"y": ((64, 4), U32)}, block=64, smem=1024,
  ),
  case(
    "cp_async_mbarrier", "cp_async_mbarrier_arrive", draw=random_words(3, 64, 4),
    reference=lambda given: {"y": given["x"][:, ::-1]},
    outputs={"y": ((3, 64, 4), U32)}, block=64, smem=64 + 1024,
  ),
  # Three copies on one phase, then one whose bytes are announced apart from the arrival.
  case(
    "bulk_load", "bulk_load mbarrier_arrive_expect_tx mbarrier_expect_tx",
    draw=random_words(1256), reference=_bulk_load,
    outputs={"y": ((644,), U32), "z": ((256,), U32)}, block=64, smem=64 + 2576,
  ),
  # A source may be written again once its group has read it.
  case(
    "bulk_store", "bulk_store bulk_commit bulk_wait bulk_wait_read fence_proxy_async",
    draw=random_words(6, 256),
    reference=lambda given: {"y": given["x"] + np.arange(6, dtype=U32)[:, None]},
    outputs={"y": ((6, 256), U32)}, block=64, smem=2048,
  ),
  # Each block loads one half for both.
  case(
    "bulk_multicast", "bulk_load_multicast", draw=random_words(4, 256),
    reference=_multicast, outputs={"y": ((4, 512), U32)},
    grid=(4, 1, 1), block=64, cluster=2, smem=64 + 2048,
  ),
  # Each block copies its shared memory into the other's.
  case(
    "bulk_copy_remote", "bulk_copy_remote fence_proxy_async",
    draw=random_words(6, 64), reference=_exchanged, outputs={"y": ((6, 64), U32)},
    grid=(6, 1, 1), block=64, cluster=2, smem=64 + 512,
  ),
)  # fmt: skip
