// The host twin of the synchronising and asynchronous parts of ptx.cuh: the same functions, each one
// call of the runtime (api.h), which finds the calling line of the text by its return address.
#pragma once

#include "api.h"

namespace ptx {

using U64 = unsigned long long;

// ---- threads of the block

PTX_DEVICE void sync_block() { emu::sync_block(); }
PTX_DEVICE bool sync_any(bool says) { return emu::sync_any(says); }
PTX_DEVICE void sync_warp() { emu::sync_warp(); }
PTX_DEVICE void bar_sync(int id, int threads) { emu::bar(id, threads, true); }
PTX_DEVICE void bar_arrive(int id, int threads) { emu::bar(id, threads, false); }

// ---- all threads of all blocks of the cluster

PTX_DEVICE void cluster_arrive() { emu::cluster_arrive(); }
PTX_DEVICE void cluster_wait() { emu::cluster_wait(); }
PTX_DEVICE void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// ---- fences

PTX_DEVICE void fence_cta() { emu::fence(false); }
PTX_DEVICE void fence_gpu() { emu::fence(true); }
PTX_DEVICE void fence_proxy_async() { emu::fence_proxy_async(); }

// ---- atomics on global memory

enum class Order { Relaxed, Acquire, Release, AcqRel };

template <Order O>
PTX_DEVICE unsigned atom_add_u32(unsigned* at, unsigned value) {
  return emu::atom_add(at, value, static_cast<emu::Order>(O));
}
template <Order O>
PTX_DEVICE unsigned atom_exch_u32(unsigned* at, unsigned value) {
  return emu::atom_exch(at, value, static_cast<emu::Order>(O));
}
template <Order O>
PTX_DEVICE unsigned atom_cas_u32(unsigned* at, unsigned expected, unsigned value) {
  return emu::atom_cas(at, expected, value, static_cast<emu::Order>(O));
}
PTX_DEVICE unsigned ld_acquire_u32(const unsigned* from) { return emu::atomic_load(from); }
PTX_DEVICE void st_release_u32(unsigned* to, unsigned value) { emu::atomic_store(to, value); }
PTX_DEVICE void red_add_u32_release(unsigned* at, unsigned value) {
  emu::atom_add(at, value, emu::kRelease);
}

// ---- mbarriers

PTX_DEVICE void mbarrier_init(U64* bar, unsigned count) { emu::mbarrier_init(bar, count); }
PTX_DEVICE void mbarrier_inval(U64* bar) { emu::mbarrier_inval(bar); }
PTX_DEVICE void fence_mbarrier_init() { emu::fence_mbarrier_init(); }
PTX_DEVICE void mbarrier_arrive(U64* bar) { emu::mbarrier_arrive(bar, emu::kOwnRank); }
PTX_DEVICE void mbarrier_arrive_expect_tx(U64* bar, unsigned bytes) {
  emu::mbarrier_arrive_expect_tx(bar, bytes);
}
PTX_DEVICE void mbarrier_expect_tx(U64* bar, unsigned bytes) { emu::mbarrier_expect_tx(bar, bytes); }
PTX_DEVICE void mbarrier_arrive_remote(U64* local, unsigned rank) {
  emu::mbarrier_arrive(local, rank);
}
// What products have read counts as an access of the threads here, so it releases, too.
PTX_DEVICE void mbarrier_arrive_remote_relaxed(U64* local, unsigned rank) {
  emu::mbarrier_arrive(local, rank);
}
PTX_DEVICE bool mbarrier_try_wait(U64* bar, unsigned parity) {
  return emu::mbarrier_try_wait(bar, parity);
}
// Parks until the phase is complete, where the device spins.
PTX_DEVICE void wait(U64* bar, unsigned parity) { emu::mbarrier_wait(bar, parity); }
PTX_DEVICE void wait_cluster(U64* bar, unsigned parity) { emu::mbarrier_wait(bar, parity); }

// ---- asynchronous copies

PTX_DEVICE void cp_async_16(void* smem, const void* gmem) { emu::cp_async(smem, gmem, 16, 16); }
PTX_DEVICE void cp_async_8(void* smem, const void* gmem) { emu::cp_async(smem, gmem, 8, 8); }
PTX_DEVICE void cp_async_4(void* smem, const void* gmem) { emu::cp_async(smem, gmem, 4, 4); }
PTX_DEVICE void cp_async_16_zfill(void* smem, const void* gmem, int bytes) {
  emu::cp_async(smem, gmem, 16, bytes);
}
PTX_DEVICE void cp_async_commit() { emu::cp_async_commit(); }
template <int N>
PTX_DEVICE void cp_async_wait() {
  emu::cp_async_wait(N);
}
PTX_DEVICE void cp_async_wait_all() { emu::cp_async_wait_all(); }
PTX_DEVICE void cp_async_mbarrier_arrive(U64* bar) { emu::cp_async_mbarrier_arrive(bar); }

PTX_DEVICE void bulk_load(void* smem, const void* gmem, unsigned bytes, U64* bar) {
  emu::bulk_load(smem, gmem, bytes, bar, 0);
}
PTX_DEVICE void bulk_load_multicast(void* smem, const void* gmem, unsigned bytes, U64* bar,
                                    unsigned short ranks) {
  emu::bulk_load(smem, gmem, bytes, bar, ranks | 1u << 16);
}
PTX_DEVICE void tensor_load(void* smem, const TensorMap& map, int column, int row, U64* bar) {
  emu::tensor_load(smem, map.words, column, row, bar, 0);
}
PTX_DEVICE void tensor_load_multicast(void* smem, const TensorMap& map, int column, int row, U64* bar,
                                      unsigned short ranks) {
  emu::tensor_load(smem, map.words, column, row, bar, ranks | 1u << 16);
}
PTX_DEVICE void tensor_prefetch(const TensorMap& map) { static_cast<void>(map); }  // not an access
PTX_DEVICE void bulk_copy_remote(void* smem, unsigned rank, const void* from, unsigned bytes,
                                 U64* bar) {
  emu::bulk_copy_remote(smem, rank, from, bytes, bar);
}
PTX_DEVICE void bulk_store(void* gmem, const void* smem, unsigned bytes) {
  emu::bulk_store(gmem, smem, bytes);
}
PTX_DEVICE void bulk_commit() { emu::bulk_commit(); }
template <int N>
PTX_DEVICE void bulk_wait() {
  emu::bulk_wait(N, false);
}
template <int N>
PTX_DEVICE void bulk_wait_read() {
  emu::bulk_wait(N, true);
}

// ---- programmatic dependent launch

PTX_DEVICE void grid_wait() { emu::grid_wait(); }
PTX_DEVICE void grid_trigger() { emu::grid_trigger(); }

}  // namespace ptx
