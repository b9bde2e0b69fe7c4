// Matrix fragments and tensor cores, by the whole warp. Part of ptx.cuh.
// PTX ISA, "Warp-Level Matrix Instructions". With g = lane / 4 and t = lane % 4.
#pragma once

#include "ptx_sync.cuh"

namespace ptx {

// ---- 8 x 8 tiles of 16-bit elements in shared memory ------------------------------------------
//
// Lanes 8i .. 8i+7 give the addresses of the rows (16 bytes, aligned) of tile i; the addresses of
// lanes beyond the last tile are not used. Register i holds tile i: the elements [g][2t],
// [g][2t+1], the first in the low half. _trans transposes each tile on the way: [2t][g], [2t+1][g].

PTX_DEVICE unsigned ldmatrix_x1(const void* row) {
  unsigned v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
               : "=r"(v)
               : "r"(device::shared(row))
               : "memory");
  return v;
}
PTX_DEVICE unsigned ldmatrix_x1_trans(const void* row) {
  unsigned v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
               : "=r"(v)
               : "r"(device::shared(row))
               : "memory");
  return v;
}
PTX_DEVICE U2 ldmatrix_x2(const void* row) {
  U2 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "r"(device::shared(row))
               : "memory");
  return v;
}
PTX_DEVICE U2 ldmatrix_x2_trans(const void* row) {
  U2 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "r"(device::shared(row))
               : "memory");
  return v;
}
PTX_DEVICE U4 ldmatrix_x4(const void* row) {
  U4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(device::shared(row))
               : "memory");
  return v;
}
PTX_DEVICE U4 ldmatrix_x4_trans(const void* row) {
  U4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(device::shared(row))
               : "memory");
  return v;
}

// The stores: the same places; sm_90.
PTX_DEVICE void stmatrix_x1(void* row, unsigned v) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(device::shared(row)),
               "r"(v)
               : "memory");
}
PTX_DEVICE void stmatrix_x1_trans(void* row, unsigned v) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(
                   device::shared(row)),
               "r"(v)
               : "memory");
}
PTX_DEVICE void stmatrix_x2(void* row, U2 v) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(
                   device::shared(row)),
               "r"(v.x), "r"(v.y)
               : "memory");
}
PTX_DEVICE void stmatrix_x2_trans(void* row, U2 v) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(
                   device::shared(row)),
               "r"(v.x), "r"(v.y)
               : "memory");
}
PTX_DEVICE void stmatrix_x4(void* row, U4 v) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   device::shared(row)),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
PTX_DEVICE void stmatrix_x4_trans(void* row, U4 v) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   device::shared(row)),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

// The transpose of a tile in registers: from [g][2t], [g][2t+1] to [2t][g], [2t+1][g].
PTX_DEVICE unsigned movmatrix(unsigned v) {
  unsigned r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
  return r;
}

// ---- tensor cores: d += a b -------------------------------------------------------------------
//
// D is 16 x 8: d[0], d[1] = D[g][2t], D[g][2t+1]; d[2], d[3] = D[g+8][2t], D[g+8][2t+1].
// 16-bit operands, each register two values, the lower k first:
//   a0 = A[g][2t..], a1 = A[g+8][2t..]; with k = 16 also a2 = A[g][2t+8..], a3 = A[g+8][2t+8..]
//   b0 = B[2t..][g];                    with k = 16 also b1 = B[2t+8..][g]
// tf32 operands, each register one value, of which the low 13 bits are ignored:
//   a0 = A[g][t], a1 = A[g+8][t]; with k = 8 also a2 = A[g][t+4], a3 = A[g+8][t+4]
//   b0 = B[t][g];                 with k = 8 also b1 = B[t+4][g]
// Products are exact; how they are added is not documented: see the emulator's ptx_matrix.cuh.

PTX_DEVICE void mma_16816_f16(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                              unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
PTX_DEVICE void mma_16816_bf16(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                               unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
PTX_DEVICE void mma_1688_f16(float (&d)[4], unsigned a0, unsigned a1, unsigned b0) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(b0));
}
PTX_DEVICE void mma_1688_bf16(float (&d)[4], unsigned a0, unsigned a1, unsigned b0) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(b0));
}
PTX_DEVICE void mma_1688_tf32(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                              unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
PTX_DEVICE void mma_1684_tf32(float (&d)[4], unsigned a0, unsigned a1, unsigned b0) {
  asm volatile(
      "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

}  // namespace ptx
