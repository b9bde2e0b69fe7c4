// Twin of codegen/device/ptx_warpgroup.cuh. The device's sums are taken to be those of mma.m16n8k16, bit
// for bit; that has not been measured for wgmma.
#pragma once

#include "ptx_matrix.cuh"

namespace ptx {

PTX_DEVICE U64 wgmma_tile(const void* at) {
  const U64 kSwizzle128 = 1ull << 62, kGroup = static_cast<U64>(1024 >> 4) << 32;
  return kSwizzle128 | kGroup | 1ull << 16 | emu::shared_offset(at) >> 4;
}

PTX_DEVICE U64 wgmma_turned_tile(const void* at, unsigned across) {
  return (wgmma_tile(at) & ~(0x3fffull << 16)) | static_cast<U64>(across >> 4) << 16;
}

PTX_DEVICE void wgmma_fence() { emu::wgmma_fence(); }
PTX_DEVICE void wgmma_commit() { emu::wgmma_commit(); }
template <int N>
PTX_DEVICE void wgmma_wait() {
  emu::wgmma_wait(N);
}
template <int J>
PTX_DEVICE void wgmma_hold(float (&d)[2][J][2]) {
  static_cast<void>(d);  // what is under way is poison
}

PTX_DEVICE void wgmma_beside(float x) { static_cast<void>(x); }
template <int N>
PTX_DEVICE void registers_give() {}
template <int N>
PTX_DEVICE void registers_take() {}
PTX_DEVICE int pinned(int value) { return value; }
template <class T>
PTX_DEVICE T* pinned(T* at) {
  return at;
}

namespace host {

// 16 rows, 8 columns, a depth of 16, by the registers of the lanes of a warp.
template <Operand kType>
EMU_HOST static void warpgroup_tile(float (*d)[4], const unsigned (*a)[4], const unsigned (*b)[2]) {
  Mma all[32];
  Mma* lane[32];
  for (int l = 0; l < 32; ++l) {
    all[l] = {d[l], {a[l][0], a[l][1], a[l][2], a[l][3]}, {b[l][0], b[l][1]}};
    lane[l] = &all[l];
  }
  multiply_add<kType, 16>(lane);
}

template <int J>
constexpr bool has_wgmma() {
  return J == 4 || J == 8 || J == 12 || J == 16 || J == 20 || J == 24 || J == 28 || J == 32;
}

}  // namespace host

template <bool Turned, int J>
PTX_DEVICE void wgmma_f16(float (&d)[2][J][2], U64 a_tile, U64 b_tile) {
  static_assert(host::has_wgmma<J>());
  emu::wgmma("wgmma_f16", &d[0][0][0], 8 * J, nullptr, a_tile, b_tile, Turned,
             &host::warpgroup_tile<host::Operand::kF16>);
}
template <bool Turned, int J>
PTX_DEVICE void wgmma_bf16(float (&d)[2][J][2], U64 a_tile, U64 b_tile) {
  static_assert(host::has_wgmma<J>());
  emu::wgmma("wgmma_bf16", &d[0][0][0], 8 * J, nullptr, a_tile, b_tile, Turned,
             &host::warpgroup_tile<host::Operand::kBf16>);
}
template <bool Turned, int J>
PTX_DEVICE void wgmma_f16(float (&d)[2][J][2], const unsigned (&a)[4], U64 b_tile) {
  static_assert(host::has_wgmma<J>());
  emu::wgmma("wgmma_f16", &d[0][0][0], 8 * J, a, 0, b_tile, Turned,
             &host::warpgroup_tile<host::Operand::kF16>);
}
template <bool Turned, int J>
PTX_DEVICE void wgmma_bf16(float (&d)[2][J][2], const unsigned (&a)[4], U64 b_tile) {
  static_assert(host::has_wgmma<J>());
  emu::wgmma("wgmma_bf16", &d[0][0][0], 8 * J, a, 0, b_tile, Turned,
             &host::warpgroup_tile<host::Operand::kBf16>);
}

}  // namespace ptx
