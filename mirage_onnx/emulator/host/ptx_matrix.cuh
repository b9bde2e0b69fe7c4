// Twin of codegen/device/ptx_matrix.cuh. With g = lane / 4 and t = lane % 4.
#pragma once

#include "ptx_convert.cuh"

namespace ptx {

namespace host {

EMU_INLINE void whole_warp(const emu::Warp& w, const char* what) {
  if (w.size != 32) emu::fail(emu::kMisuse, "%s in a warp of %d lanes", what, w.size);
}

// ---- tiles

// What a lane brings to ldmatrix or stmatrix: a row's address (if its tile exists) and the
// registers.
struct Tiles {
  char* row;
  unsigned v[4];
};

// Moves N tiles between the rows and the registers.
template <int N, bool kTrans, bool kStore>
EMU_HOST static void move_tiles(emu::Warp& w, Tiles** lane) {
  whole_warp(w, kStore ? "stmatrix" : "ldmatrix");
  for (int i = 0; i < N; ++i)
    for (int l = 0; l < 32; ++l) {
      const int g = l >> 2, t = l & 3;
      unsigned short half[2];
      if (kStore) memcpy(half, &lane[l]->v[i], sizeof half);
      for (int h = 0; h < 2; ++h) {
        const int y = kTrans ? 2 * t + h : g, x = kTrans ? g : 2 * t + h;
        char* at = lane[8 * i + y]->row + x * 2;
        if (kStore)
          memcpy(at, &half[h], sizeof half[h]);
        else
          memcpy(&half[h], at, sizeof half[h]);
      }
      if (!kStore) memcpy(&lane[l]->v[i], half, sizeof half);
    }
}

template <int N, bool kTrans>
PTX_DEVICE Tiles load_tiles(const char* what, const void* row) {
  // The lane that gives the address makes the access: eight of them read the row's eight elements.
  if (ptx::lane() < 8 * N) emu::check_shared(emu::cta(), row, 16, emu::kRead);
  Tiles tiles{static_cast<char*>(const_cast<void*>(row)), {}};
  emu::collective(what, tiles, &move_tiles<N, kTrans, false>);
  return tiles;
}

template <int N, bool kTrans>
PTX_DEVICE void store_tiles(const char* what, void* row, U4 v) {
  if (ptx::lane() < 8 * N) emu::check_shared(emu::cta(), row, 16, emu::kWrite);
  Tiles tiles{static_cast<char*>(row), {v.x, v.y, v.z, v.w}};
  emu::collective(what, tiles, &move_tiles<N, kTrans, true>);
}

EMU_HOST static void transpose_tile(emu::Warp& w, Tiles** lane) {
  whole_warp(w, "movmatrix");
  unsigned short tile[8][8];
  for (int l = 0; l < 32; ++l) memcpy(&tile[l >> 2][(l & 3) * 2], &lane[l]->v[0], 4);
  for (int l = 0; l < 32; ++l) {
    const int g = l >> 2, t = l & 3;
    lane[l]->v[0] = tile[2 * t][g] | static_cast<unsigned>(tile[2 * t + 1][g]) << 16;
  }
}

}  // namespace host

PTX_DEVICE unsigned ldmatrix_x1(const void* row) {
  return host::load_tiles<1, false>("ldmatrix_x1", row).v[0];
}
PTX_DEVICE unsigned ldmatrix_x1_trans(const void* row) {
  return host::load_tiles<1, true>("ldmatrix_x1_trans", row).v[0];
}
PTX_DEVICE U2 ldmatrix_x2(const void* row) {
  const host::Tiles tiles = host::load_tiles<2, false>("ldmatrix_x2", row);
  return {tiles.v[0], tiles.v[1]};
}
PTX_DEVICE U2 ldmatrix_x2_trans(const void* row) {
  const host::Tiles tiles = host::load_tiles<2, true>("ldmatrix_x2_trans", row);
  return {tiles.v[0], tiles.v[1]};
}
PTX_DEVICE U4 ldmatrix_x4(const void* row) {
  const host::Tiles tiles = host::load_tiles<4, false>("ldmatrix_x4", row);
  return {tiles.v[0], tiles.v[1], tiles.v[2], tiles.v[3]};
}
PTX_DEVICE U4 ldmatrix_x4_trans(const void* row) {
  const host::Tiles tiles = host::load_tiles<4, true>("ldmatrix_x4_trans", row);
  return {tiles.v[0], tiles.v[1], tiles.v[2], tiles.v[3]};
}

PTX_DEVICE void stmatrix_x1(void* row, unsigned v) {
  host::store_tiles<1, false>("stmatrix_x1", row, {v, 0, 0, 0});
}
PTX_DEVICE void stmatrix_x1_trans(void* row, unsigned v) {
  host::store_tiles<1, true>("stmatrix_x1_trans", row, {v, 0, 0, 0});
}
PTX_DEVICE void stmatrix_x2(void* row, U2 v) {
  host::store_tiles<2, false>("stmatrix_x2", row, {v.x, v.y, 0, 0});
}
PTX_DEVICE void stmatrix_x2_trans(void* row, U2 v) {
  host::store_tiles<2, true>("stmatrix_x2_trans", row, {v.x, v.y, 0, 0});
}
PTX_DEVICE void stmatrix_x4(void* row, U4 v) { host::store_tiles<4, false>("stmatrix_x4", row, v); }
PTX_DEVICE void stmatrix_x4_trans(void* row, U4 v) {
  host::store_tiles<4, true>("stmatrix_x4_trans", row, v);
}

PTX_DEVICE unsigned movmatrix(unsigned v) {
  host::Tiles tiles{nullptr, {v}};
  emu::collective("movmatrix", tiles, &host::transpose_tile);
  return tiles.v[0];
}

// ---- tensor cores
//
// NVIDIA documents no order of additions. This is what the H200 does, bit for bit on all data of
// tests/support/primitives/tensor_core.py (bench/results/h200/primitives.txt); for models of other
// chips too see arXiv 2511.10909 and 2512.07004.
//   1. Each product is exact; its exponent is the sum of its factors', not normalised.
//   2. All k products and the accumulator are cut, towards zero, to multiples of 2^(e - 25), with e
//      the largest of their exponents (those of zeros do not count), at least -133.
//   3. Their sum is exact, and cut, towards zero, to f32; beyond f32 it is infinite.
// Subnormal operands and results count; a zero is positive; any NaN is the canonical one.

namespace host {

enum class Operand { kF16, kBf16, kTf32 };

// What an operand's format needs: the type in which a product of two is exact and neither overflows
// nor underflows, the least exponent, and how many values a register has.
template <Operand kType>
struct Format {
  using Value = double;
  static constexpr int kLeast = -126;
  static constexpr int kPer = kType == Operand::kTf32 ? 1 : 2;
};
template <>
struct Format<Operand::kF16> {
  using Value = float;
  static constexpr int kLeast = -14;
  static constexpr int kPer = 2;
};

constexpr short kZero = -4096;  // the exponent of zero: no sum with another reaches any real one
constexpr int kFraction = 25;
constexpr short kLeastExponent = -133;

// The exponent of the leading bit; of a subnormal, the format's least.
EMU_INLINE short exponent_of(float v, int least) {
  const int e = static_cast<int>(f32_to_bits(v) >> 23 & 255u) - 127;
  return static_cast<short>(v == 0.0f ? kZero : e > least ? e : least);
}

EMU_INLINE void power_of_two(int e, float& to) {
  to = bits_to_f32(static_cast<unsigned>(e + 127) << 23);
}
EMU_INLINE void power_of_two(int e, double& to) {
  const unsigned long long bits = static_cast<unsigned long long>(e + 1023) << 52;
  memcpy(&to, &bits, sizeof to);
}

// The float that is nearest to v among those between v and zero; overflow to infinity.
EMU_INLINE float cut(double v) {
  const float f = static_cast<float>(v);
  if (__builtin_isinf(f) || __builtin_fabs(double{f}) <= __builtin_fabs(v)) return f;
  return bits_to_f32(f32_to_bits(f) - 1);
}

// The values in a register, the lower k first.
template <Operand kType>
EMU_INLINE void unpack(unsigned bits, float* to) {
  if (kType == Operand::kF16)
    unpack_f16(bits, to[0], to[1]);
  else if (kType == Operand::kBf16)
    unpack_bf16(bits, to[0], to[1]);
  else
    to[0] = bits_to_f32(bits & 0xffffe000u);
}

struct Mma {
  float* d;
  unsigned a[4], b[2];
};

template <Operand kType, int K>
struct Matrices {
  typename Format<kType>::Value a[16][K], b[K][8];
  short a_exponent[16][K], b_exponent[K][8];
  float c[16][8];
  bool finite;

