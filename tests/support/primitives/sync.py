"""Barriers, fences, atomics and dependent launch: programs whose outputs prove the order."""

import numpy as np

from tests.support.primitives.case import U32, case, random_words

# ---- the warp, the block, the cluster: neighbours read what neighbours wrote

_SYNC_WARP = """
  unsigned* s = ptx::smem<unsigned>() + ptx::warp() * 32;
  unsigned v = ptx::ld_u32(x + ptx::thread());
  for (int r = 0; r < 5; ++r) {
    s[ptx::lane()] = v;
    ptx::sync_warp();
    v = s[(ptx::lane() + 1 + r) % 32] * 3 + 1;
    ptx::sync_warp();
  }
  ptx::st_u32(y + ptx::thread(), v);
"""
_SYNC_BLOCK = """
  unsigned* s = ptx::smem<unsigned>();
  unsigned v = ptx::ld_u32(x + ptx::thread());
  for (int r = 0; r < 5; ++r) {
    s[ptx::thread()] = v;
    ptx::sync_block();
    v = s[(ptx::thread() + 32 + r) % 128] * 3 + 1;
    ptx::sync_block();
  }
  ptx::st_u32(y + ptx::thread(), v);
"""


def _turns(width, first):
    def reference(given):
        v = given["x"].reshape(-1, width)
        for r in range(5):
            v = np.roll(v, -(first + r), 1) * U32(3) + U32(1)
        return {"y": v.reshape(given["x"].shape)}

    return reference


# Arrive, work that needs no barrier, wait. The second barrier keeps the memory alive.
_CLUSTER = """
  unsigned* s = ptx::smem<unsigned>();
  int at = ptx::block_x() * 64 + ptx::thread();
  unsigned rank = ptx::cluster_rank();
  s[ptx::thread()] = ptx::ld_u32(x + at);
  ptx::cluster_arrive();
  ptx::st_u32(z + at, rank);
  ptx::cluster_wait();
  unsigned v = ptx::dsmem_ld(s + 63 - ptx::thread(), rank ^ 1);
  ptx::cluster_arrive();
  ptx::st_u32(y + at, v);
  ptx::cluster_wait();
"""


def _cluster(given):
    x = given["x"].reshape(3, 2, 64)
    z = np.broadcast_to(np.arange(2, dtype=U32)[None, :, None], x.shape)
    return {"y": x[:, ::-1, ::-1].reshape(6, 64), "z": z.reshape(6, 64)}


# Warp 0 fills two buffers in turn, warp 1 empties them: barriers 1, 2 say full, 3, 4 say empty.
_NAMED = """
  unsigned* s = ptx::smem<unsigned>();
  for (int r = 0; r < 8; ++r) {
    int b = r % 2;
    if (ptx::warp() == 0) {
      if (r >= 2) ptx::bar_sync(3 + b, 64);
      s[b * 32 + ptx::lane()] = ptx::ld_u32(x + r * 32 + ptx::lane());
      ptx::bar_arrive(1 + b, 64);
    } else {
      ptx::bar_sync(1 + b, 64);
      ptx::st_u32(y + r * 32 + ptx::lane(), s[b * 32 + 31 - ptx::lane()]);
      if (r < 6) ptx::bar_arrive(3 + b, 64);
    }
  }
"""

# ---- the grid: every block adds its partial results, the last one to come sums them up

_LAST_BLOCK = """
  unsigned* last = ptx::smem<unsigned>();
  int b = ptx::block_x(), i = ptx::thread();
  ptx::st_u32(partial + b * 64 + i, ptx::ld_nc_u32(x + b * 64 + i) * 5);
  %s
  if (*last != 0) {
    unsigned sum = 0;
    for (int k = 0; k < 24; ++k) sum = sum * 7 + ptx::ld_cg_u32(partial + k * 64 + i);
    ptx::st_u32(y + i, sum);
  }
"""
_FENCED = """
  ptx::sync_block();
  if (i == 0) {
    ptx::fence_gpu();  // after the barrier: a release pattern is one thread's fence and write
    *last = ptx::atom_add_u32<ptx::Order::Relaxed>(count, 1) == 23;
    ptx::fence_gpu();
  }
  ptx::sync_block();
"""
_ORDERED = """
  ptx::sync_block();
  if (i == 0) *last = ptx::atom_add_u32<ptx::Order::AcqRel>(count, 1) == 23;
  ptx::sync_block();
"""
# An arrival that does not ask whether it is the last, then a look: at least one block sees 24, and
# all that do write the same.
_REDUCED = """
  ptx::sync_block();
  if (i == 0) {
    ptx::red_add_u32_release(count, 1);
    *last = ptx::ld_acquire_u32(count) == 24;
  }
  ptx::sync_block();
"""


def _draw_blocks(rng):
    return {"x": rng.integers(0, 2**32, (24, 64), dtype=U32), "count": np.zeros(1, U32)}


def _last_block(given):
    partial = given["x"] * U32(5)
    total = np.zeros(64, U32)
    for row in partial:
        total = total * U32(7) + row
    return {"partial": partial, "y": total, "count": np.array([24], U32)}


def _grid_case(name, covers, text):
    return case(
        name, covers, _LAST_BLOCK % text, draw=_draw_blocks, reference=_last_block,
        outputs={"partial": ((24, 64), U32), "y": ((64,), U32), "count": ((1,), U32)},
        grid=(24, 1, 1), block=64, smem=16,
    )  # fmt: skip


