// Copies that run beside the thread that starts them. Part of ptx.cuh.
// PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy".
//
// cp_async: global to shared memory, a thread's copies in groups in the order of their commits.
// bulk_*: by the copy engine; sizes and all addresses are multiples of 16 bytes; sm_90. Loads
// complete on an mbarrier, which counts their bytes, and stores in the groups of the thread that
// starts them.
// tensor_load: the same of a box of a tensor, of 128 bytes a row, swizzled as wgmma_tile (ptx_warpgroup.cuh) says;
// what of the box is beyond the tensor becomes zero.
#pragma once

#include "ptx_sync.cuh"

namespace ptx {

PTX_DEVICE void cp_async_16(void* smem, const void* gmem) {  // through L2 only
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(device::shared(smem)), "l"(gmem)
               : "memory");
}
PTX_DEVICE void cp_async_8(void* smem, const void* gmem) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(device::shared(smem)), "l"(gmem)
               : "memory");
}
PTX_DEVICE void cp_async_4(void* smem, const void* gmem) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(device::shared(smem)), "l"(gmem)
               : "memory");
}
// The first `bytes` (0..16) from memory, zeros after them; beyond those bytes nothing is read.
PTX_DEVICE void cp_async_16_zfill(void* smem, const void* gmem, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(device::shared(smem)),
               "l"(gmem), "r"(bytes)
               : "memory");
}
PTX_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most N of this thread's groups, the last ones, are still under way.
template <int N>
PTX_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
PTX_DEVICE void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Arrives at `bar` once all of this thread's copies so far are complete. It is one of the arrivals
// that the barrier counts.
PTX_DEVICE void cp_async_mbarrier_arrive(U64* bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(device::shared(bar))
               : "memory");
}

PTX_DEVICE void bulk_load(void* smem, const void* gmem, unsigned bytes, U64* bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(device::shared(smem)),
      "l"(gmem), "r"(bytes), "r"(device::shared(bar))
      : "memory");
}
// To the same place in every block of the cluster whose bit is set, completing on the barrier that
// lies at the place of `bar` there.
PTX_DEVICE void bulk_load_multicast(void* smem, const void* gmem, unsigned bytes, U64* bar,
                                    unsigned short ranks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1], %2, [%3], %4;" ::"r"(device::shared(smem)),
      "l"(gmem), "r"(bytes), "r"(device::shared(bar)), "h"(ranks)
      : "memory");
}
// The box of `map` that begins with element `column` of row `row`.
PTX_DEVICE void tensor_load(void* smem, const TensorMap& map, int column, int row, U64* bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(device::shared(smem)),
      "l"(&map), "r"(column), "r"(row), "r"(device::shared(bar))
      : "memory");
}
// As bulk_load_multicast.
PTX_DEVICE void tensor_load_multicast(void* smem, const TensorMap& map, int column, int row, U64* bar,
                                      unsigned short ranks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(device::shared(smem)),
      "l"(&map), "r"(column), "r"(row), "r"(device::shared(bar)), "h"(ranks)
      : "memory");
}
// The map is on its way to where copies look it up.
PTX_DEVICE void tensor_prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// To the place of `smem` in block `rank` of the cluster, completing on the barrier at that of
// `bar`.
PTX_DEVICE void bulk_copy_remote(void* smem, unsigned rank, const void* from, unsigned bytes,
                                 U64* bar) {
  asm volatile(
      "{\n\t.reg .u32 to, done;\n\t"
      "mapa.shared::cluster.u32 to, %0, %4;\n\t"
      "mapa.shared::cluster.u32 done, %3, %4;\n\t"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
      "[to], [%1], %2, [done];\n\t}" ::"r"(device::shared(smem)),
      "r"(device::shared(from)), "r"(bytes), "r"(device::shared(bar)), "r"(rank)
      : "memory");
}
PTX_DEVICE void bulk_store(void* gmem, const void* smem, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(gmem),
               "r"(device::shared(smem)), "r"(bytes)
               : "memory");
}
PTX_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until at most N of this thread's groups are still under way; bulk_wait_read only until they have
// read their source, which may then be written again.
template <int N>
PTX_DEVICE void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}
template <int N>
PTX_DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

}  // namespace ptx
