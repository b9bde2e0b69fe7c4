"""Votes, shuffles, and where a thread is (PTX ISA: vote.sync, shfl.sync, special registers)."""

import numpy as np

from tests.support.primitives.case import F32, U32, case

WIDTHS = (1, 2, 4, 8, 16, 32)
ROUNDS = 24

# ---- special registers

_WHERE = """
  int b = ptx::block_x() + 4 * (ptx::block_y() + 2 * ptx::block_z());
  unsigned* o = y + (b * 64 + ptx::thread()) * 7;
  ptx::st_u32(o, ptx::thread());
  ptx::st_u32(o + 1, ptx::lane());
  ptx::st_u32(o + 2, ptx::warp());
  ptx::st_u32(o + 3, ptx::block_x());
  ptx::st_u32(o + 4, ptx::block_y());
  ptx::st_u32(o + 5, ptx::block_z());
  ptx::st_u32(o + 6, ptx::cluster_rank());
"""


def _where(_):
    z, y, x, t = np.meshgrid(range(2), range(2), range(4), range(64), indexing="ij")
    found = np.stack([t, t % 32, t // 32, x, y, z, x % 2], -1)
    return {"y": found.reshape(16, 64, 7).astype(U32)}


# ---- votes: random, all, none, and one lane

_VOTES = """
  for (int r = 0; r < 4; ++r) {
    bool vote = ptx::ld_u32(x + r * 64 + ptx::thread()) != 0;
    unsigned* o = y + (r * 64 + ptx::thread()) * 3;
    ptx::st_u32(o, ptx::ballot(vote));
    ptx::st_u32(o + 1, ptx::any(vote));
    ptx::st_u32(o + 2, ptx::all(vote));
  }
"""


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

_SHUFFLE = """
  int width = 1;
  for (int w = 0; w < 6; ++w, width *= 2)
    for (int r = 0; r < 24; ++r) {
      int i = r * 64 + ptx::thread();
      int b = static_cast<int>(ptx::ld_u32(offset + i));
      ptx::st_f32(f + w * 1536 + i, ptx::%s(ptx::ld_f32(x + i), b, width));
      ptx::st_u32(u + w * 1536 + i, ptx::%s(ptx::ld_u32(x + i), b, width));
    }
"""


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
        "where", "thread lane warp block_x block_y block_z cluster_rank", _WHERE,
        draw=lambda _: {}, outputs={"y": ((16, 64, 7), U32)}, reference=_where,
        grid=(4, 2, 2), block=64, cluster=2,
    ),
    case(
        "votes", "ballot any all", _VOTES,
        draw=_draw_votes, outputs={"y": ((4, 64, 3), U32)}, reference=_votes, block=64,
    ),
    *(
        case(
            mode, mode, _SHUFFLE % (mode, mode), draw=_draw_shuffle, reference=_shuffle(mode),
            outputs={"f": ((6, ROUNDS, 64), F32), "u": ((6, ROUNDS, 64), U32)}, block=64,
        )
        for mode in ("shfl", "shfl_up", "shfl_down", "shfl_xor")
    ),
)  # fmt: skip
