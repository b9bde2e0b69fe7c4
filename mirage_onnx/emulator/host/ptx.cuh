// The host twin of mirage_onnx/codegen/device/ptx.cuh: the same names for the host compiler, so that
// generated text runs on a CPU unchanged. Every function of that file must exist here with the same
// signature (a test compares the two). See run.py for what the emulator models and what it does not.
#pragma once

#include <cmath>

#include "fiber.h"

#define PTX_DEVICE inline __attribute__((always_inline))
#define PTX_KERNEL(threads) static void
#define PTX_CLUSTER_KERNEL(threads, size) static void

namespace ptx {

struct alignas(16) U4 {
  unsigned x, y, z, w;
};
struct alignas(8) U2 {
  unsigned x, y;
};

// ---- where this thread is -------------------------------------------------------------------

PTX_DEVICE int thread() { return emu::cur->tid[0]; }
PTX_DEVICE int lane() { return emu::cur->tid[0] & 31; }
PTX_DEVICE int warp() { return emu::cur->tid[0] >> 5; }
PTX_DEVICE int block_x() { return emu::cur->cta->block[0]; }
PTX_DEVICE int block_y() { return emu::cur->cta->block[1]; }
PTX_DEVICE int block_z() { return emu::cur->cta->block[2]; }
PTX_DEVICE unsigned cluster_rank() { return static_cast<unsigned>(emu::cur->cta->rank); }

// ---- shared memory, barriers, shuffles ------------------------------------------------------

template <class T>
PTX_DEVICE T* smem() {
  return reinterpret_cast<T*>(emu::cur->cta->smem);
}

PTX_DEVICE void sync_block() { emu::block_barrier(0, emu::cur->cta->threads, "sync_block"); }
PTX_DEVICE void sync_warp() { emu::warp_barrier("sync_warp"); }

namespace host {

struct Shuffle {
  float value;
  int source;  // lane, taken modulo 32 as the hardware does
  float result;
};

static void shuffle(emu::Warp& w, Shuffle** lane) {
  for (int i = 0; i < w.size; ++i) {
    const int from = lane[i]->source & 31;
    // A lane that the block does not have is undefined on the device: poison here.
    lane[i]->result = from < w.size ? lane[from]->value : NAN;
  }
}

}  // namespace host

PTX_DEVICE float shfl_xor(float value, int mask) {
  host::Shuffle s{value, lane() ^ mask, 0.0f};
  emu::collective("shfl_xor", s, &host::shuffle);
  return s.result;
}
PTX_DEVICE float shfl(float value, int source) {
  host::Shuffle s{value, source, 0.0f};
  emu::collective("shfl", s, &host::shuffle);
  return s.result;
}

// ---- clusters -------------------------------------------------------------------------------

// Both are .aligned on the device: the whole warp must be there, or the emulator says so.
PTX_DEVICE void cluster_arrive() {
  emu::warp_barrier("cluster_arrive");
  emu::cluster_arrive();
}
PTX_DEVICE void cluster_wait() {
  emu::warp_barrier("cluster_wait");
  emu::cluster_wait();
}
PTX_DEVICE void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

PTX_DEVICE float dsmem_ld(const float* local, unsigned rank) {
  float value;
  memcpy(&value, emu::map_shared(local, rank, sizeof value, emu::kRead), sizeof value);
  return value;
}

// ---- programmatic dependent launch: kernels run one after the other here ----------------------

PTX_DEVICE void grid_wait() {}
PTX_DEVICE void grid_trigger() {}

// ---- global loads and stores ----------------------------------------------------------------

namespace host {

template <class T>
PTX_DEVICE T load(const void* from) {
  emu::check_global(from, sizeof(T), emu::kRead);
  T v;
  memcpy(&v, from, sizeof v);
  return v;
}
template <class T>
PTX_DEVICE void store(void* to, T v) {
  emu::check_global(to, sizeof(T), emu::kWrite);
  memcpy(to, &v, sizeof v);
}

}  // namespace host

PTX_DEVICE U4 ld_stream_v4(const void* from) { return host::load<U4>(from); }
PTX_DEVICE U4 ld_nc_v4(const void* from) { return host::load<U4>(from); }
PTX_DEVICE U4 ld_v4(const void* from) { return host::load<U4>(from); }
PTX_DEVICE void ld_stream_v4_if(U4& to, const void* from, bool valid) {
  if (valid) to = host::load<U4>(from);
}
PTX_DEVICE void ld_nc_v4_if(U4& to, const void* from, bool valid) {
  if (valid) to = host::load<U4>(from);
}
PTX_DEVICE void ld_v4_if(U4& to, const void* from, bool valid) {
  if (valid) to = host::load<U4>(from);
}
PTX_DEVICE U2 ld_nc_v2(const void* from) { return host::load<U2>(from); }
PTX_DEVICE U2 ld_v2(const void* from) { return host::load<U2>(from); }
PTX_DEVICE unsigned ld_nc_u32(const void* from) { return host::load<unsigned>(from); }
PTX_DEVICE unsigned ld_u32(const void* from) { return host::load<unsigned>(from); }
PTX_DEVICE float ld_nc_f32(const void* from) { return host::load<float>(from); }
PTX_DEVICE float ld_f32(const void* from) { return host::load<float>(from); }
PTX_DEVICE unsigned short ld_nc_u16(const void* from) { return host::load<unsigned short>(from); }
PTX_DEVICE unsigned short ld_u16(const void* from) { return host::load<unsigned short>(from); }

PTX_DEVICE void st_v4(void* to, U4 v) { host::store(to, v); }
PTX_DEVICE void st_v2(void* to, U2 v) { host::store(to, v); }
PTX_DEVICE void st_u32(void* to, unsigned v) { host::store(to, v); }
PTX_DEVICE void st_u16(void* to, unsigned short v) { host::store(to, v); }
PTX_DEVICE void st_f32(void* to, float v) { host::store(to, v); }

// ---- conversions ----------------------------------------------------------------------------
//
// Bit-exact twins of cvt (g++ 12 has no 16-bit float type in C++): to nearest even, subnormals
// kept, overflow to infinity, and every NaN becomes the device's canonical one, without its sign.

PTX_DEVICE float bits_to_f32(unsigned bits) {
  float v;
  memcpy(&v, &bits, sizeof v);
  return v;
}
PTX_DEVICE unsigned f32_to_bits(float v) {
  unsigned bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}

static float f16_to_f32(unsigned short bits) {
  const unsigned sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u, m = bits & 0x3ffu;
  if (exponent == 31) return bits_to_f32(m ? 0x7fffffffu : sign | 0x7f800000u);
  if (exponent == 0) {  // zero and subnormals: m * 2^-24, exact in f32
    const float v = static_cast<float>(m) * 0x1p-24f;
    return sign ? -v : v;
  }
  return bits_to_f32(sign | (exponent + 112) << 23 | m << 13);
}

static unsigned short f32_to_f16(float v) {
  const unsigned u = f32_to_bits(v), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return 0x7fff;
  if (a >= 0x477ff000u) return static_cast<unsigned short>(sign | 0x7c00u);  // >= 65520
  unsigned kept, lost, half;
  if (a >= 0x38800000u) {  // normal in f16: rebias the exponent, drop 13 bits
    kept = (a - 0x38000000u) >> 13;
    lost = a & 0x1fffu;
    half = 0x1000u;
  } else {  // subnormal: the 24-bit significand in units of 2^-24
    const unsigned shift = 126 - (a >> 23);  // 14 for [2^-15, 2^-14)
    if (shift > 24) return static_cast<unsigned short>(sign);  // below 2^-25
    const unsigned m = (a & 0x7fffffu) | 0x800000u;
    kept = m >> shift;
    lost = m & ((1u << shift) - 1);
    half = 1u << (shift - 1);
  }
  if (lost > half || (lost == half && (kept & 1))) ++kept;  // may carry into the exponent: right
  return static_cast<unsigned short>(sign | kept);
}

PTX_DEVICE float bf16_to_f32(unsigned short bits) {
  return bits_to_f32(static_cast<unsigned>(bits) << 16);
}
static unsigned short f32_to_bf16(float v) {
  const unsigned u = f32_to_bits(v);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<unsigned short>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

PTX_DEVICE void unpack_f16(unsigned pair, float& first, float& second) {
  first = f16_to_f32(static_cast<unsigned short>(pair));
  second = f16_to_f32(static_cast<unsigned short>(pair >> 16));
}
PTX_DEVICE void unpack_bf16(unsigned pair, float& first, float& second) {
  first = bits_to_f32(pair << 16);
  second = bits_to_f32(pair & 0xffff0000u);
}
PTX_DEVICE unsigned pack_f16(float first, float second) {
  return f32_to_f16(first) | static_cast<unsigned>(f32_to_f16(second)) << 16;
}
PTX_DEVICE unsigned pack_bf16(float first, float second) {
  return f32_to_bf16(first) | static_cast<unsigned>(f32_to_bf16(second)) << 16;
}

// ---- tensor cores ---------------------------------------------------------------------------
//
// d += sum over ascending k of a[k] b[k], each product exact and each sum rounded to f32 to nearest
// even. The hardware adds several products at once and truncates, in an order it does not document:
// results agree within a few units of the last place of the largest partial sum, not bit for bit.

namespace host {

struct Mma {
  float* d;
  unsigned a[4], b[2];
};

template <bool kBf16>
static void mma_16816(emu::Warp& w, Mma** lane) {
  if (w.size != 32) emu::fail("mma in a warp of %d lanes", w.size);
  float a[16][16], bt[8][16];
  for (int l = 0; l < 32; ++l) {
    const int g = l >> 2, k = (l & 3) * 2;
    for (int r = 0; r < 4; ++r) {
      float* to = &a[g + (r & 1) * 8][k + (r >> 1) * 8];
      if (kBf16)
        unpack_bf16(lane[l]->a[r], to[0], to[1]);
      else
        unpack_f16(lane[l]->a[r], to[0], to[1]);
    }
    for (int r = 0; r < 2; ++r) {
      float* to = &bt[g][k + r * 8];
      if (kBf16)
        unpack_bf16(lane[l]->b[r], to[0], to[1]);
      else
        unpack_f16(lane[l]->b[r], to[0], to[1]);
    }
  }
  for (int l = 0; l < 32; ++l)
    for (int r = 0; r < 4; ++r) {
      const float* row = a[(l >> 2) + (r >> 1) * 8];
      const float* column = bt[(l & 3) * 2 + (r & 1)];
      float sum = lane[l]->d[r];
      for (int k = 0; k < 16; ++k) sum += row[k] * column[k];
      lane[l]->d[r] = sum;
    }
}

}  // namespace host

PTX_DEVICE void mma_16816_f16(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                              unsigned b0, unsigned b1) {
  host::Mma m{d, {a0, a1, a2, a3}, {b0, b1}};
  emu::collective("mma_16816_f16", m, &host::mma_16816<false>);
}
PTX_DEVICE void mma_16816_bf16(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                               unsigned b0, unsigned b1) {
  host::Mma m{d, {a0, a1, a2, a3}, {b0, b1}};
  emu::collective("mma_16816_bf16", m, &host::mma_16816<true>);
}

// ---- arithmetic -----------------------------------------------------------------------------
//
// Correctly rounded here where the device is within 2 ulp (rsqrt, ex2).

PTX_DEVICE float rcp(float v) { return 1.0f / v; }
PTX_DEVICE float rsqrt(float v) { return static_cast<float>(1.0 / std::sqrt(double{v})); }
PTX_DEVICE float ex2(float v) {  // .ftz: subnormal operands and results are zero
  if (std::fabs(v) < 0x1p-126f) return 1.0f;
  const float r = static_cast<float>(std::exp2(double{v}));
  return r < 0x1p-126f ? 0.0f : r;
}
PTX_DEVICE float max_nan(float a, float b) {
  if (a != a || b != b) return bits_to_f32(0x7fffffffu);
  if (a == b) return std::signbit(a) ? b : a;  // +0 is greater than -0
  return a > b ? a : b;
}
PTX_DEVICE float min_nan(float a, float b) {
  if (a != a || b != b) return bits_to_f32(0x7fffffffu);
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}

}  // namespace ptx
