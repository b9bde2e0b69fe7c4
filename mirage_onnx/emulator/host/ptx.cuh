// The host twin of mirage_onnx/codegen/device/ptx.cuh: the same names for the host compiler, so
// that generated text runs on a CPU unchanged. Every function of that file, and of the files it
// includes, exists here with the same signature (a test compares the two); namespace host is the
// twin's own. docs/emulator.md says what the emulator models and what it does not.
#pragma once

#include "api.h"

// Of functions that EMU_HOST functions (api.h) call.
#define EMU_INLINE inline __attribute__((always_inline))
#define PTX_DEVICE inline __attribute__((always_inline))
#define PTX_TENSOR_MAP const ptx::TensorMap
#define PTX_KERNEL(threads) static void
#define PTX_LONE_KERNEL(threads) static void
#define PTX_CLUSTER_KERNEL(threads, size) static void

namespace ptx {

struct alignas(16) U4 {
  unsigned x, y, z, w;
};
struct alignas(8) U2 {
  unsigned x, y;
};
using U64 = unsigned long long;
struct alignas(64) TensorMap {
  U64 words[16];
};

// ---- where this thread is

PTX_DEVICE int thread() { return emu::thread(); }
PTX_DEVICE int lane() { return emu::lane(); }
PTX_DEVICE int warp() { return emu::thread() >> 5; }
PTX_DEVICE int warpgroup() { return emu::thread() >> 7; }
PTX_DEVICE int agreed(int value) { return value; }
PTX_DEVICE int block_x() { return emu::block(0); }
PTX_DEVICE int block_y() { return emu::block(1); }
PTX_DEVICE int block_z() { return emu::block(2); }
PTX_DEVICE unsigned cluster_rank() { return static_cast<unsigned>(emu::cluster_rank()); }

template <class T>
PTX_DEVICE T* smem() {
  return reinterpret_cast<T*>(emu::smem());
}

}  // namespace ptx

#include "ptx_convert.cuh"
#include "ptx_lanes.cuh"
#include "ptx_matrix.cuh"
#include "ptx_memory.cuh"
#include "sync.h"