  EMU_INLINE void gather(Mma** lane) {
    constexpr int kPer = Format<kType>::kPer, kLeast = Format<kType>::kLeast;
    finite = true;
    for (int l = 0; l < 32; ++l) {
      const int g = l >> 2, t = l & 3;
      for (int r = 0; r < K / (4 * kPer); ++r) {  // the quarter-rows of B; A has two of each
        float v[3][2];
        unpack<kType>(lane[l]->a[2 * r], v[0]);
        unpack<kType>(lane[l]->a[2 * r + 1], v[1]);
        unpack<kType>(lane[l]->b[r], v[2]);
        for (int i = 0; i < kPer; ++i) {
          const int k = (4 * r + t) * kPer + i;
          a[g][k] = v[0][i], a_exponent[g][k] = exponent_of(v[0][i], kLeast);
          a[g + 8][k] = v[1][i], a_exponent[g + 8][k] = exponent_of(v[1][i], kLeast);
          b[k][g] = v[2][i], b_exponent[k][g] = exponent_of(v[2][i], kLeast);
          for (int j = 0; j < 3; ++j) finite &= __builtin_isfinite(v[j][i]);
        }
      }
      for (int r = 0; r < 4; ++r) {
        const float v = lane[l]->d[r];
        c[g + (r >> 1) * 8][2 * t + (r & 1)] = v;
        finite &= __builtin_isfinite(v);
      }
    }
  }