# Every order of every atomic: sums, exchanges in a chain, swaps that find what they expect or not.
_ATOMICS = """
  int i = ptx::thread();
  unsigned v = ptx::ld_u32(x + i), w = ptx::ld_u32(x + 64 + i);
  unsigned* mine = cell + i * 3;
  unsigned* o = y + i * 12;
  ptx::st_u32(o, ptx::atom_add_u32<ptx::Order::Relaxed>(mine, v));
  ptx::st_u32(o + 1, ptx::atom_add_u32<ptx::Order::Acquire>(mine, w));
  ptx::st_u32(o + 2, ptx::atom_add_u32<ptx::Order::Release>(mine, v));
  ptx::st_u32(o + 3, ptx::atom_add_u32<ptx::Order::AcqRel>(mine, w));
  ptx::st_u32(o + 4, ptx::atom_exch_u32<ptx::Order::Relaxed>(mine + 1, v));
  ptx::st_u32(o + 5, ptx::atom_exch_u32<ptx::Order::Acquire>(mine + 1, w));
  ptx::st_u32(o + 6, ptx::atom_exch_u32<ptx::Order::Release>(mine + 1, v + 1));
  ptx::st_u32(o + 7, ptx::atom_exch_u32<ptx::Order::AcqRel>(mine + 1, w + 1));
  ptx::st_u32(o + 8, ptx::atom_cas_u32<ptx::Order::Relaxed>(mine + 2, 0, v));
  ptx::st_u32(o + 9, ptx::atom_cas_u32<ptx::Order::Acquire>(mine + 2, v, w));
  ptx::st_u32(o + 10, ptx::atom_cas_u32<ptx::Order::Release>(mine + 2, w + 1, 0));
  ptx::st_u32(o + 11, ptx::atom_cas_u32<ptx::Order::AcqRel>(mine + 2, w, v + w));
  ptx::atom_add_u32<ptx::Order::Relaxed>(total, v);
  ptx::red_add_u32_release(total + 1, w);
"""


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


# A message between warps: plain data, then a flag.
_MESSAGE = """
  if (ptx::warp() == 0) {
    ptx::st_u32(data + ptx::lane(), ptx::ld_nc_u32(x + ptx::lane()));
    ptx::fence_cta();
    ptx::sync_warp();
    if (ptx::lane() == 0) ptx::st_release_u32(flag, 7);
  }
  ptx::sync_block();
  if (ptx::warp() == 1 && ptx::ld_acquire_u32(flag) == 7)
    ptx::st_u32(y + ptx::lane(), ptx::ld_u32(data + ptx::lane()));
"""


def _message(given):
    return {"data": given["x"], "flag": np.array([7], U32), "y": given["x"]}


# ---- dependent launch: the first kernel lets the second start before it has written

_PDL = (
    """
  ptx::grid_trigger();
  int at = ptx::block_x() * 64 + ptx::thread();
  unsigned v = ptx::ld_nc_u32(x + at);
  for (int k = 0; k < 2000; ++k) v = v * 1664525u + 1013904223u;
  ptx::st_u32(t + at, v);
""",
    """
  int at = ptx::block_x() * 64 + ptx::thread();
  unsigned v = ptx::ld_nc_u32(x + at);
  ptx::grid_wait();
  ptx::st_u32(y + at, v ^ ptx::ld_u32(t + (at + 64) % 1024));
""",
)


def _pdl(given):
    t = given["x"]
    for _ in range(2000):
        t = t * U32(1664525) + U32(1013904223)
    return {"t": t, "y": given["x"] ^ np.roll(t, -64)}


CASES = (
    case(
        "sync_warp", "sync_warp", _SYNC_WARP, draw=random_words(64), reference=_turns(32, 1),
        outputs={"y": ((64,), U32)}, block=64, smem=256,
    ),
    case(
        "sync_block", "sync_block", _SYNC_BLOCK, draw=random_words(128), reference=_turns(128, 32),
        outputs={"y": ((128,), U32)}, block=128, smem=512,
    ),
    case(
        "cluster", "cluster_arrive cluster_wait cluster_rank dsmem_ld", _CLUSTER,
        draw=random_words(6, 64), reference=_cluster,
        outputs={"y": ((6, 64), U32), "z": ((6, 64), U32)},
        grid=(6, 1, 1), block=64, cluster=2, smem=256,
    ),
    case(
        "named_barriers", "bar_sync bar_arrive", _NAMED, draw=random_words(8, 32),
        reference=lambda given: {"y": given["x"][:, ::-1]}, outputs={"y": ((8, 32), U32)},
        block=64, smem=256,
    ),
    _grid_case("last_block_fenced", "atom_add_u32 fence_gpu ld_cg_u32", _FENCED),
    _grid_case("last_block_acq_rel", "atom_add_u32 ld_cg_u32", _ORDERED),
    _grid_case("last_block_reduced", "red_add_u32_release ld_acquire_u32 ld_cg_u32", _REDUCED),
    case(
        "atomics", "atom_add_u32 atom_exch_u32 atom_cas_u32 red_add_u32_release", _ATOMICS,
        draw=_draw_atomics, reference=_atomics,
        outputs={"y": ((64, 12), U32), "cell": ((64, 3), U32), "total": ((2,), U32)}, block=64,
    ),
    case(
        "message", "fence_cta st_release_u32 ld_acquire_u32", _MESSAGE, draw=random_words(32),
        reference=_message,
        outputs={"data": ((32,), U32), "flag": ((1,), U32), "y": ((32,), U32)}, block=64,
    ),
    case(
        "pdl", "grid_wait grid_trigger", _PDL, draw=random_words(1024), reference=_pdl,
        outputs={"t": ((1024,), U32), "y": ((1024,), U32)}, grid=(16, 1, 1), block=64,
    ),
)  # fmt: skip
