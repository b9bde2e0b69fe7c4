// Variants of an int4 product of few rows; mode: 0 scale before mma (as generated), 1 scale after mma, 2 the same
// with two accumulators in turn, 3 zero folded in too (magic numbers), 4 loads only, 5 mode 2 by a cp.async ring,
// 6 as 5 with mode 1.
#pragma once
#include <cstdio>
#include "ptx.cuh"
#include "vector.cuh"
#include "fragment.cuh"
#include "numeric.cuh"
#include "packed.cuh"

__device__ __forceinline__ void cp16(unsigned to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void cp_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void cp_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

__device__ __forceinline__ Eight<F16> plain_apart(unsigned w) {
  Eight<F16> e;
  const unsigned hi = w >> 8;
  e.v.x = ptx::sub_f16x2(ptx::and_or(w, 0x000f000fu, 0x64006400u), 0x64086408u);
  e.v.y = ptx::fma_f16x2(ptx::and_or(w, 0x00f000f0u, 0x64006400u), 0x2c002c00u, 0xd480d480u);
  e.v.z = ptx::sub_f16x2(ptx::and_or(hi, 0x000f000fu, 0x64006400u), 0x64086408u);
  e.v.w = ptx::fma_f16x2(ptx::and_or(hi, 0x00f000f0u, 0x64006400u), 0x2c002c00u, 0xd480d480u);
  return e;
}
__device__ __forceinline__ Eight<F16> magic_apart(unsigned w) {  // 1024 + q, 64 + q in turn
  Eight<F16> e;
  const unsigned hi = w >> 8;
  e.v.x = ptx::and_or(w, 0x000f000fu, 0x64006400u);
  e.v.y = ptx::and_or(w, 0x00f000f0u, 0x54005400u);
  e.v.z = ptx::and_or(hi, 0x000f000fu, 0x64006400u);
  e.v.w = ptx::and_or(hi, 0x00f000f0u, 0x54005400u);
  return e;
}
__device__ __forceinline__ unsigned word_of(const ptx::U4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

template <int K, int NT, int W, int CL, int S, int MODE, int RT, int LB>
__global__ void __launch_bounds__(W * 32, LB) few(const unsigned short* __restrict__ x, const unsigned char* __restrict__ q,
    const unsigned short* __restrict__ sc, unsigned short* __restrict__ y, int N, int M) {
  constexpr int rounds = K / (CL * W * S * 128);
  ptx::grid_trigger();
  const int rank = CL > 1 ? static_cast<int>(ptx::cluster_rank()) : 0;
  const int first = static_cast<int>(blockIdx.x) / CL * 16 * NT;
  const int g = ptx::lane() / 4, t = ptx::lane() % 4;
  constexpr int kStride = W * 128, kRound = S * kStride;
  int k = rank * (K / CL) + ptx::warp() * 128 + t * 32;
  const unsigned short* at0 = x + (g < M ? g : 0) * K;
  const unsigned char* at1 = q + (first + g) * (K / 2);
  const unsigned short* at2 = sc + (first + g) * (K / 128);
  extern __shared__ __align__(128) unsigned char shared[];
  Eight<F16> x0[S][RT][4];
  ptx::U4 w[MODE >= 5 ? 1 : S][NT][2];
  unsigned short s[S][NT][2];
  float acc[RT][NT][4] = {};
  unsigned junk = 0;
  unsigned char* mine = shared + (ptx::warp() * 32 + ptx::lane()) * 16;
  const unsigned ring = static_cast<unsigned>(__cvta_generic_to_shared(mine));
  constexpr int kSlot = W * 32 * 16;  // bytes of one 16-byte load of every thread
  if constexpr (MODE >= 5) {
#pragma unroll
    for (int st = 0; st < S; ++st) {
      for (int n = 0; n < NT; ++n)
        for (int h = 0; h < 2; ++h)
          cp16(ring + ((st * NT + n) * 2 + h) * kSlot, at1 + (n * 16 + h * 8) * (K / 2) + (k + st * kStride) / 2);
      cp_commit();
    }
  } else {
#pragma unroll
    for (int st = 0; st < S; ++st)
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          w[st][n][h] = load16<Path::kStream>(at1 + (n * 16 + h * 8) * (K / 2) + (k + st * kStride) / 2);
  }
#pragma unroll
  for (int st = 0; st < S; ++st)
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        s[st][n][h] = load_bits<F16, Path::kConst>(at2 + (n * 16 + h * 8) * (K / 128) + (k + st * kStride) / 128);
  ptx::grid_wait();
#pragma unroll
  for (int st = 0; st < S; ++st)
#pragma unroll
    for (int r = 0; r < RT; ++r)
#pragma unroll
      for (int u = 0; u < 4; ++u) x0[st][r][u] = load8<F16, Path::kCoherent>(at0 + r * 8 * K + k + st * kStride + u * 8);
#pragma unroll 1
  for (int round = 0; round < rounds; ++round, k += kRound) {
    const bool more = round + 1 < rounds;
#pragma unroll
    for (int st = 0; st < S; ++st) {
      Eight<F16> r0[RT][4];
#pragma unroll
      for (int r = 0; r < RT; ++r)
#pragma unroll
        for (int u = 0; u < 4; ++u) r0[r][u] = MODE == 4 ? x0[st][r][u] : apart(x0[st][r][u]);
      const int kn = k + kRound + st * kStride;
#pragma unroll
      for (int r = 0; r < RT; ++r)
#pragma unroll
        for (int u = 0; u < 4; ++u) load8_if<F16, Path::kCoherent>(x0[st][r][u], at0 + r * 8 * K + kn + u * 8, more);
      float base[RT][4] = {};
      if constexpr (MODE == 3) {
        Eight<F16> c;
        c.v = {0xe408e408u, 0xd480d480u, 0xe408e408u, 0xd480d480u};  // -(1024 + 8), -(64 + 8)
#pragma unroll
        for (int r = 0; r < RT; ++r)
#pragma unroll
          for (int u = 0; u < 4; ++u) mma_step(base[r], c, c, r0[r][u]);
      }
      if constexpr (MODE >= 5) cp_wait<S - 1>();
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        ptx::U4 now[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          if constexpr (MODE >= 5) now[h] = *reinterpret_cast<const ptx::U4*>(mine + ((st * NT + n) * 2 + h) * kSlot);
          else now[h] = w[st][n][h];
        }
        const float s0 = ptx::f16_to_f32(s[st][n][0]), s1 = ptx::f16_to_f32(s[st][n][1]);
        if constexpr (MODE == 4) {
          junk ^= now[0].x ^ now[0].y ^ now[0].z ^ now[0].w ^ now[1].x ^ now[1].y ^ now[1].z ^ now[1].w ^ s[st][n][0] ^ s[st][n][1];
        } else if constexpr (MODE == 0) {
          Lane<Q4, 4> l[2];
          l[0].v[0] = now[0]; l[1].v[0] = now[1];
#pragma unroll
          for (int u = 0; u < 4; ++u) {
            Eight<F16> p[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) p[h] = scaled8_apart<F16>(l[h], u, s[st][n][h]);
#pragma unroll
            for (int r = 0; r < RT; ++r) mma_step(acc[r][n], p[0], p[1], r0[r][u]);
          }
        } else {
          constexpr int T = MODE == 2 || MODE == 5 ? 2 : 1;
          float d[RT][T][4];
#pragma unroll
          for (int r = 0; r < RT; ++r)
#pragma unroll
            for (int i = 0; i < 4; ++i) { d[r][0][i] = base[r][i]; if (T > 1) d[r][T - 1][i] = 0.f; }
#pragma unroll
          for (int u = 0; u < 4; ++u) {
            Eight<F16> p[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) p[h] = MODE == 3 ? magic_apart(word_of(now[h], u)) : plain_apart(word_of(now[h], u));
#pragma unroll
            for (int r = 0; r < RT; ++r) mma_step(d[r][u % T], p[0], p[1], r0[r][u]);
          }
#pragma unroll
          for (int r = 0; r < RT; ++r)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const float v = T > 1 ? d[r][0][i] + d[r][1][i] : d[r][0][i];
              acc[r][n][i] = fmaf(v, i < 2 ? s0 : s1, acc[r][n][i]);
            }
        }
        if constexpr (MODE >= 5) {
#pragma unroll
          for (int h = 0; h < 2; ++h)
            if (more) cp16(ring + ((st * NT + n) * 2 + h) * kSlot, at1 + (n * 16 + h * 8) * (K / 2) + kn / 2);
        } else {
#pragma unroll
          for (int h = 0; h < 2; ++h)
            load16_if<Path::kStream>(w[st][n][h], at1 + (n * 16 + h * 8) * (K / 2) + kn / 2, more);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h)
          s[st][n][h] = load_bits<F16, Path::kConst>(at2 + (n * 16 + h * 8) * (K / 128) + at_most(kn, K - 32) / 128);
      }
      if constexpr (MODE >= 5) cp_commit();
    }
  }
  if (MODE == 4) acc[0][0][0] += __uint_as_float(junk & 0x3fffffff) + __uint_as_float(x0[0][0][0].v.x & 0x3fffffff);
  float* part = reinterpret_cast<float*>(shared);
  constexpr int P = 16 * NT + 4, kPart = 8 * RT * P;
  if (MODE >= 5) ptx::sync_block();
#pragma unroll
  for (int r = 0; r < RT; ++r)
#pragma unroll
    for (int n = 0; n < NT; ++n) store_accumulator<P>(part + ptx::warp() * kPart + r * 8 * P + n * 16, acc[r][n]);
  ptx::sync_block();
  for (int e = threadIdx.x; e < 16 * NT * M; e += W * 32) {
    const int at = e / (16 * NT) * P + e % (16 * NT);
    part[at] = parts_reduce<Sum, W, kPart>(part + at);
  }
  if constexpr (CL > 1) ptx::cluster_sync(); else ptx::sync_block();
  for (int e = rank * W * 32 + threadIdx.x; e < 16 * NT * M; e += CL * W * 32) {
    const int at = e / (16 * NT) * P + e % (16 * NT);
    float v;
    if constexpr (CL > 1) v = cluster_reduce<Sum, CL>(part + at); else v = part[at];
    store<F16>(y + e / (16 * NT) * N + first + e % (16 * NT), round_to<F16>(v));
  }
  if constexpr (CL > 1) ptx::cluster_sync();
}

struct Case {
  int K, NT, W, CL, S, MODE, RT, LB; const void* fn; size_t smem;
};
template <int K, int NT, int W, int CL, int S, int MODE, int RT, int LB>
Case make() {
  const size_t part = size_t(W) * 8 * RT * (16 * NT + 4) * 4, ring = MODE >= 5 ? size_t(S) * NT * 2 * W * 512 : 0;
  return {K, NT, W, CL, S, MODE, RT, LB, (const void*)few<K, NT, W, CL, S, MODE, RT, LB>, part > ring ? part : ring};
}
