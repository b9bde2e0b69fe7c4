// Loads, stores and prefetches of global memory, and the shared memory of other blocks of the
// cluster. Part of ptx.cuh. (This block's own shared memory is read and written by plain C++.)
//
// Loads: `stream` is for data read once (weights), `nc` for data that no kernel of this launch
// sequence writes, neither for data that an earlier kernel of the sequence wrote. `cg` reads L2, so
// it sees what other blocks of the same kernel wrote and released; `cs` marks data that an earlier
// kernel wrote and that is read (or written) once as first to be evicted.
#pragma once

#include "ptx_sync.cuh"

namespace ptx {

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
PTX_DEVICE unsigned char ld_nc_u8(const void* from) {
  unsigned short v;
  asm volatile("ld.global.nc.u8 %0, [%1];" : "=h"(v) : "l"(from));
  return static_cast<unsigned char>(v);
}
PTX_DEVICE unsigned char ld_u8(const void* from) {
  unsigned short v;
  asm volatile("ld.global.u8 %0, [%1];" : "=h"(v) : "l"(from) : "memory");
  return static_cast<unsigned char>(v);
}
PTX_DEVICE unsigned short ld_u16(const void* from) {
  unsigned short v;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(from) : "memory");
  return v;
}

PTX_DEVICE U4 ld_cg_v4(const void* from) {
  U4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
PTX_DEVICE U2 ld_cg_v2(const void* from) {
  U2 v;
  asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(from)
               : "memory");
  return v;
}
PTX_DEVICE unsigned ld_cg_u32(const void* from) {
  unsigned v;
  asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
PTX_DEVICE float ld_cg_f32(const void* from) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(from) : "memory");
  return v;
}
PTX_DEVICE U4 ld_cs_v4(const void* from) {
  U4 v;
  asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
// Asks for the line of `at` to be brought into L2. Not an access: it may be dropped, and may lie
// outside the tensor.
PTX_DEVICE void prefetch_l2(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
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
PTX_DEVICE void st_cs_v4(void* to, U4 v) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}
PTX_DEVICE void st_cs_v2(void* to, U2 v) {
  asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(v.x), "r"(v.y) : "memory");
}

// ---- shared memory of block `rank` of the cluster, at the place of `local` in ours; sm_90 ------

PTX_DEVICE float dsmem_ld(const float* local, unsigned rank) {
  float value;
  asm volatile(
      "{\n\t.reg .u32 remote;\n\t"
      "mapa.shared::cluster.u32 remote, %1, %2;\n\t"
      "ld.shared::cluster.f32 %0, [remote];\n\t}"
      : "=f"(value)
      : "r"(device::shared(local)), "r"(rank)
      : "memory");
  return value;
}
PTX_DEVICE unsigned dsmem_ld(const unsigned* local, unsigned rank) {
  unsigned value;
  asm volatile(
      "{\n\t.reg .u32 remote;\n\t"
      "mapa.shared::cluster.u32 remote, %1, %2;\n\t"
      "ld.shared::cluster.u32 %0, [remote];\n\t}"
      : "=r"(value)
      : "r"(device::shared(local)), "r"(rank)
      : "memory");
  return value;
}
PTX_DEVICE U4 dsmem_ld_v4(const void* local, unsigned rank) {
  U4 v;
  asm volatile(
      "{\n\t.reg .u32 remote;\n\t"
      "mapa.shared::cluster.u32 remote, %4, %5;\n\t"
      "ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [remote];\n\t}"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "r"(device::shared(local)), "r"(rank)
      : "memory");
  return v;
}
PTX_DEVICE void dsmem_st(float* local, unsigned rank, float value) {
  asm volatile(
      "{\n\t.reg .u32 remote;\n\t"
      "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
      "st.shared::cluster.f32 [remote], %2;\n\t}" ::"r"(device::shared(local)),
      "r"(rank), "f"(value)
      : "memory");
}
PTX_DEVICE void dsmem_st(unsigned* local, unsigned rank, unsigned value) {
  asm volatile(
      "{\n\t.reg .u32 remote;\n\t"
      "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
      "st.shared::cluster.u32 [remote], %2;\n\t}" ::"r"(device::shared(local)),
      "r"(rank), "r"(value)
      : "memory");
}
PTX_DEVICE void dsmem_st_v4(void* local, unsigned rank, U4 v) {
  asm volatile(
      "{\n\t.reg .u32 remote;\n\t"
      "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
      "st.shared::cluster.v4.u32 [remote], {%2, %3, %4, %5};\n\t}" ::"r"(device::shared(local)),
      "r"(rank), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
      : "memory");
}

}  // namespace ptx