  // c + the products of row m with every column; right where all of them are finite. The inner
  // loops run over columns, so that the compiler can make vectors of them.
  EMU_INLINE void add_products(int m, float (&sums)[8]) const {
    typename Format<kType>::Value scale[8];
    short e[8];
    int sum[8] = {};  // of sixteen terms below 4 * 2^25 * (1 - 2^-8): fits
    for (int n = 0; n < 8; ++n) {
      const short of_c = exponent_of(c[m][n], -126);
      e[n] = of_c > kLeastExponent ? of_c : kLeastExponent;
    }
    for (int k = 0; k < K; ++k)
      for (int n = 0; n < 8; ++n) {
        const short both = static_cast<short>(a_exponent[m][k] + b_exponent[k][n]);
        e[n] = both > e[n] ? both : e[n];
      }
    for (int n = 0; n < 8; ++n) {  // below twice the least exponent, every product is zero
      constexpr int kLeast = 2 * Format<kType>::kLeast;
      power_of_two(kFraction - (e[n] > kLeast ? e[n] : kLeast), scale[n]);
    }
    for (int k = 0; k < K; ++k)
      for (int n = 0; n < 8; ++n) sum[n] += static_cast<int>(a[m][k] * b[k][n] * scale[n]);
    for (int n = 0; n < 8; ++n) {
      double up, down;
      power_of_two(kFraction - e[n], up);
      power_of_two(e[n] - kFraction, down);
      const double total = static_cast<double>(static_cast<int>(c[m][n] * up)) + sum[n];
      sums[n] = cut(total * down) + 0.0f;  // -0 becomes 0
    }
  }

  // Whether the sum is no number or infinite, by IEEE 754; no double overflows here.
  EMU_INLINE bool special(int m, int n, float& result) const {
    double sum = c[m][n];
    for (int k = 0; k < K; ++k) sum += double{a[m][k]} * double{b[k][n]};
    result = sum != sum ? bits_to_f32(0x7fffffffu) : static_cast<float>(sum);
    return !__builtin_isfinite(sum);
  }
};

template <Operand kType, int K>
__attribute__((optimize("O3"))) EMU_HOST static void multiply_add(Mma** lane) {
  Matrices<kType, K> x;
  x.gather(lane);
  for (int m = 0; m < 16; ++m) {
    float sums[8];
    x.add_products(m, sums);
    for (int n = 0; n < 8; ++n) {
      float& d = lane[(m & 7) * 4 + n / 2]->d[(m >> 3) * 2 + n % 2];
      if (x.finite || !x.special(m, n, d)) d = sums[n];
    }
  }
}

template <Operand kType, int K>
EMU_HOST static void mma(emu::Warp& w, Mma** lane) {
  whole_warp(w, "mma");
  multiply_add<kType, K>(lane);
}

}  // namespace host

PTX_DEVICE void mma_16816_f16(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                              unsigned b0, unsigned b1) {
  host::Mma m{d, {a0, a1, a2, a3}, {b0, b1}};
  emu::collective("mma_16816_f16", m, &host::mma<host::Operand::kF16, 16>);
}
PTX_DEVICE void mma_16816_bf16(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                               unsigned b0, unsigned b1) {
  host::Mma m{d, {a0, a1, a2, a3}, {b0, b1}};
  emu::collective("mma_16816_bf16", m, &host::mma<host::Operand::kBf16, 16>);
}
PTX_DEVICE void mma_1688_f16(float (&d)[4], unsigned a0, unsigned a1, unsigned b0) {
  host::Mma m{d, {a0, a1}, {b0}};
  emu::collective("mma_1688_f16", m, &host::mma<host::Operand::kF16, 8>);
}
PTX_DEVICE void mma_1688_bf16(float (&d)[4], unsigned a0, unsigned a1, unsigned b0) {
  host::Mma m{d, {a0, a1}, {b0}};
  emu::collective("mma_1688_bf16", m, &host::mma<host::Operand::kBf16, 8>);
}
PTX_DEVICE void mma_1688_tf32(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                              unsigned b0, unsigned b1) {
  host::Mma m{d, {a0, a1, a2, a3}, {b0, b1}};
  emu::collective("mma_1688_tf32", m, &host::mma<host::Operand::kTf32, 8>);
}
PTX_DEVICE void mma_1684_tf32(float (&d)[4], unsigned a0, unsigned a1, unsigned b0) {
  host::Mma m{d, {a0, a1}, {b0}};
  emu::collective("mma_1684_tf32", m, &host::mma<host::Operand::kTf32, 4>);
}

}  // namespace ptx
