"""Votes, shuffles, and where a thread is (PTX ISA: vote.sync, shfl.sync, special registers)."""

import numpy as np

from tests.support.primitives.case import F32, U32, case

WIDTHS = (1, 2, 4, 8, 16, 32)
ROUNDS = 24

# ---- special registers


def _where(_):
  z, y, x, t = np.meshgrid(range(2), range(2), range(4), range(64), indexing="ij")
  found = np.stack([t, t % 32, t // 32, x, y, z, x % 2], -1)
  return {"y": found.reshape(16, 64, 7).astype(U32)}


# ---- votes: random, all, none, and one lane


def _draw_votes(rng):
  x = rng.integers(0, 2, (4, 64), dtype=U32)
  x[1], x[2], x[3] = 1, 0, 0
  x[3, [9, 63]] = 1
  return {"x": x}


def _votes(given):
  lanes = given["x"].reshape(4, 2, 32)
  ballot = (lanes << np.arange(32, dtype=U32)).sum(-1, dtype=U32)
  found = np.stack([ballot, lanes.any(-1), lanes.all(-1)], -1).astype(U32)
  return {"y": np.repeat(found[:, :, None], 32, 2).reshape(4, 64, 3)}


# ---- shuffles: every width, every offset from -40 to 70, a different one in each lane


def _draw_shuffle(rng):
  x = rng.standard_normal((ROUNDS, 64)).astype(F32)
  return {"x": x, "offset": rng.integers(-40, 71, x.shape).astype(np.int32).view(U32)}


def _shuffle(mode):
  def reference(given):
    """The pseudo-code of shfl.sync, with c as CUDA's intrinsics make it of a width."""
    x, offset = given["x"], given["offset"].view(np.int32)
    found = np.empty((len(WIDTHS), ROUNDS, 64), F32)
    for w, width in enumerate(WIDTHS):
      cval, segmask = (0 if mode == "shfl_up" else 31), 32 - width
      for r in range(ROUNDS):
        for i in range(64):
          lane, bval = i % 32, int(offset[r, i]) & 31
          low = lane & segmask
          high = low | (cval & ~segmask & 31)
          source, inside = {
            "shfl_up": (lane - bval, lane - bval >= high),
            "shfl_down": (lane + bval, lane + bval <= high),
            "shfl_xor": (lane ^ bval, (lane ^ bval) <= high),
            "shfl": (low | (bval & ~segmask & 31), True),
          }[mode]
          found[w, r, i] = x[r, i - lane + (source if inside else lane)]
    return {"f": found, "u": found.view(U32)}

  return reference


CASES = (
  case(
    "where", "thread lane warp block_x block_y block_z cluster_rank",
    draw=lambda _: {}, outputs={"y": ((16, 64, 7), U32)}, reference=_where,
    grid=(4, 2, 2), block=64, cluster=2,
  ),
  case(
    "votes", "ballot any all",
    draw=_draw_votes, outputs={"y": ((4, 64, 3), U32)}, reference=_votes, block=64,
  ),
  *(
    case(
      mode, mode, draw=_draw_shuffle, reference=_shuffle(mode),
      outputs={"f": ((6, ROUNDS, 64), F32), "u": ((6, ROUNDS, 64), U32)}, block=64,
    )
    for mode in ("shfl", "shfl_up", "shfl_down", "shfl_xor")
  ),
)  # fmt: skip
