// Every PTX instruction and CUDA builtin that generated kernels use, each wrapped once.
//
// Generated text and the other headers use nothing else: no asm, no threadIdx, no __syncthreads, no
// extern __shared__ outside this file and the ptx_*.cuh that it includes. mirage_onnx/emulator has
// a twin of this header for the host compiler, so the other headers must not include this one: the
// generated text includes it first.
//
// Alignment: _v4 functions take 16-byte aligned addresses, _v2 8, _u32/_f32 4, _u16 2. Every
// function is declared for every chip: one that nobody calls is not compiled, one that needs a
// newer chip (marked with the first that has it; unmarked: sm_80) is refused by ptxas, by name.
#pragma once

#define PTX_DEVICE __device__ __forceinline__
// PTX_BLOCKS: how many blocks of a multiprocessor registers have to be left for, where ptxas is not
// to choose that itself (compiler/compile.py).
#ifdef PTX_BLOCKS
#define PTX_BOUNDS(threads) __launch_bounds__(threads, PTX_BLOCKS)
#else
#define PTX_BOUNDS(threads) __launch_bounds__(threads)
#endif
// A kernel's parameter that is a TensorMap.
#define PTX_TENSOR_MAP const __grid_constant__ ptx::TensorMap
#define PTX_KERNEL(threads) extern "C" __global__ void PTX_BOUNDS(threads)
// One block of which has a multiprocessor's registers to itself.
#define PTX_LONE_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads, 1)
// A kernel launched in clusters of (size, 1, 1) blocks; sm_90.
#define PTX_CLUSTER_KERNEL(threads, size) \
  extern "C" __global__ void __cluster_dims__(size, 1, 1) PTX_BOUNDS(threads)

namespace ptx {

struct alignas(16) U4 {
  unsigned x, y, z, w;
};
struct alignas(8) U2 {
  unsigned x, y;
};
using U64 = unsigned long long;
// What the copy engine is told of a tensor (ptx_async.cuh); the driver makes it. sm_90.
struct alignas(64) TensorMap {
  U64 words[16];
};

// ---- where this thread is -------------------------------------------------------------------

PTX_DEVICE int thread() { return static_cast<int>(threadIdx.x); }  // in the block
PTX_DEVICE int lane() { return static_cast<int>(threadIdx.x & 31u); }
PTX_DEVICE int warp() { return static_cast<int>(threadIdx.x >> 5); }
PTX_DEVICE int warpgroup() { return static_cast<int>(threadIdx.x >> 7); }
// What all threads of a warp have, and the compiler knows it.
PTX_DEVICE int agreed(int value) { return __shfl_sync(0xffffffffu, value, 0); }
PTX_DEVICE int block_x() { return static_cast<int>(blockIdx.x); }
PTX_DEVICE int block_y() { return static_cast<int>(blockIdx.y); }
PTX_DEVICE int block_z() { return static_cast<int>(blockIdx.z); }

PTX_DEVICE unsigned cluster_rank() {  // of this block in its cluster; sm_90
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The dynamic shared memory of the block, aligned as swizzled tiles have to be.
template <class T>
PTX_DEVICE T* smem() {
  extern __shared__ __align__(1024) unsigned char dynamic_smem[];
  return reinterpret_cast<T*>(dynamic_smem);
}

}  // namespace ptx

#include "ptx_async.cuh"
#include "ptx_convert.cuh"
#include "ptx_lanes.cuh"
#include "ptx_matrix.cuh"
#include "ptx_memory.cuh"
#include "ptx_sync.cuh"
