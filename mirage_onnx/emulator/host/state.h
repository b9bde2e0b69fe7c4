// The state of a module's runtime, what the Python side passes in, and how errors leave.
#pragma once

#include <csetjmp>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sys/mman.h>
#include <unistd.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include "api.h"
#include "entry.h"

namespace emu {

constexpr usize kPage = 4096;
constexpr usize kStack = 64 * 1024;  // of a thread, plus one guard page below
constexpr unsigned char kPoison = 0xff;  // every byte: NaN in f16, bf16, f32 and f64
constexpr int kMostThreads = 16 * 1024;  // of a cluster: 16 blocks of 1024
constexpr int kBarriers = 64;  // mbarriers of a block

// An access is known by its epoch: which cluster, whether atomic, which thread, and the thread's
// clock, which advances whenever the thread releases. A mbarrier is a thread too (clock.h).
using Epoch = U64;

struct Clock;
struct Foreign;
struct Copy;

// Collects what threads released, for those that acquire it.
struct Sync {
  Clock* clock = nullptr;
  Clock* last = nullptr;  // the knowledge that was joined last: most threads of a barrier share it
};

struct Fiber {
  Epoch epoch = 0;  // of its accesses now
  const unsigned* known = nullptr;  // the clocks of all threads that happened before: base->clocks
  Clock* base = nullptr;
  const void* pc = nullptr;  // where the text last called the runtime
  void* sp = nullptr;  // saved stack pointer while switched out
#if !defined(__x86_64__)
  ucontext_t context;
#endif
  char* stack = nullptr;
  Cta* cta = nullptr;
  Warp* warp = nullptr;
  int index = 0;  // in the cluster
  int thread = 0;  // in the block
  bool done = false;
  const char* waits = nullptr;  // what it waits for, while parked
  const void* key = nullptr;  // ... and the object that will wake it
  // cluster barrier: has arrived in phase `cluster_phase` and not yet waited
  bool cluster_arrived = false;
  unsigned cluster_phase = 0;
  // Fences: what a later relaxed atomic publishes, what an earlier one read (atomic.h).
  Foreign* fenced[2] = {};
  Foreign* unfenced = nullptr;
  unsigned proxy_fence = 0;  // its clock at the last fence.proxy.async
  Clock* proxy_base = nullptr;  // what it knew then
  // Its own copies, oldest first, and the groups it has committed (async.h).
  Copy* loads = nullptr;
  Copy* stores = nullptr;
  unsigned load_group = 0;
  unsigned store_group = 0;
  unsigned votes = 0;  // how often it was at sync_any
  bool wgmma_fenced = false;  // since a warpgroup's registers were last its own
};

struct BlockBarrier {
  int arrived = 0;
  int expected = 0;
  Sync sync;
};

struct Mbarrier {  // at `offset` of its block's shared memory
  unsigned offset = 0;
  bool live = false;
  bool fenced = false;  // its init is visible to the cluster and to bulk copies
  bool of_threads = false;  // copies of threads (cp.async) complete it, no bulk copies
  unsigned count = 0;  // arrivals of a phase
  unsigned pending = 0;
  long bytes = 0;  // expected and not yet arrived; negative while copies are ahead of expect_tx
  unsigned phase = 0;
  unsigned completed = 0;  // phases, over all lives of the barrier here: the clock of its slot
  int slot = 0;  // among the clocks
  const Fiber* initialiser = nullptr;
  Sync sync;
  Clock* released = nullptr;  // when the last phase completed
};

struct Accumulator;
struct GroupMma;

struct Warpgroup {  // warpgroup.h
  int arrived = 0;
  const char* what = nullptr;
  void* lane[128] = {};
  GroupMma* pending = nullptr;  // oldest first
  Accumulator* accumulators = nullptr;
  unsigned group = 0;  // committed
};

struct Cell;

struct Remote {  // the last access of another block's thread to this block's shared memory
  unsigned clock = 0;
  const void* pc = nullptr;
};

struct Cta {
  int block[3] = {0, 0, 0};
  int rank = 0;  // in its cluster
  char* smem = nullptr;
  Cell* cells = nullptr;  // of its shared memory, one per 4 bytes (shadow.h)
  Cell* bytes = nullptr;  // ... and one per byte, used where a word is accessed by parts
  Fiber* first = nullptr;
  int threads = 0;
  int live = 0;
  Warp warps[32];
  Warpgroup warpgroups[8];
  Sync warp_sync[32];
  BlockBarrier barriers[16];
  bool said[3] = {};  // at sync_any, in turn
  Mbarrier mbarriers[kBarriers];
  int mbarrier_count = 0;
  Sync exits;
  Remote* remote = nullptr;  // per thread of the cluster
};

struct Tensor;

struct State {
  const Launch* launch = nullptr;
  void (*call)(void**) = nullptr;
  bool checks = false;
  int smem_bytes = 0;
  // Address ranges that every access is compared with: stacks, shared memory.
  usize stacks = 0, stacks_span = 0;
  usize smem = 0, smem_span = 0;
  Fiber* fibers = nullptr;
  int fiber_count = 0;
  int fiber_capacity = 0;
  Cta* ctas = nullptr;
  int cta_count = 0;
  int cta_capacity = 0;
  usize smem_capacity = 0;
  Fiber** queue = nullptr;  // ring of runnable fibers, one slot more than there are fibers
  int head = 0, tail = 0, slots = 0;
  Fiber** pollers = nullptr;  // woken when nothing else can run
  int poller_count = 0;
  int fruitless = 0;  // rounds of them without a completed phase
  int live = 0;
  // clusters, clocks
  U64 sequence = 0;  // of this cluster, over all launches
  U64 first_sequence = 0;  // of the first cluster of this launch
  int clock_length = 0;
  int pdl_slot = 0;
  int copy_slot = 0;
  Clock* after_predecessors = nullptr;
  // cluster barrier
  int cluster_missing = 0;
  unsigned cluster_phase = 0;
  Sync cluster_sync;
  Clock* cluster_released = nullptr;
  // copies that complete on an mbarrier, oldest first
  Copy* flying = nullptr;
  // error of the current launch
  bool failed = false;
  bool running = false;
  bool copying = false;  // the copy engine runs on the scheduler's stack
  pid_t owner = 0;
  Failure* failure = nullptr;
  sigjmp_buf landing;
  void* scheduler_sp = nullptr;
#if !defined(__x86_64__)
  ucontext_t scheduler;
#endif
};

static State g;
Fiber* cur = nullptr;

extern "C" const char __ehdr_start __attribute__((visibility("hidden")));  // of this library
extern "C" const char _end __attribute__((visibility("hidden")));

// ---- memory that lives as long as a launch, or a cluster: only grows, then starts over

[[noreturn, gnu::cold]] static void out_of_memory();

// Without operator new: the library links the C library alone, which is the same everywhere.
template <class T>
static T* allocate(usize count) {
  T* all = static_cast<T*>(malloc(count * sizeof(T)));
  if (!all) out_of_memory();
  for (usize i = 0; i < count; ++i) new (all + i) T();
  return all;
}

static char* reserve_pages(usize bytes) {
  void* p = mmap(
      nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<char*>(p);
}

// At most `bytes`. Under a limit of the address space a half of what it leaves, or a quarter, and 1/128 at least:
// the launch needs memory for more than this.
static char* reserve_most(usize* bytes) {
  const usize all = *bytes;
  for (; *bytes >= all >> 7; *bytes /= 2) {
    char* p = reserve_pages(*bytes);
    if (!p) continue;
    if (*bytes == all) return p;
    *bytes /= 2;
    munmap(p + *bytes, *bytes);
    return p;
  }
  return nullptr;
}

class Arena {
 public:
  void* take(usize bytes) {
    if (!at_ && !(at_ = reserve_most(&(capacity_ = kCapacity)))) out_of_memory();
    if (used_ + bytes > capacity_) out_of_memory();
    void* p = at_ + used_;
    used_ += (bytes + 15) / 16 * 16;
    return p;
  }
  void start_over() {
    if (used_ > kKeep) madvise(at_ + kKeep, used_ - kKeep, MADV_DONTNEED);
    used_ = 0;
  }

 private:
  static constexpr usize kCapacity = 4ul << 30;  // reserved, not used
  static constexpr usize kKeep = 16 << 20;
  char* at_ = nullptr;
  usize used_ = 0, capacity_ = 0;
};

static Arena launch_arena;  // starts over with each launch
static Arena cluster_arena;  // ... with each cluster

template <class T>
static T* make(Arena& arena, usize count = 1) {
  T* p = static_cast<T*>(arena.take(count * sizeof(T)));
  for (usize i = 0; i < count; ++i) p[i] = T();
  return p;
}

// ---- errors: the first one wins; the fiber that found it never runs again

static void to_scheduler();

static void vsay(const char* format, va_list list) {
  char* message = g.failure->message;
  const usize used = strlen(message);
  if (used + 1 < sizeof g.failure->message)
    vsnprintf(message + used, sizeof g.failure->message - used, format, list);
}

__attribute__((format(printf, 1, 2))) static void say(const char* format, ...) {
  va_list list;
  va_start(list, format);
  vsay(format, list);
  va_end(list);
}

// A place in the text, which the Python side turns into a line: the call that returns to `pc`.
static long place(const void* pc) {
  return pc ? static_cast<long>(static_cast<const char*>(pc) - &__ehdr_start) : 0;
}

static void say_thread(const Fiber* f) {
  const int* b = f->cta->block;
  say("block (%d,%d,%d), thread %d", b[0], b[1], b[2], f->thread);
}

static void begin_failure(Kind kind, const Fiber* f, const void* pc) {
  g.failed = true;
  Failure& e = *g.failure;
  e.kind = kind;
  e.thread = -1;
  e.place = 0;
  if (!f) return;
  for (int d = 0; d < 3; ++d) e.block[d] = f->cta->block[d];
  e.thread = f->thread;
  e.place = place(pc);
}

// Ends the launch; what was said is the message.
[[noreturn]] static void give_up() {
  if (g.copying || !cur) siglongjmp(g.landing, 1);  // no thread of the kernel is on
  to_scheduler();
  __builtin_unreachable();
}

[[noreturn, gnu::noinline, gnu::cold]] void fail(Kind kind, const char* format, ...) {
  begin_failure(kind, cur, cur ? cur->pc : nullptr);
  va_list list;
  va_start(list, format);
  vsay(format, list);
  va_end(list);
  give_up();
}

static void out_of_memory() {
  fail(kFault, "the emulator has no memory left for its records of this launch");
}

// Where the text called us: first in every function of api.h.
#define EMU_HERE() (emu::cur->pc = __builtin_return_address(0))

}  // namespace emu
