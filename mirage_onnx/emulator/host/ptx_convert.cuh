// Twin of codegen/device/ptx_convert.cuh: bit for bit, but for the approximations.
#pragma once

#include <cstring>

// Functions of C only: <cmath> is 20,000 lines, a fifth of the time that a small kernel takes to compile.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS

namespace ptx {

// ---- conversions
//
// Bit-exact twins of cvt (g++ 12 has no 16-bit float type in C++): to nearest even, subnormals
// kept, overflow to infinity, and a NaN becomes the device's canonical one, without its sign.

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

EMU_INLINE float f16_to_f32(unsigned short bits) {
  const unsigned sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u, m = bits & 0x3ffu;
  if (exponent == 31) return bits_to_f32(m ? 0x7fffffffu : sign | 0x7f800000u);
  if (exponent == 0) {  // zero and subnormals: m * 2^-24, exact in f32
    const float v = static_cast<float>(m) * 0x1p-24f;
    return sign ? -v : v;
  }
  return bits_to_f32(sign | (exponent + 112) << 23 | m << 13);
}

EMU_INLINE unsigned short f32_to_f16(float v) {
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

EMU_INLINE unsigned f32_to_tf32(float v) {
  const unsigned u = f32_to_bits(v), a = u & 0x7fffffffu;
  // The carry may reach infinity. A NaN is only cut, which may make an infinity of it.
  return (a < 0x7f800000u ? u + 0x1000u : u) & 0xffffe000u;
}

PTX_DEVICE float bf16_to_f32(unsigned short bits) {
  return bits_to_f32(static_cast<unsigned>(bits) << 16);
}
EMU_INLINE unsigned short f32_to_bf16(float v) {
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

// ---- arithmetic
//
// Correctly rounded here where the device is within 2 ulp (rsqrt, ex2, expf, ...); with EMU_ULPS up to that many
// beside it, always the same of one number. 0, 1 and infinity stay: the device has them exactly.

namespace host {

EMU_INLINE float beside(float r) {
#ifdef EMU_ULPS
  const unsigned bits = f32_to_bits(r), all = 2 * EMU_ULPS + 1;
  const bool exact = r == 0.0f || r == 1.0f || (bits & 0x7f800000u) == 0x7f800000u;
  if (!exact) return bits_to_f32(bits + (bits * 2654435761u >> 16) % all - EMU_ULPS);
#endif
  return r;
}

}  // namespace host
#ifdef EMU_ULPS
#define expf(v) ptx::host::beside(__builtin_expf(static_cast<float>(v)))
#define logf(v) ptx::host::beside(__builtin_logf(static_cast<float>(v)))
#define tanhf(v) ptx::host::beside(__builtin_tanhf(static_cast<float>(v)))
#define erff(v) ptx::host::beside(__builtin_erff(static_cast<float>(v)))
#endif

PTX_DEVICE float rcp(float v) { return v != v ? bits_to_f32(0x7fffffffu) : 1.0f / v; }
PTX_DEVICE float rsqrt(float v) {
  if (!(v >= 0.0f)) return bits_to_f32(0x7fffffffu);
  return __builtin_copysignf(host::beside(static_cast<float>(1.0 / __builtin_sqrt(double{v}))), v);
}
PTX_DEVICE float ex2(float v) {  // .ftz: subnormal operands and results are zero
  if (v != v) return bits_to_f32(0x7fffffffu);
  if (__builtin_fabsf(v) < 0x1p-126f) return 1.0f;
  const float r = static_cast<float>(__builtin_exp2(double{v}));
  return r < 0x1p-126f ? 0.0f : host::beside(r);
}
namespace host {

// By way of an fp32 number that is odd where it is not exact: rounding it again is then right.
EMU_INLINE float odd_f32(double v) {
  float near = static_cast<float>(v);
  if (near != near || double{near} == v) return near;
  if (__builtin_fabs(double{near}) > __builtin_fabs(v)) near = __builtin_nextafterf(near, 0.0f);
  return bits_to_f32(f32_to_bits(near) | 1u);
}

// a + b, odd where it is not exact: a small b still says which way a tie of a rounds. What is lost is
// known exactly (Knuth's two-sum).
EMU_INLINE double odd_sum(double a, double b) {
  const double s = a + b, more = s - a, lost = (a - (s - more)) + (b - more);
  if (!__builtin_isfinite(lost) || lost == 0) return s;
  const double cut = (lost < 0) != (s < 0) ? __builtin_nextafter(s, 0.0) : s;
  unsigned long long bits;
  memcpy(&bits, &cut, sizeof bits);
  bits |= 1;
  double odd;
  memcpy(&odd, &bits, sizeof odd);
  return odd;
}

}  // namespace host

// Of pairs of 16-bit numbers. fp32 has more than twice the bits of fp16 and two more, so rounding a
// sum or a product to it first changes nothing.
EMU_INLINE unsigned sub_f16x2(unsigned a, unsigned b) {
  float x[2], y[2];
  unpack_f16(a, x[0], x[1]);
  unpack_f16(b, y[0], y[1]);
  return pack_f16(x[0] - y[0], x[1] - y[1]);
}
EMU_INLINE unsigned mul_f16x2(unsigned a, unsigned b) {
  float x[2], y[2];
  unpack_f16(a, x[0], x[1]);
  unpack_f16(b, y[0], y[1]);
  return pack_f16(x[0] * y[0], x[1] * y[1]);
}
EMU_INLINE unsigned fma_f16x2(unsigned a, unsigned b, unsigned c) {
  float x[2], y[2], z[2];
  unpack_f16(a, x[0], x[1]);
  unpack_f16(b, y[0], y[1]);
  unpack_f16(c, z[0], z[1]);
  return pack_f16(host::odd_f32(host::odd_sum(double{x[0]} * y[0], z[0])),
                  host::odd_f32(host::odd_sum(double{x[1]} * y[1], z[1])));
}
EMU_INLINE unsigned fma_bf16x2(unsigned a, unsigned b, unsigned c) {
  float x[2], y[2], z[2];
  unpack_bf16(a, x[0], x[1]);
  unpack_bf16(b, y[0], y[1]);
  unpack_bf16(c, z[0], z[1]);
  return pack_bf16(host::odd_f32(host::odd_sum(double{x[0]} * y[0], z[0])),
                   host::odd_f32(host::odd_sum(double{x[1]} * y[1], z[1])));
}
PTX_DEVICE unsigned and_or(unsigned v, unsigned mask, unsigned bits) { return (v & mask) | bits; }
PTX_DEVICE unsigned low_bytes(unsigned v, unsigned above) {
  return (v & 0xffu) | (v & 0xff00u) << 8 | (above & 0xffu) * 0x01000100u;
}
PTX_DEVICE unsigned high_bytes(unsigned v, unsigned above) { return low_bytes(v >> 16, above); }
PTX_DEVICE unsigned low_halves(unsigned a, unsigned b) { return (a & 0xffffu) | b << 16; }
PTX_DEVICE unsigned high_halves(unsigned a, unsigned b) { return a >> 16 | (b & 0xffff0000u); }
PTX_DEVICE float max_nan(float a, float b) {
  if (a != a || b != b) return bits_to_f32(0x7fffffffu);
  if (a == b) return __builtin_signbit(a) ? b : a;  // +0 is greater than -0
  return a > b ? a : b;
}
PTX_DEVICE float min_nan(float a, float b) {
  if (a != a || b != b) return bits_to_f32(0x7fffffffu);
  if (a == b) return __builtin_signbit(a) ? a : b;
  return a < b ? a : b;
}

}  // namespace ptx
