// Integers of quantized weights, several in a register: memory -> the operands of tensor cores.
//
// Q2, Q4 and Q8 are tags: an integer is stored with kZero added, so that zero is the bits of kZero; of
// several in a byte the first has the lowest bits. S4 and S8 are stored in two's complement, and become those
// where they are taken out of memory: the bits kFlip of a word turn. P4M3 and P5M2 are floats of 8 bits, whose
// zero is no bits. A lane of a streaming kernel has 8 * Eights consecutive ones of a row (Lane), 16 bytes or
// more, and widens eight of them for each step of mma.
// Needs ptx.cuh, vector.cuh and numeric.cuh, included before.
#pragma once

struct Q2 {
  using Storage = unsigned char;
  static constexpr int kBits = 2;
  static constexpr unsigned kFlip = 0;
  static constexpr unsigned kZero = 2;
  static PTX_DEVICE float widen(Storage stored) { return static_cast<float>(stored) - 2.0f; }
};

struct Q4 {
  using Storage = unsigned char;
  static constexpr int kBits = 4;
  static constexpr unsigned kFlip = 0;
  static constexpr unsigned kZero = 8;
  static PTX_DEVICE float widen(Storage stored) { return static_cast<float>(stored) - 8.0f; }
};

struct Q8 {
  using Storage = unsigned char;
  static constexpr int kBits = 8;
  static constexpr unsigned kFlip = 0;
  static constexpr unsigned kZero = 128;
  static PTX_DEVICE float widen(Storage stored) { return static_cast<float>(stored) - 128.0f; }
};

struct Float8 {
  using Storage = unsigned char;
  static constexpr int kBits = 8;
  static constexpr unsigned kFlip = 0;
  static constexpr unsigned kZero = 0;
};

// Seven bits of e4m3 lie in fp16 as 2^-8 of it; its infinities are numbers, and one NaN.
struct P4M3 : Float8 {
  static PTX_DEVICE float widen(Storage stored) {
    const unsigned low = stored & 0x7fu, sign = (stored & 0x80u) << 8;
    const float v = 256.0f * ptx::f16_to_f32(static_cast<unsigned short>(sign | low << 7));
    return low == 0x7fu ? ptx::bits_to_f32(0x7fffffffu) : v;
  }
};

// The high byte of fp16.
struct P5M2 : Float8 {
  static PTX_DEVICE float widen(Storage stored) {
    return ptx::f16_to_f32(static_cast<unsigned short>(stored << 8));
  }
};

struct S4 : Q4 {
  static constexpr unsigned kFlip = 0x88888888u;
};

struct S8 : Q8 {
  static constexpr unsigned kFlip = 0x80808080u;
};

// Whether 16 bits of a type hold 1024 and a byte.
template <class T>
constexpr bool kFitsBytes = false;
template <>
constexpr bool kFitsBytes<F16> = true;

// One integer as it is stored, `place` of them behind `row`.
template <class Q, Path P>
PTX_DEVICE unsigned char load_packed(const unsigned char* row, int place) {
  constexpr int kInByte = 8 / Q::kBits;
  const unsigned char* from = row + place / kInByte;
  const unsigned byte = P == Path::kCoherent ? ptx::ld_u8(from) : ptx::ld_nc_u8(from);
  const unsigned bits = (byte ^ Q::kFlip) >> (place % kInByte * Q::kBits);
  return static_cast<unsigned char>(bits & ((1u << Q::kBits) - 1));
}

// ---- the integers of a lane ------------------------------------------------------------------

// Starts as zeros.
template <class Q, int Eights>
struct Lane {
  static constexpr int kVectors = Eights * Q::kBits / 16;
  static constexpr unsigned kZeros = Q::kZero * (0xffffffffu / ((1u << Q::kBits) - 1)) ^ Q::kFlip;
  ptx::U4 v[kVectors];
  PTX_DEVICE Lane() {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) v[i] = {kZeros, kZeros, kZeros, kZeros};
  }
  PTX_DEVICE unsigned word(int i) const {
    const ptx::U4 four = v[i / 4];
    return (i % 4 < 2 ? (i % 4 == 0 ? four.x : four.y) : (i % 4 == 2 ? four.z : four.w)) ^ Q::kFlip;
  }
};

template <class Q, int Eights, Path P>
PTX_DEVICE Lane<Q, Eights> load_lane(const unsigned char* from) {
  Lane<Q, Eights> lane;
#pragma unroll
  for (int i = 0; i < Lane<Q, Eights>::kVectors; ++i) lane.v[i] = load16<P>(from + 16 * i);
  return lane;
}

