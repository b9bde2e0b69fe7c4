// Synchronisation: barriers, fences, atomics, mbarriers, dependent launch. Part of ptx.cuh.
// PTX ISA, chapters "Parallel Synchronization and Communication" and "Memory Consistency Model".
#pragma once

namespace ptx {

namespace device {

// An address of this block's shared memory as shared-memory instructions take it.
PTX_DEVICE unsigned shared(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

}  // namespace device

// ---- threads of the block -------------------------------------------------------------------

PTX_DEVICE void sync_block() { __syncthreads(); }
// The same, and whether any thread of the block says so.
PTX_DEVICE bool sync_any(bool says) { return __syncthreads_or(says) != 0; }
PTX_DEVICE void sync_warp() { __syncwarp(0xffffffffu); }
// Barrier `id` (0 is sync_block's) of `threads` threads, a multiple of 32: whole warps wait for the
// others, or only arrive and go on.
PTX_DEVICE void bar_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
PTX_DEVICE void bar_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- all threads of all blocks of the cluster; sm_90 -------------------------------------------

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

// ---- fences ---------------------------------------------------------------------------------

// Orders this thread's accesses before with those after it, as seen by the block or by the GPU:
// together with a relaxed atomic before (acquire) or after it (release).
PTX_DEVICE void fence_cta() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }
PTX_DEVICE void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
// Makes this thread's plain accesses to shared memory visible to later bulk copies; sm_90.
PTX_DEVICE void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- atomics on global memory, between the blocks of a GPU ------------------------------------

enum class Order { Relaxed, Acquire, Release, AcqRel };

#define PTX_ATOMIC(instruction, ...)                                                          \
  if constexpr (O == Order::Relaxed) {                                                        \
    asm volatile("atom.relaxed.gpu.global." instruction : "=r"(old) : __VA_ARGS__ : "memory"); \
  } else if constexpr (O == Order::Acquire) {                                                 \
    asm volatile("atom.acquire.gpu.global." instruction : "=r"(old) : __VA_ARGS__ : "memory"); \
  } else if constexpr (O == Order::Release) {                                                 \
    asm volatile("atom.release.gpu.global." instruction : "=r"(old) : __VA_ARGS__ : "memory"); \
  } else {                                                                                    \
    asm volatile("atom.acq_rel.gpu.global." instruction : "=r"(old) : __VA_ARGS__ : "memory"); \
  }

// Each returns the value before.
template <Order O>
PTX_DEVICE unsigned atom_add_u32(unsigned* at, unsigned value) {
  unsigned old;
  PTX_ATOMIC("add.u32 %0, [%1], %2;", "l"(at), "r"(value))
  return old;
}
template <Order O>
PTX_DEVICE unsigned atom_exch_u32(unsigned* at, unsigned value) {
  unsigned old;
  PTX_ATOMIC("exch.b32 %0, [%1], %2;", "l"(at), "r"(value))
  return old;
}
template <Order O>
PTX_DEVICE unsigned atom_cas_u32(unsigned* at, unsigned expected, unsigned value) {
  unsigned old;
  PTX_ATOMIC("cas.b32 %0, [%1], %2, %3;", "l"(at), "r"(expected), "r"(value))
  return old;
}

#undef PTX_ATOMIC

PTX_DEVICE unsigned ld_acquire_u32(const unsigned* from) {
  unsigned v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
PTX_DEVICE void st_release_u32(unsigned* to, unsigned value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
PTX_DEVICE void red_add_u32_release(unsigned* at, unsigned value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

// ---- mbarriers: 8-byte aligned objects in shared memory ----------------------------------------
//
// A phase completes when `count` arrivals came and as many bytes as were expected. `wait(bar, p)`
// returns once the phase of parity p is complete: 0 is the first, and p = 1 passes on a fresh
// barrier.

PTX_DEVICE void mbarrier_init(U64* bar, unsigned count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(device::shared(bar)), "r"(count)
               : "memory");
}
PTX_DEVICE void mbarrier_inval(U64* bar) {  // before its memory is used for anything else
  asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(device::shared(bar)) : "memory");
}
// Makes the init visible to the cluster and to bulk copies (a barrier of the threads follows);
// sm_90.
PTX_DEVICE void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
PTX_DEVICE void mbarrier_arrive(U64* bar) {  // releases, to the block
  asm volatile("{\n\t.reg .b64 state;\n\tmbarrier.arrive.shared.b64 state, [%0];\n\t}" ::"r"(
                   device::shared(bar))
               : "memory");
}
// Expects `bytes` more of this phase, then arrives; sm_90.
PTX_DEVICE void mbarrier_arrive_expect_tx(U64* bar, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(device::shared(bar)),
               "r"(bytes)
               : "memory");
}
PTX_DEVICE void mbarrier_expect_tx(U64* bar, unsigned bytes) {  // sm_90
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(
                   device::shared(bar)),
               "r"(bytes)
               : "memory");
}
// Arrives at the barrier that block `rank` of the cluster has at the place of `local`, and releases
// to the cluster; sm_90.
PTX_DEVICE void mbarrier_arrive_remote(U64* local, unsigned rank) {
  asm volatile(
      "{\n\t.reg .u32 remote;\n\t"
      "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n\t}" ::"r"(
          device::shared(local)),
      "r"(rank)
      : "memory");
}
// The same, and orders nothing: of what products beside the threads have read, who arrives has waited for
// them. (A release to the cluster waits for all of the thread's stores, 0.3 us a time.) sm_90.
PTX_DEVICE void mbarrier_arrive_remote_relaxed(U64* local, unsigned rank) {
  asm volatile(
      "{\n\t.reg .u32 remote;\n\t"
      "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
      "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote];\n\t}" ::"r"(
          device::shared(local)),
      "r"(rank)
      : "memory");
}
// Whether the phase of this parity is complete, perhaps after some time; if so, acquires what the
// block (and bulk copies) released.
PTX_DEVICE bool mbarrier_try_wait(U64* bar, unsigned parity) {
  unsigned complete;
  asm volatile(
      "{\n\t.reg .pred p;\n\t"
#if __CUDA_ARCH__ >= 900
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
#else
      "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n\t"
#endif
      "selp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(complete)
      : "r"(device::shared(bar)), "r"(parity)
      : "memory");
  return complete != 0;
}
// The only functions that spin.
PTX_DEVICE void wait(U64* bar, unsigned parity) {
  while (!mbarrier_try_wait(bar, parity)) {
  }
}
// Also acquires what other blocks of the cluster released by arriving here. Not for every wait: it
// drops the L1 cache of the multiprocessor each time. sm_90.
PTX_DEVICE void wait_cluster(U64* bar, unsigned parity) {
  unsigned complete = 0;
  while (complete == 0) {
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(complete)
        : "r"(device::shared(bar)), "r"(parity)
        : "memory");
  }
}

// ---- programmatic dependent launch; sm_90 ------------------------------------------------------

// Until the kernels that this one depends on are complete and their writes visible.
PTX_DEVICE void grid_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// The next kernel may start.
PTX_DEVICE void grid_trigger() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace ptx
