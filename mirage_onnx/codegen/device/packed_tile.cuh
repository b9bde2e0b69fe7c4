// Integers of quantized weights from a tile in shared memory to operand A of mma and wgmma.
//
// A register has two neighbours of the depth, 2t and 2t + 1 of eight; of a depth of 16 a lane has four:
// rows g and g + 8, the first and the second eight. Needs packed.cuh, included before.
#pragma once

// (integer - zero) * scale of the two integers in the lowest bits of `two`, each rounded once.
template <class T, class Q>
PTX_DEVICE unsigned scaled_pair(unsigned two, unsigned zero, unsigned short scale) {
  constexpr unsigned kMask = (1u << Q::kBits) - 1;
  constexpr unsigned kAbove = kFitsBytes<T> ? 0x64006400u : Q::kBits < 8 ? 0x43004300u : 0u;
  const unsigned apart =
      ptx::and_or(two, kMask, ptx::and_or(two << (16 - Q::kBits), kMask << 16, kAbove));
  if constexpr (kFitsBytes<T>) {
    return ptx::mul_f16x2(ptx::sub_f16x2(apart, 0x64006400u | twice(zero)), twice(scale));
  } else if constexpr (Q::kBits < 8) {
    const unsigned whole = ptx::fma_bf16x2(apart, 0x3f803f80u, 0xc300c300u | twice(zero));
    return ptx::fma_bf16x2(whole, twice(scale), 0x80008000u);  // + -0: the product as it is
  } else {
    const float s = T::widen(scale), z = static_cast<float>(zero);
    return T::pack((static_cast<float>(apart & 0xffffu) - z) * s, (static_cast<float>(apart >> 16) - z) * s);
  }
}

// The integers of a row of a depth of 16, as they are stored: lane t's pair of either eight.
template <class Q>
PTX_DEVICE void two_pairs(const unsigned char* row, int t, unsigned (&to)[2]) {
  if constexpr (Q::kBits == 8) {
    to[0] = *reinterpret_cast<const unsigned short*>(row + 2 * t) ^ Q::kFlip;
    to[1] = *reinterpret_cast<const unsigned short*>(row + 8 + 2 * t) ^ Q::kFlip;
  } else if constexpr (Q::kBits == 4) {
    const ptx::U2 w = *reinterpret_cast<const ptx::U2*>(row);
    to[0] = (w.x ^ Q::kFlip) >> (8 * t);
    to[1] = (w.y ^ Q::kFlip) >> (8 * t);
  } else {
    const unsigned w = *reinterpret_cast<const unsigned*>(row);
    to[0] = w >> (4 * t);
    to[1] = w >> (16 + 4 * t);
  }
}

// Operand A of all steps: `row` is row g of the warp, `below` bytes before row g + 8; a block of `Repeat`
// has one scale and one zero point.
template <class T, class Q, int Repeat, int Steps, int Blocks>
PTX_DEVICE void widen_tile(unsigned (&a)[Steps][4], const unsigned char* row, int below, int t,
                           const unsigned short (&scales)[2][Blocks], const unsigned char (&zeros)[2][Blocks]) {
#pragma unroll
  for (int k = 0; k < Steps; ++k) {
    const int block = Blocks > 1 ? 16 * k / Repeat : 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      unsigned pairs[2];
      two_pairs<Q>(row + h * below + 2 * k * Q::kBits, t, pairs);
      a[k][h] = scaled_pair<T, Q>(pairs[0], zeros[h][block], scales[h][block]);
      a[k][2 + h] = scaled_pair<T, Q>(pairs[1], zeros[h][block], scales[h][block]);
    }
  }
}

// The same where zero is what the type has for it.
template <class T, class Q, int Repeat, int Steps, int Blocks>
PTX_DEVICE void widen_tile(unsigned (&a)[Steps][4], const unsigned char* row, int below, int t,
                           const unsigned short (&scales)[2][Blocks]) {
  unsigned char zeros[2][Blocks];
#pragma unroll
  for (int b = 0; b < Blocks; ++b) zeros[0][b] = zeros[1][b] = static_cast<unsigned char>(Q::kZero);
  widen_tile<T, Q, Repeat>(a, row, below, t, scales, zeros);
}
