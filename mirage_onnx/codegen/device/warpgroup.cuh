// What kernels with wgmma use beside ptx_warpgroup.cuh. Needs that, ptx.cuh and vector.cuh, included
// before.
#pragma once

template <bool Turned = false, int J>
PTX_DEVICE void wgmma(F16, float (&d)[2][J][2], ptx::U64 a_tile, ptx::U64 b_tile) {
  ptx::wgmma_f16<Turned>(d, a_tile, b_tile);
}
template <bool Turned = false, int J>
PTX_DEVICE void wgmma(BF16, float (&d)[2][J][2], ptx::U64 a_tile, ptx::U64 b_tile) {
  ptx::wgmma_bf16<Turned>(d, a_tile, b_tile);
}
template <bool Turned = false, int J>
PTX_DEVICE void wgmma(F16, float (&d)[2][J][2], const unsigned (&a)[4], ptx::U64 b_tile) {
  ptx::wgmma_f16<Turned>(d, a, b_tile);
}
template <bool Turned = false, int J>
PTX_DEVICE void wgmma(BF16, float (&d)[2][J][2], const unsigned (&a)[4], ptx::U64 b_tile) {
  ptx::wgmma_bf16<Turned>(d, a, b_tile);
}

// The place of depth element k of row r in a tile of Rows rows: panels of 64 depth elements, a row of a
// panel in eight chunks of eight, chunk c at c ^ (r % 8). What ptx::wgmma_tile describes.
template <int Rows, int Depth>
PTX_DEVICE int swizzled(int row, int depth) {
  const unsigned r = static_cast<unsigned>(row);
  const unsigned k = static_cast<unsigned>(depth);
  const unsigned panel = Depth > 64 ? k / 64 * (Rows * 64) : 0;
  return static_cast<int>(panel + r * 64 + (((k / 8) % 8) ^ (r % 8)) * 8 + k % 8);
}

// One of two neighbours, the first at a multiple of their size: both are one load.
PTX_DEVICE unsigned short one_of_pair(const unsigned short* first, int which) {
  const unsigned both = *reinterpret_cast<const unsigned*>(first);
  return static_cast<unsigned short>(which ? both >> 16 : both & 0xffffu);
}
PTX_DEVICE unsigned char one_of_pair(const unsigned char* first, int which) {
  const unsigned both = *reinterpret_cast<const unsigned short*>(first);
  return static_cast<unsigned char>(which ? both >> 8 : both & 0xffu);
}

// exp(x) for what becomes an operand of 16 bits: within 2^-22 (1 + |x|) of it, relatively, 0 below 2^-126.
// expf takes three times as many instructions.
PTX_DEVICE float exp_by_two(float x) { return ptx::ex2(x * 1.44269504f); }
// exp(x + y) likewise, of y that many x have in common: what it costs is one multiply-add an x. Its rounding is
// that of y, and so one factor for all of them.
PTX_DEVICE float exp_by_two(float x, float y) {
  return ptx::ex2(fmaf(x, 1.44269504f, y * 1.44269504f));
}
// exp(c x + y) likewise, of a constant c.
PTX_DEVICE float exp_by_two(float x, float c, float y) {
  return ptx::ex2(fmaf(x, c * 1.44269504f, y * 1.44269504f));
}

// erf(x) for results of 16 bits: within 1e-7. erfc(|x|) is two to the power of a polynomial (fitted to the
// largest error of the result), which erff has, too, but for small |x|, where it is relatively exact.
PTX_DEVICE float erf_near(float x) {
  const float a = fabsf(x);
  float p = fmaf(-4.5360848e-5f, a, 4.4552359e-4f);
  p = fmaf(p, a, -1.4894860e-3f);
  p = fmaf(p, a, -7.7456824e-4f);
  p = fmaf(p, a, 2.8253635e-2f);
  p = fmaf(p, a, -1.4848160e-1f);
  p = fmaf(p, a, -9.1841638e-1f);
  p = fmaf(p, a, -1.6279086f);
  return copysignf(1.0f - ptx::ex2(p * a), x);
}

// x times the normal distribution N(x) for results of 16 bits: max(x, 0) - |x| N(-|x|), of which |x| N(-|x|) is
// within a part in 11000, or 5e-9: a sixth of half a unit of f16. It is two to the power of a polynomial, fitted up
// to 6, where |x| N(-|x|) is below 6e-9.
PTX_DEVICE float times_normal(float x) {
  const float a = fminf(fabsf(x), 6.0f);
  float p = fmaf(-3.2047147e-4f, a, 5.8268216e-3f);
  p = fmaf(p, a, -4.823526e-2f);
  p = fmaf(p, a, -4.6412465e-1f);
  p = fmaf(p, a, -1.1491729f);
  p = fmaf(p, a, -1.0001215f);
  return fmaf(-a, ptx::ex2(p), ptx::max_nan(x, 0.0f));
}

