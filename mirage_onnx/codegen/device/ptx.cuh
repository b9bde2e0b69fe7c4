// Every PTX instruction and CUDA builtin that generated kernels use, each wrapped once.
//
// Generated text and the other headers use nothing else: no asm, no threadIdx, no __syncthreads, no
// extern __shared__ outside this file. mirage_onnx/emulator has a twin of this header for the host
// compiler, so the other headers must not include this one: the generated text includes it first.
//
// Alignment: _v4 functions take 16-byte aligned addresses, _v2 8, _u32/_f32 4, _u16 2.
// Loads: `stream` is for data read once (weights), `nc` for data that no kernel of this launch
// sequence writes, neither for data that an earlier kernel of the sequence wrote.
#pragma once

#define PTX_DEVICE __device__ __forceinline__
#define PTX_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
// A kernel launched in clusters of (size, 1, 1) blocks.
#define PTX_CLUSTER_KERNEL(threads, size) \
  extern "C" __global__ void __cluster_dims__(size, 1, 1) __launch_bounds__(threads)

namespace ptx {

struct alignas(16) U4 {
  unsigned x, y, z, w;
};
struct alignas(8) U2 {
  unsigned x, y;
};

// ---- where this thread is -------------------------------------------------------------------

PTX_DEVICE int thread() { return static_cast<int>(threadIdx.x); }  // in the block
PTX_DEVICE int lane() { return static_cast<int>(threadIdx.x & 31u); }
PTX_DEVICE int warp() { return static_cast<int>(threadIdx.x >> 5); }
PTX_DEVICE int block_x() { return static_cast<int>(blockIdx.x); }
PTX_DEVICE int block_y() { return static_cast<int>(blockIdx.y); }
PTX_DEVICE int block_z() { return static_cast<int>(blockIdx.z); }

PTX_DEVICE unsigned cluster_rank() {  // of this block in its cluster
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// ---- shared memory, barriers, shuffles ------------------------------------------------------

// The dynamic shared memory of the block, 16-byte aligned.
template <class T>
PTX_DEVICE T* smem() {
  extern __shared__ __align__(16) unsigned char dynamic_smem[];
  return reinterpret_cast<T*>(dynamic_smem);
}

PTX_DEVICE void sync_block() { __syncthreads(); }
PTX_DEVICE void sync_warp() { __syncwarp(0xffffffffu); }
// The value of lane (this ^ mask), by the whole warp.
PTX_DEVICE float shfl_xor(float value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
// The value of lane `source`, by the whole warp.
PTX_DEVICE float shfl(float value, int source) { return __shfl_sync(0xffffffffu, value, source); }

// ---- clusters: all threads of all blocks of the cluster --------------------------------------

PTX_DEVICE void cluster_arrive() {  // releases this thread's writes to shared memory
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
PTX_DEVICE void cluster_wait() {  // acquires those of every thread that arrived
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
PTX_DEVICE void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// What block `rank` of the cluster holds at the place of `local`, an address of our shared memory.
PTX_DEVICE float dsmem_ld(const float* local, unsigned rank) {
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(local));
  float value;
  asm volatile(
      "{\n\t.reg .u32 remote;\n\t"
      "mapa.shared::cluster.u32 remote, %1, %2;\n\t"
      "ld.shared::cluster.f32 %0, [remote];\n\t}"
      : "=f"(value)
      : "r"(address), "r"(rank)
      : "memory");
  return value;
}

// ---- programmatic dependent launch ----------------------------------------------------------

// Until the kernels that this one depends on are complete and their writes visible.
PTX_DEVICE void grid_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// The next kernel may start.
PTX_DEVICE void grid_trigger() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// ---- global loads ---------------------------------------------------------------------------

// 16 bytes that are read once: kept out of L1, L2 fetches 256 bytes.
PTX_DEVICE U4 ld_stream_v4(const void* from) {
  U4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}
PTX_DEVICE U4 ld_nc_v4(const void* from) {
  U4 v;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}
PTX_DEVICE U4 ld_v4(const void* from) {
  U4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

// The same where `valid`; otherwise `to` keeps its value and `from` is not read. No branch.
PTX_DEVICE void ld_stream_v4_if(U4& to, const void* from, bool valid) {
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\t"
      "@p ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
      : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
      : "l"(from), "r"(static_cast<unsigned>(valid)));
}
PTX_DEVICE void ld_nc_v4_if(U4& to, const void* from, bool valid) {
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\t"
      "@p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
      : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
      : "l"(from), "r"(static_cast<unsigned>(valid)));
}
PTX_DEVICE void ld_v4_if(U4& to, const void* from, bool valid) {
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\t"
      "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
      : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
      : "l"(from), "r"(static_cast<unsigned>(valid))
      : "memory");
}

PTX_DEVICE U2 ld_nc_v2(const void* from) {
  U2 v;
  asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
  return v;
}
PTX_DEVICE U2 ld_v2(const void* from) {
  U2 v;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(from)
               : "memory");
  return v;
}
PTX_DEVICE unsigned ld_nc_u32(const void* from) {
  unsigned v;
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}
PTX_DEVICE unsigned ld_u32(const void* from) {
  unsigned v;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
PTX_DEVICE float ld_nc_f32(const void* from) {
  float v;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(from));
  return v;
}
PTX_DEVICE float ld_f32(const void* from) {
  float v;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(from) : "memory");
  return v;
}
PTX_DEVICE unsigned short ld_nc_u16(const void* from) {
  unsigned short v;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(from));
  return v;
}
PTX_DEVICE unsigned short ld_u16(const void* from) {
  unsigned short v;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(from) : "memory");
  return v;
}

// ---- global stores --------------------------------------------------------------------------

PTX_DEVICE void st_v4(void* to, U4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}
PTX_DEVICE void st_v2(void* to, U2 v) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(v.x), "r"(v.y) : "memory");
}
PTX_DEVICE void st_u32(void* to, unsigned v) {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}
PTX_DEVICE void st_u16(void* to, unsigned short v) {
  asm volatile("st.global.u16 [%0], %1;" ::"l"(to), "h"(v) : "memory");
}
PTX_DEVICE void st_f32(void* to, float v) {
  asm volatile("st.global.f32 [%0], %1;" ::"l"(to), "f"(v) : "memory");
}

// ---- tensor cores: d += a b, by the whole warp ------------------------------------------------
//
// With g = lane / 4 and t = lane % 4, each register two 16-bit values, the lower k first:
//   a0 = A[g][2t..], a1 = A[g+8][2t..], a2 = A[g][2t+8..], a3 = A[g+8][2t+8..]   (A is 16 x 16)
//   b0 = B[2t..][g], b1 = B[2t+8..][g]                                           (B is 16 x 8)
//   d[0], d[1] = D[g][2t], D[g][2t+1]; d[2], d[3] = D[g+8][2t], D[g+8][2t+1]

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