// Where `valid`; otherwise `to` keeps its value and `from` is not read.
template <class Q, int Eights, Path P>
PTX_DEVICE void load_lane_if(Lane<Q, Eights>& to, const unsigned char* from, bool valid) {
#pragma unroll
  for (int i = 0; i < Lane<Q, Eights>::kVectors; ++i) load16_if<P>(to.v[i], from + 16 * i, valid);
}

// Integer `j` of the lane's part `part`, as it is stored.
template <class Q, int Eights>
PTX_DEVICE unsigned stored_integer(const Lane<Q, Eights>& lane, int part, int j) {
  const int bit = (8 * part + j) * Q::kBits;
  return lane.word(bit / 32) >> bit % 32 & ((1u << Q::kBits) - 1);
}

// The bits of an integer below those of 2^23 in fp32 are 2^23 more than it: a difference that is exact, of
// which a multiprocessor makes eight times as many as it converts integers.
template <class Q, int Eights>
PTX_DEVICE void unpack8(const Lane<Q, Eights>& lane, int part, float (&to)[8]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if constexpr (Q::kZero != 0) {
      const int bit = (8 * part + j) * Q::kBits;
      const unsigned word = lane.word(bit / 32) >> bit % 32;
      const unsigned above = ptx::and_or(word, (1u << Q::kBits) - 1, 0x4b000000u);
      to[j] = ptx::bits_to_f32(above) - (8388608.0f + Q::kZero);
    } else {
      to[j] = Q::widen(static_cast<typename Q::Storage>(stored_integer(lane, part, j)));
    }
  }
}

// ---- (integers - zero) * scale in 16 bits ----------------------------------------------------
//
// The bits of an integer below those of 1024 in fp16 (128 in bf16) are 1024 (128) more than it, and
// those of the zero point too: their difference is exact. One rounding is left, of the product.
//
// An Eight may be in the order 0, 4, 1, 5, 2, 6, 3, 7 (*apart*), in which four bits come out of a
// word; both operands of a step of mma have to be, which sums up over them.

PTX_DEVICE unsigned twice(unsigned low) { return low | low << 16; }

template <class T>
struct Fours;

template <>
struct Fours<F16> {
  unsigned zeros, sixteenths, scales;
  PTX_DEVICE Fours(unsigned zero, unsigned scale)
      : zeros(0x64006400u | twice(zero)), sixteenths(0xd400d400u | twice(zero << 4)), scales(twice(scale)) {}
  // Integers i and i + 4 of a word. In the higher four bits of a byte they are 16 times as much.
  PTX_DEVICE unsigned whole(unsigned w, int i) const {
    const unsigned b = i < 2 ? w : w >> 8;
    return i % 2 == 0 ? ptx::sub_f16x2(ptx::and_or(b, 0x000f000fu, 0x64006400u), zeros)
                      : ptx::fma_f16x2(ptx::and_or(b, 0x00f000f0u, 0x64006400u), 0x2c002c00u, sixteenths);
  }
  PTX_DEVICE unsigned pair(unsigned w, int i) const { return ptx::mul_f16x2(whole(w, i), scales); }
};

template <>
struct Fours<BF16> {
  unsigned zeros, scales;
  PTX_DEVICE Fours(unsigned zero, unsigned scale) : zeros(0xc300c300u | twice(zero)), scales(twice(scale)) {}
  PTX_DEVICE unsigned whole(unsigned w, int i) const {
    return ptx::fma_bf16x2(ptx::and_or(w >> (4 * i), 0x000f000fu, 0x43004300u), 0x3f803f80u, zeros);
  }
  PTX_DEVICE unsigned pair(unsigned w, int i) const {
    return ptx::fma_bf16x2(whole(w, i), scales, 0x80008000u);  // + -0: the product as it is
  }
};

// The lane's part `part`, less `zero` (as it is stored), times the scale with the bits `scale`, apart.
template <class T, class Q, int Eights>
PTX_DEVICE Eight<T> scaled8_apart(const Lane<Q, Eights>& lane, int part, unsigned short scale,
                                  unsigned zero = Q4::kZero) {
  const Fours<T> fours(zero, scale);
  const unsigned w = lane.word(part);
  Eight<T> e;
  e.v = {fours.pair(w, 0), fours.pair(w, 1), fours.pair(w, 2), fours.pair(w, 3)};
  return e;
}

// Without a scale, which sums over them take later (add_scaled).
template <class T, class Q, int Eights>
PTX_DEVICE Eight<T> integers8_apart(const Lane<Q, Eights>& lane, int part, unsigned zero = Q4::kZero) {
  const Fours<T> fours(zero, 0);
  const unsigned w = lane.word(part);
  Eight<T> e;
  e.v = {fours.whole(w, 0), fours.whole(w, 1), fours.whole(w, 2), fours.whole(w, 3)};
  return e;
}