// One arrival of this warp, which has waited for its products, at a barrier; or at those at its place in
// the first blocks of the cluster.
template <int Blocks>
PTX_DEVICE void warp_arrives(ptx::U64* bar) {
  ptx::sync_warp();
  if constexpr (Blocks == 1) {
    if (ptx::lane() == 0) ptx::mbarrier_arrive(bar);
  } else {
    const unsigned rank = static_cast<unsigned>(ptx::lane());
    if (rank < Blocks) ptx::mbarrier_arrive_remote_relaxed(bar, rank);
  }
}

// A vote of warps of which others hear, too: each says its own, and whoever comes to the barrier, which counts
// a warp once, hears whether one of the first `Warps` has said so. (bar.red of all threads at two places of the
// text does it as well, but compute-sanitizer's synccheck takes that for a block that has diverged.)
PTX_DEVICE void warp_says(ptx::U64* asked, unsigned char* said, bool says) {
  const bool one = ptx::any(says);
  if (ptx::lane() == 0) {
    said[ptx::warp()] = one;
    ptx::mbarrier_arrive(asked);
  }
}
template <int Warps>
PTX_DEVICE bool any_said(ptx::U64* asked, const unsigned char* said) {
  ptx::wait(asked, 0);
  unsigned all = 0;
#pragma unroll
  for (int n = 0; n < Warps; ++n) all |= said[n];
  return all != 0;
}

// Four values of each thread for the other ranks of the cluster, at a place of slots of `Threads` threads.
template <int Threads>
PTX_DEVICE void publish_four(float* slots, int place, float a, float b, float c, float d) {
  float* to = slots + (place * Threads + ptx::thread()) * 4;
  *reinterpret_cast<ptx::U4*>(to) = {ptx::f32_to_bits(a), ptx::f32_to_bits(b), ptx::f32_to_bits(c), ptx::f32_to_bits(d)};
}
// The ranks of a cluster behind this one, from the next on. Known in front of branches by the own rank: in one of
// rank 0 ptxas 13.0.88 takes ~rank & 1 for 0, and a rank added what lay in its own memory.
template <int Ranks>
PTX_DEVICE void other_ranks(int (&others)[Ranks - 1]) {
  const int own = static_cast<int>(ptx::cluster_rank());
#pragma unroll
  for (int n = 1; n < Ranks; ++n) others[n - 1] = ptx::pinned(own + n < Ranks ? own + n : own + n - Ranks);
}
// A thread's own four, and those that the other ranks have there, in the order of `others`.
template <class R, int Threads, int Others>
PTX_DEVICE void gather_four(const float* slots, int place, const int (&others)[Others], float& a, float& b, float& c,
                            float& d) {
  const float* from = slots + (place * Threads + ptx::thread()) * 4;
#pragma unroll
  for (int n = 0; n < Others; ++n) {
    const ptx::U4 v = ptx::dsmem_ld_v4(from, static_cast<unsigned>(others[n]));
    a = R::combine(a, ptx::bits_to_f32(v.x));
    b = R::combine(b, ptx::bits_to_f32(v.y));
    c = R::combine(c, ptx::bits_to_f32(v.z));
    d = R::combine(d, ptx::bits_to_f32(v.w));
  }
}

// Packed pairs of four tiles of 8 columns, of which lane t of a quad has columns 2t and 2t + 1: then
// it has all eight columns of tile t.
PTX_DEVICE ptx::U4 quad_turned(const unsigned (&pairs)[4], int t) {
  unsigned p[4] = {pairs[0], pairs[1], pairs[2], pairs[3]};
  const bool odd = t % 2 != 0;
  const bool high = t / 2 != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const unsigned other = ptx::shfl_xor(odd ? p[i] : p[i + 1], 1);
    p[i] = odd ? other : p[i];
    p[i + 1] = odd ? p[i + 1] : other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const unsigned other = ptx::shfl_xor(high ? p[i] : p[i + 2], 2);
    p[i] = high ? other : p[i];
    p[i + 2] = high ? p[i + 2] : other;
  }
  return {p[0], p[1], p[2], p[3]};
}
