// Tensor-core fragments of a streaming kernel. With g = lane / 4 and t = lane % 4:
//
//   rows x depth (B operand):     lane holds depth 8t .. 8t+7 of row g of each 8-row tile
//   columns x depth (A operand):  lane holds depth 8t .. 8t+7 of columns g and g + 8
//
// of a step of 32 depth elements: eight elements are one Eight<T>, one 16-byte load. An mma
// contracts 16 depth slots, of which lane t supplies 2t, 2t+1, 2t+8, 2t+9. The order of the slots is
// free as long as both operands have the same, so the first mma of a step takes elements 0..3 of
// each lane's eight and the second takes 4..7, with no data movement at all.
// Needs ptx.cuh and vector.cuh, included before.
#pragma once

PTX_DEVICE void mma_16816(F16, float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                          unsigned b0, unsigned b1) {
  ptx::mma_16816_f16(d, a0, a1, a2, a3, b0, b1);
}
PTX_DEVICE void mma_16816(BF16, float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                          unsigned b0, unsigned b1) {
  ptx::mma_16816_bf16(d, a0, a1, a2, a3, b0, b1);
}

// A 16 x 8 accumulator whose rows g and g + 8 are two arrays.
template <class T>
PTX_DEVICE void mma_rows(T type, float (&low)[2], float (&high)[2], unsigned a0, unsigned a1,
                         unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  float d[4] = {low[0], low[1], high[0], high[1]};
  mma_16816(type, d, a0, a1, a2, a3, b0, b1);
  low[0] = d[0];
  low[1] = d[1];
  high[0] = d[2];
  high[1] = d[3];
}

// a, or `most` if that is less; a, or `least` if that is more.
PTX_DEVICE int at_most(int a, int most) { return a < most ? a : most; }
PTX_DEVICE int at_least(int a, int least) { return a > least ? a : least; }

// d[column][row] += sum over the 32 depth elements of columns * rows: 16 columns (low: g, high:
// g + 8), 8 rows.
template <class T>
PTX_DEVICE void mma_step(float (&d)[4], const Eight<T>& low, const Eight<T>& high,
                         const Eight<T>& rows) {
  mma_16816(T{}, d, low.v.x, high.v.x, low.v.y, high.v.y, rows.v.x, rows.v.y);
  mma_16816(T{}, d, low.v.z, high.v.z, low.v.w, high.v.w, rows.v.z, rows.v.w);
}

// Writes an accumulator to a [row][column] tile with rows `Pitch` floats apart: d[0], d[1] are
// (column g; rows 2t, 2t + 1), d[2], d[3] the same rows of column g + 8. With Pitch % 16 == 4 the
// 32 lanes of each store hit 32 different banks.
template <int Pitch>
PTX_DEVICE void store_accumulator(float* tile, const float (&d)[4]) {
  const int g = ptx::lane() / 4;
  const int t = ptx::lane() % 4;
  tile[(2 * t) * Pitch + g] = d[0];
  tile[(2 * t + 1) * Pitch + g] = d[1];
  tile[(2 * t) * Pitch + g + 8] = d[2];
  tile[(2 * t + 1) * Pitch + g + 8] = d[3];
}
