// What the twins of the device headers call: the emulator's runtime as the kernels' text sees it.
//
// The text is compiled with -fsanitize=thread, so every plain access to memory in it calls the runtime
// first (memory.h). The runtime itself is an object of its own (runtime.cc), compiled once, without
// instrumentation. Twins are inlined into the text and would be instrumented with it; what is not
// the kernel's own access (the body of a warp collective, the bytes behind a checked access) belongs
// into EMU_HOST functions, which are not.
//
// A runtime function finds the line of the text that called it by its return address, so twins are
// PTX_DEVICE (always inline) up to the call of the runtime.
#pragma once

#include <cstring>

#define EMU_HOST __attribute__((noinline, no_sanitize("thread")))

namespace emu {

using usize = unsigned long;
using U64 = unsigned long long;

enum Access { kRead, kWrite };

// The kinds of errors; failure.py names them in the same order.
enum Kind {
  kRace,
  kOutOfBounds,
  kReadOnly,
  kMisaligned,
  kUninitialised,
  kInFlight,
  kDiverged,
  kDeadlock,
  kExit,
  kPdl,
  kBarrier,
  kProxy,
  kMisuse,
  kFault,
  kTimeout,
};

// Of the memory order of an atomic operation.
enum Order { kRelaxed, kAcquire, kRelease, kAcqRel };

struct Fiber;  // a thread; fiber.h
struct Cta;    // a block

struct Warp {
  Fiber* first = nullptr;  // its fibers are contiguous
  int size = 0;            // 32, less in the last warp of an odd block
  int arrived = 0;
  const char* what = nullptr;  // the collective under way
  void* payload[32] = {};
};

extern Fiber* cur;  // the thread that runs

// ---- where this thread is; constant while it runs, so that the compiler may ask once

__attribute__((const)) int thread();  // in the block
__attribute__((const)) int lane();
__attribute__((const)) int block(int dimension);
__attribute__((const)) int cluster_rank();
__attribute__((const)) char* smem();
__attribute__((const)) Cta* cta();

// ---- errors

[[noreturn]] void fail(Kind kind, const char* format, ...) __attribute__((format(printf, 2, 3)));

// ---- warp collectives

// The last lane to arrive runs `all` over the payloads (which lie on the lanes' own stacks), then every
// lane goes on. Lanes that meet in different collectives are an error at once, a lane that never comes
// is a deadlock. Orders no memory.
void collective(const char* what, void* payload, void (*all)(Warp&, void** lane));

template <class T>
inline __attribute__((always_inline)) void collective(const char* what, T& payload,
                                                      void (*all)(Warp&, T** lane)) {
  collective(what, static_cast<void*>(&payload), reinterpret_cast<void (*)(Warp&, void**)>(all));
}

// The thread of a lane, for `access`.
Fiber* lane_of(Warp& warp, int lane);

// ---- checked accesses: bounds, alignment to `size`, and everything that memory.h records

void check_global(const void* p, usize size, Access a);
// Of this block's shared memory; `c` is cta().
void check_shared(const Cta* c, const void* p, usize size, Access a);
// Where `p`, in this block's shared memory, lies in that of block `rank` of the cluster.
char* map_shared(const void* p, unsigned rank, usize size, Access a);
// An access to global or own shared memory on behalf of a lane that waits in a collective.
void access(Fiber* f, const void* p, usize size, Access a);

void check_global_from(const void* pc, const void* p, usize size, Access a);
char* map_shared_from(const void* pc, const void* p, unsigned rank, usize size, Access a);

template <class T>
EMU_HOST T load_global(const void* from) {
  check_global_from(__builtin_return_address(0), from, sizeof(T), kRead);
  T v;
  memcpy(&v, from, sizeof v);
  return v;
}
template <class T>
EMU_HOST void store_global(void* to, T v) {
  check_global_from(__builtin_return_address(0), to, sizeof(T), kWrite);
  memcpy(to, &v, sizeof v);
}
template <class T>
EMU_HOST T load_remote(const void* local, unsigned rank) {
  T v;
  memcpy(&v, map_shared_from(__builtin_return_address(0), local, rank, sizeof(T), kRead), sizeof v);
  return v;
}
template <class T>
EMU_HOST void store_remote(void* local, unsigned rank, T v) {
  memcpy(map_shared_from(__builtin_return_address(0), local, rank, sizeof(T), kWrite), &v, sizeof v);
}

// ---- synchronisation (barrier.h)

void sync_block();
bool sync_any(bool says);
void sync_warp();
void bar(int id, int threads, bool wait);
void cluster_arrive();
void cluster_wait();
void fence(bool gpu);
void fence_proxy_async();
void grid_wait();
void grid_trigger();

// ---- atomics on global memory (atomic.h)

unsigned atom_add(unsigned* at, unsigned value, Order order);
unsigned atom_exch(unsigned* at, unsigned value, Order order);
unsigned atom_cas(unsigned* at, unsigned expected, unsigned value, Order order);
unsigned atomic_load(const unsigned* at);
void atomic_store(unsigned* at, unsigned value);

// ---- tensor cores fed by a warpgroup (warpgroup.h)

// Adds to d what the registers of a warp's lanes hold of 16 rows, 8 columns, a depth of 16.
using TileMma = void (*)(float (*d)[4], const unsigned (*a)[4], const unsigned (*b)[2]);
// d: `columns` / 2 registers of a lane; a: null if A is the tile in shared memory.
// turned: B's tile has a row for each depth.
void wgmma(const char* what, float* d, int columns, const unsigned* a, U64 a_tile, U64 b_tile,
    bool turned, TileMma tile);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(int groups);
// Of this block's shared memory.
unsigned shared_offset(const void* p);

// ---- mbarriers (mbarrier.h)

void mbarrier_init(U64* bar, unsigned count);
void mbarrier_inval(U64* bar);
void fence_mbarrier_init();
void mbarrier_arrive(U64* bar, unsigned rank);  // of the cluster; kOwnRank: here
void mbarrier_arrive_expect_tx(U64* bar, unsigned bytes);
void mbarrier_expect_tx(U64* bar, unsigned bytes);
bool mbarrier_try_wait(U64* bar, unsigned parity);
void mbarrier_wait(U64* bar, unsigned parity);
constexpr unsigned kOwnRank = ~0u;

// ---- asynchronous copies (async.h)

// `size` bytes of shared memory from the first `bytes` of global memory, and zeros.
void cp_async(void* smem, const void* gmem, int size, int bytes);
void cp_async_commit();
void cp_async_wait(int groups);
void cp_async_wait_all();
void cp_async_mbarrier_arrive(U64* bar);
// To every block of the cluster whose bit is set; 0: to this one.
void bulk_load(void* smem, const void* gmem, unsigned bytes, U64* bar, unsigned ranks);
// map: where the tensor begins, rows, columns, elements from one row to the next, rows of a box.
void tensor_load(void* smem, const U64* map, int column, int row, U64* bar, unsigned ranks);
void bulk_copy_remote(void* smem, unsigned rank, const void* from, unsigned bytes, U64* bar);
void bulk_store(void* gmem, const void* smem, unsigned bytes);
void bulk_commit();
void bulk_wait(int groups, bool only_read);

}  // namespace emu
