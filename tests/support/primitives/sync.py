"""Barriers, fences, atomics and dependent launch: programs whose outputs prove the order."""

import numpy as np

from tests.support.primitives.case import U32, case, random_words

# ---- the warp, the block, the cluster: neighbours read what neighbours wrote


def _turns(width, first):
  def reference(given):
    v = given["x"].reshape(-1, width)
    for r in range(5):
      v = np.roll(v, -(first + r), 1) * U32(3) + U32(1)
    return {"y": v.reshape(given["x"].shape)}

  return reference


def _draw_any(rng):
  """Rounds in which at most one thread of 96 says yes, and some in which all do."""
  x = (rng.integers(0, 96, (40, 1)) == np.arange(96)) & (rng.random((40, 1)) < 0.5)
  return {"x": (x | (rng.random((40, 1)) < 0.2)).astype(U32)}


def _cluster(given):
  x = given["x"].reshape(3, 2, 64)
  z = np.broadcast_to(np.arange(2, dtype=U32)[None, :, None], x.shape)
  return {"y": x[:, ::-1, ::-1].reshape(6, 64), "z": z.reshape(6, 64)}


# ---- the grid: every block adds its partial results, the last one to come sums them up


def _draw_blocks(rng):
  return {"x": rng.integers(0, 2**32, (24, 64), dtype=U32), "count": np.zeros(1, U32)}


def _last_block(given):
  partial = given["x"] * U32(5)
  total = np.zeros(64, U32)
  for row in partial:
    total = total * U32(7) + row
  return {"partial": partial, "y": total, "count": np.array([24], U32)}


def _grid_case(name, covers):
  return case(
    name, covers, draw=_draw_blocks, reference=_last_block,
    outputs={"partial": ((24, 64), U32), "y": ((64,), U32), "count": ((1,), U32)},
    grid=(24, 1, 1), block=64, smem=16,
  )  # fmt: skip


def _draw_atomics(rng):
  x = rng.integers(1, 2**32, (2, 64), dtype=U32)
  return {"x": x, "cell": np.zeros((64, 3), U32), "total": np.zeros(2, U32)}


def _atomics(given):
  v, w = given["x"]
  zero, one = np.zeros(64, U32), U32(1)
  added = [zero, v, v + w, v + w + v]
  exchanged = [zero, v, w, v + one]
  swapped = [zero, v, w, w]  # the third finds w, not w + 1
  return {
    "y": np.stack([*added, *exchanged, *swapped], 1),
    "cell": np.stack([v + w + v + w, w + one, v + w], 1),
    "total": given["x"].sum(1, dtype=U32),
  }


def _message(given):
  return {"data": given["x"], "flag": np.array([7], U32), "y": given["x"]}


# ---- dependent launch: the first kernel lets the second start before it has written


def _pdl(given):
  t = given["x"]
  for _ in range(2000):
    t = t * U32(1664525) + U32(1013904223)
  return {"t": t, "y": given["x"] ^ np.roll(t, -64)}


CASES = (
  case(
    "sync_warp", "sync_warp", draw=random_words(64), reference=_turns(32, 1),
    outputs={"y": ((64,), U32)}, block=64, smem=256,
  ),
  case(
    "sync_block", "sync_block", draw=random_words(128), reference=_turns(128, 32),
    outputs={"y": ((128,), U32)}, block=128, smem=512,
  ),
  # Votes one after the other, of one thread, of all and of none: each ends before the next begins.
  case(
    "sync_any", "sync_any", """  const int i = ptx::thread();
  for (int r = 0; r < 40; ++r) {
    const bool any = ptx::sync_any(x[r * 96 + i] != 0);
    y[r * 96 + i] = any;
  }
""",
    draw=_draw_any, outputs={"y": ((40, 96), U32)},
    reference=lambda given: {"y": np.repeat(given["x"].any(1, keepdims=True), 96, 1).astype(U32)},
    block=96,
  ),
  # Arrive, work that needs no barrier, wait. The second barrier keeps the memory alive.
  case(
    "cluster", "cluster_arrive cluster_wait cluster_rank dsmem_ld",
    draw=random_words(6, 64), reference=_cluster,
    outputs={"y": ((6, 64), U32), "z": ((6, 64), U32)},
    grid=(6, 1, 1), block=64, cluster=2, smem=256,
  ),
  # Warp 0 fills two buffers in turn, warp 1 empties them: barriers 1, 2 say full, 3, 4 empty.
  case(
    "named_barriers", "bar_sync bar_arrive", draw=random_words(8, 32),
    reference=lambda given: {"y": given["x"][:, ::-1]}, outputs={"y": ((8, 32), U32)},
    block=64, smem=256,
  ),
  _grid_case("last_block_fenced", "atom_add_u32 fence_gpu ld_cg_u32"),
  _grid_case("last_block_acq_rel", "atom_add_u32 ld_cg_u32"),
  # An arrival that does not ask whether it is the last, then a look: at least one block sees
  # 24, and all that do write the same.
  _grid_case("last_block_reduced", "red_add_u32_release ld_acquire_u32 ld_cg_u32"),
  # Every order of every atomic: sums, chained exchanges, swaps that find what they expect or not.
  case(
    "atomics", "atom_add_u32 atom_exch_u32 atom_cas_u32 red_add_u32_release",
    draw=_draw_atomics, reference=_atomics,
    outputs={"y": ((64, 12), U32), "cell": ((64, 3), U32), "total": ((2,), U32)}, block=64,
  ),
  # Plain data, then a flag, between warps.
  case(
    "message", "fence_cta st_release_u32 ld_acquire_u32", draw=random_words(32),
    reference=_message,
    outputs={"data": ((32,), U32), "flag": ((1,), U32), "y": ((32,), U32)}, block=64,
  ),
  # The first kernel lets the second start before it has written.
  case(
    "pdl", "grid_wait grid_trigger", kernels=2, draw=random_words(1024), reference=_pdl,
    outputs={"t": ((1024,), U32), "y": ((1024,), U32)}, grid=(16, 1, 1), block=64,
  ),
)  # fmt: skip