// Accumulators of mma, d += sums times the scales of columns g (low) and g + 8 (high).
template <class T>
PTX_DEVICE void add_scaled(float (&d)[4], const float (&sums)[4], unsigned short low, unsigned short high) {
  const float a = T::widen(low), b = T::widen(high);
  d[0] = fmaf(sums[0], a, d[0]);
  d[1] = fmaf(sums[1], a, d[1]);
  d[2] = fmaf(sums[2], b, d[2]);
  d[3] = fmaf(sums[3], b, d[3]);
}

// scaled8_apart in order.
template <class T, class Q, int Eights>
PTX_DEVICE Eight<T> scaled8(const Lane<Q, Eights>& lane, int part, unsigned short scale,
                            unsigned zero = Q::kZero) {
  Eight<T> e;
  if constexpr (Q::kBits == 4) {
    const ptx::U4 p = scaled8_apart<T>(lane, part, scale, zero).v;
    e.v = {ptx::low_halves(p.x, p.y), ptx::low_halves(p.z, p.w), ptx::high_halves(p.x, p.y),
           ptx::high_halves(p.z, p.w)};
  } else if constexpr (Q::kBits == 8 && Q::kZero != 0 && kFitsBytes<T>) {
    const unsigned zeros = 0x64006400u | twice(zero), scales = twice(scale);
    unsigned p[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // integers 2 i and 2 i + 1
      const unsigned w = lane.word(2 * part + i / 2);
      p[i] = ptx::sub_f16x2(i % 2 ? ptx::high_bytes(w, 0x64u) : ptx::low_bytes(w, 0x64u), zeros);
      p[i] = ptx::mul_f16x2(p[i], scales);
    }
    e.v = {p[0], p[1], p[2], p[3]};
  } else {  // in fp32, which rounds the same product: bf16 has no room for 8 bits below 128
    float f[8];
    unpack8(lane, part, f);
    const float s = T::widen(scale), z = static_cast<float>(zero) - static_cast<float>(Q::kZero);
#pragma unroll
    for (int j = 0; j < 8; ++j) f[j] = (f[j] - z) * s;
    e = pack8<T>(f);
  }
  return e;
}

// ---- the other operand, apart ----------------------------------------------------------------

template <class T>
PTX_DEVICE Eight<T> pack8_apart(const float (&from)[8]) {
  Eight<T> e;
  e.v = {T::pack(from[0], from[4]), T::pack(from[1], from[5]), T::pack(from[2], from[6]),
         T::pack(from[3], from[7])};
  return e;
}

template <class T>
PTX_DEVICE Eight<T> apart(const Eight<T>& in_order) {
  const ptx::U4 v = in_order.v;
  Eight<T> e;
  e.v = {ptx::low_halves(v.x, v.z), ptx::high_halves(v.x, v.z), ptx::low_halves(v.y, v.w),
         ptx::high_halves(v.y, v.w)};
  return e;
}

// Element by element, each product rounded once.
template <class T>
PTX_DEVICE Eight<T> product8(const Eight<T>& a, const Eight<T>& b) {
  const auto two = [](unsigned x, unsigned y) {
    if constexpr (kFitsBytes<T>) return ptx::mul_f16x2(x, y);
    return ptx::fma_bf16x2(x, y, 0x80008000u);
  };
  Eight<T> e;
  e.v = {two(a.v.x, b.v.x), two(a.v.y, b.v.y), two(a.v.z, b.v.z), two(a.v.w, b.v.w)};
  return e;
}

// ---- products in fp32, by multiply-adds --------------------------------------------------------
//
// Lane (g, t) has depth 8t .. 8t+7 of columns g and g + 8, and of row g of a tile of eight. Each row goes
// around the lanes; what they sum up over their own depth is added up over the quad behind the loop.

// The eight of row `row`, which the lanes of its group have.
PTX_DEVICE void row_of(const float (&rows)[8], int row, float (&to)[8]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) to[j] = ptx::shfl(rows[j], 4 * row + ptx::lane() % 4);
}

PTX_DEVICE void multiply8(float (&sums)[2], const float (&low)[8], const float (&high)[8],
                          const float (&row)[8]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    sums[0] = fmaf(low[j], row[j], sums[0]);
    sums[1] = fmaf(high[j], row[j], sums[1]);
  }
}

// Sums of the lanes to where mma has them: rows 2t and 2t + 1 of columns g and g + 8.
template <int Rows>
PTX_DEVICE void to_accumulator(float (&d)[4], const float (&sums)[Rows][2]) {
  const int t = ptx::lane() % 4;
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = quad_reduce<Sum>(sums[r][h]);
      if (t == r / 2) d[2 * h + r % 2] = sum;
    }
  }
}
