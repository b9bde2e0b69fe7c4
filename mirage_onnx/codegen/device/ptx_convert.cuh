// Conversions between number formats, and arithmetic that C++ does not name. Part of ptx.cuh.
#pragma once

namespace ptx {

// ---- conversions: 16-bit values are bits; packed pairs have the first value in the low half --

PTX_DEVICE float f16_to_f32(unsigned short bits) {
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
  return v;
}
PTX_DEVICE unsigned short f32_to_f16(float v) {  // to nearest even; overflow to infinity
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
  return bits;
}
PTX_DEVICE float bf16_to_f32(unsigned short bits) {
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}
PTX_DEVICE unsigned short f32_to_bf16(float v) {
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(v));
  return bits;
}
PTX_DEVICE void unpack_f16(unsigned pair, float& first, float& second) {
  asm("{\n\t.reg .b16 lo, hi;\n\tmov.b32 {lo, hi}, %2;\n\t"
      "cvt.f32.f16 %0, lo;\n\tcvt.f32.f16 %1, hi;\n\t}"
      : "=f"(first), "=f"(second)
      : "r"(pair));
}
PTX_DEVICE void unpack_bf16(unsigned pair, float& first, float& second) {
  first = __uint_as_float(pair << 16);
  second = __uint_as_float(pair & 0xffff0000u);
}
PTX_DEVICE unsigned pack_f16(float first, float second) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
PTX_DEVICE unsigned pack_bf16(float first, float second) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
// To the 19 bits of tf32, to nearest, ties away from zero; the low 13 bits are zero. NaN loses its
// low bits too (seen on the H200): one that has no others becomes infinity. Arithmetic makes none
// such.
PTX_DEVICE unsigned f32_to_tf32(float v) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(v));
  return bits;
}
PTX_DEVICE float bits_to_f32(unsigned bits) { return __uint_as_float(bits); }
PTX_DEVICE unsigned f32_to_bits(float v) { return __float_as_uint(v); }

// ---- arithmetic -----------------------------------------------------------------------------

PTX_DEVICE float rcp(float v) { return __frcp_rn(v); }   // 1 / v, correctly rounded
PTX_DEVICE float rsqrt(float v) { return rsqrtf(v); }    // within 2 ulp
PTX_DEVICE float ex2(float v) {                          // 2 ^ v, within 2 ulp
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
// Of two 16-bit numbers in a register, each rounded to nearest even; subnormals are kept.
PTX_DEVICE unsigned sub_f16x2(unsigned a, unsigned b) {
  unsigned r;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
PTX_DEVICE unsigned mul_f16x2(unsigned a, unsigned b) {
  unsigned r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
PTX_DEVICE unsigned fma_f16x2(unsigned a, unsigned b, unsigned c) {  // a * b + c, rounded once
  unsigned r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
PTX_DEVICE unsigned fma_bf16x2(unsigned a, unsigned b, unsigned c) {  // a * b + c, rounded once
  unsigned r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
// v & mask | bits, as one instruction: the compiler makes two of two constants.
PTX_DEVICE unsigned and_or(unsigned v, unsigned mask, unsigned bits) {
  unsigned r;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(v), "r"(mask), "r"(bits));
  return r;
}
// The low (high) halves of a and b, that of a below.
PTX_DEVICE unsigned low_halves(unsigned a, unsigned b) { return __byte_perm(a, b, 0x5410); }
PTX_DEVICE unsigned high_halves(unsigned a, unsigned b) { return __byte_perm(a, b, 0x7632); }
// Bytes 0 and 1 (2 and 3) of v, each below the lowest byte of `above`.
PTX_DEVICE unsigned low_bytes(unsigned v, unsigned above) { return __byte_perm(v, above, 0x4140); }
PTX_DEVICE unsigned high_bytes(unsigned v, unsigned above) { return __byte_perm(v, above, 0x4342); }
PTX_DEVICE float max_nan(float a, float b) {  // maximum; NaN where either is NaN
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
PTX_DEVICE float min_nan(float a, float b) {  // minimum; NaN where either is NaN
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

}  // namespace ptx
