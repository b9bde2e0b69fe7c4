// Twin of codegen/device/ptx_memory.cuh. Which cache an access goes through makes no difference
// here.
#pragma once

namespace ptx {

// ---- global loads and stores

PTX_DEVICE U4 ld_stream_v4(const void* from) { return emu::load_global<U4>(from); }
PTX_DEVICE U4 ld_nc_v4(const void* from) { return emu::load_global<U4>(from); }
PTX_DEVICE U4 ld_v4(const void* from) { return emu::load_global<U4>(from); }
PTX_DEVICE void ld_stream_v4_if(U4& to, const void* from, bool valid) {
  if (valid) to = emu::load_global<U4>(from);
}
PTX_DEVICE void ld_nc_v4_if(U4& to, const void* from, bool valid) {
  if (valid) to = emu::load_global<U4>(from);
}
PTX_DEVICE void ld_v4_if(U4& to, const void* from, bool valid) {
  if (valid) to = emu::load_global<U4>(from);
}
PTX_DEVICE U2 ld_nc_v2(const void* from) { return emu::load_global<U2>(from); }
PTX_DEVICE U2 ld_v2(const void* from) { return emu::load_global<U2>(from); }
PTX_DEVICE unsigned ld_nc_u32(const void* from) { return emu::load_global<unsigned>(from); }
PTX_DEVICE unsigned ld_u32(const void* from) { return emu::load_global<unsigned>(from); }
PTX_DEVICE float ld_nc_f32(const void* from) { return emu::load_global<float>(from); }
PTX_DEVICE float ld_f32(const void* from) { return emu::load_global<float>(from); }
PTX_DEVICE unsigned short ld_nc_u16(const void* from) {
  return emu::load_global<unsigned short>(from);
}
PTX_DEVICE unsigned char ld_nc_u8(const void* from) {
  return emu::load_global<unsigned char>(from);
}
PTX_DEVICE unsigned char ld_u8(const void* from) {
  return emu::load_global<unsigned char>(from);
}
PTX_DEVICE unsigned short ld_u16(const void* from) {
  return emu::load_global<unsigned short>(from);
}
PTX_DEVICE U4 ld_cg_v4(const void* from) { return emu::load_global<U4>(from); }
PTX_DEVICE U2 ld_cg_v2(const void* from) { return emu::load_global<U2>(from); }
PTX_DEVICE unsigned ld_cg_u32(const void* from) { return emu::load_global<unsigned>(from); }
PTX_DEVICE float ld_cg_f32(const void* from) { return emu::load_global<float>(from); }
PTX_DEVICE U4 ld_cs_v4(const void* from) { return emu::load_global<U4>(from); }
PTX_DEVICE void prefetch_l2(const void* at) { static_cast<void>(at); }  // not an access

PTX_DEVICE void st_v4(void* to, U4 v) { emu::store_global(to, v); }
PTX_DEVICE void st_v2(void* to, U2 v) { emu::store_global(to, v); }
PTX_DEVICE void st_u32(void* to, unsigned v) { emu::store_global(to, v); }
PTX_DEVICE void st_u16(void* to, unsigned short v) { emu::store_global(to, v); }
PTX_DEVICE void st_f32(void* to, float v) { emu::store_global(to, v); }
PTX_DEVICE void st_cs_v4(void* to, U4 v) { emu::store_global(to, v); }
PTX_DEVICE void st_cs_v2(void* to, U2 v) { emu::store_global(to, v); }

// ---- shared memory of the other blocks of the cluster

PTX_DEVICE float dsmem_ld(const float* local, unsigned rank) {
  return emu::load_remote<float>(local, rank);
}
PTX_DEVICE unsigned dsmem_ld(const unsigned* local, unsigned rank) {
  return emu::load_remote<unsigned>(local, rank);
}
PTX_DEVICE U4 dsmem_ld_v4(const void* local, unsigned rank) {
  return emu::load_remote<U4>(local, rank);
}
PTX_DEVICE void dsmem_st(float* local, unsigned rank, float value) {
  emu::store_remote(local, rank, value);
}
PTX_DEVICE void dsmem_st(unsigned* local, unsigned rank, unsigned value) {
  emu::store_remote(local, rank, value);
}
PTX_DEVICE void dsmem_st_v4(void* local, unsigned rank, U4 v) {
  emu::store_remote(local, rank, v);
}

}  // namespace ptx
