// Checked memory: bounds, alignment, uninitialised bytes, races, bytes that belong to a copy under way,
// and what a dependent launch may touch before its wait. Every access of the kernels' text comes here:
// through api.h, or, for plain C++, through the calls that -fsanitize=thread,alignment puts before it.
#pragma once

#include "shadow.h"

namespace emu {

struct Tensor {  // its bytes lie between guard pages (reserve.h)
  char* data;
  usize bytes;
  Cell* words;  // allocated when a kernel first writes it
  Cell* parts;
  unsigned char* written;  // per byte; null: all are initialised
  Tensor* next;
};

struct Region {  // a tensor as this launch sees it
  usize lo, hi;
  Tensor* tensor;
  const Range* range;
  bool tracked;  // somebody may write it
  bool writes_waited;  // its writes, its reads: only after grid_wait
  bool reads_waited;
};

static Region regions[64];
static int region_count = 0;
static int last_region = 0;

static inline const char* verb(Access a) { return a == kRead ? "read" : "write"; }

// ---- what is said of errors

struct Target {  // what lies at an address: a tensor, or a block's shared memory
  const Region* region;
  const Cta* cta;
  usize offset;
};

static void say_target(const Target& t) {
  if (t.region) {
    say("byte %lu of tensor '%s'", t.offset, t.region->range->name);
  } else {
    say("byte %lu of ", t.offset);
    if (t.cta != cur->cta) say("block %d's ", t.cta->rank);
    say("shared memory");
  }
}

static void say_epoch(Epoch e, unsigned at) {
  const int t = thread_of(e);
  if (sequence_of(e) != g.sequence) {  // blocks of another cluster, in the order of launch()
    const int* grid = g.launch->grid;
    const int wide = grid[0] / g.launch->cluster;
    const long n = static_cast<long>(sequence_of(e) - g.first_sequence);
    const int rank = t / g.launch->block;
    say("block (%ld,%ld,%ld), thread %d", n % wide * g.launch->cluster + rank, n / wide % grid[1],
        n / wide / grid[1], t % g.launch->block);
  } else if (t < g.fiber_count) {
    const Fiber* f = &g.fibers[t];
    if (f->cta == cur->cta)
      say("thread %d", f->thread);
    else
      say_thread(f);
  } else {
    say("an asynchronous copy");
  }
  if (at) say("\x01%x\x02", at);
}

[[noreturn, gnu::noinline, gnu::cold]] static void conflict(const Fiber* f, const void* pc,
    const Target& t, usize size, Access a, Epoch other, Access other_access, unsigned other_place) {
  const bool copy = thread_of(other) == g.copy_slot;
  begin_failure(copy ? kInFlight : kRace, f, pc);
  if (copy && other_access == kWrite) {
    say("use of an asynchronous result before its wait: %s of %lu bytes at ", verb(a), size);
    say_target(t);
    say(", which the copy");
    if (other_place) say("\x01%x\x02", other_place);
    say(" has not been waited for");
  } else if (copy) {
    say("write of %lu bytes at ", size);
    say_target(t);
    say(", which the store or product");
    if (other_place) say("\x01%x\x02", other_place);
    say(" may not have read yet (bulk_wait_read or wgmma_wait comes first)");
  } else {
    say("data race: %s of %lu bytes at ", verb(a), size);
    say_target(t);
    say(", and nothing orders it after the %s by ", verb(other_access));
    say_epoch(other, other_place);
  }
  give_up();
}

[[noreturn, gnu::noinline, gnu::cold]] static void unwritten(
    const Fiber* f, const void* pc, const Target& t, usize size) {
  begin_failure(kUninitialised, f, pc);
  say("read of %lu bytes at ", size);
  say_target(t);
  say(", which was never written");
  give_up();
}

[[noreturn, gnu::noinline, gnu::cold]] static void out_of_bounds(
    const Fiber* f, const void* pc, usize at, usize size, Access a) {
  const Region* best = nullptr;
  usize best_distance = 16ul << 20;
  for (int i = 0; i < region_count; ++i) {
    const Region& r = regions[i];
    const usize distance = at < r.lo ? r.lo - at : at + size > r.hi ? at + size - r.hi : 0;
    if (distance < best_distance) best = &r, best_distance = distance;
  }
  begin_failure(best && best_distance == 0 ? kReadOnly : kOutOfBounds, f, pc);
  const long byte = best ? static_cast<long>(at - best->lo) : 0;
  if (!best)
    say("out-of-bounds %s of %lu bytes at 0x%lx: no tensor of this kernel is there", verb(a), size,
        at);
  else if (best_distance == 0)
    say("write of %lu bytes to the read-only tensor '%s' (byte %ld)", size, best->range->name,
        byte);
  else
    say("out-of-bounds %s of %lu bytes: byte %ld of tensor '%s', which has %lu", verb(a), size,
        byte, best->range->name, best->hi - best->lo);
  give_up();
}

[[noreturn, gnu::noinline, gnu::cold]] static void misaligned(
    const Fiber* f, const void* pc, const char* what, usize at, usize size, Access a) {
  begin_failure(kMisaligned, f, pc);
  say("misaligned %s %s of %lu bytes at 0x%lx", what, verb(a), size, at);
  give_up();
}

[[noreturn, gnu::noinline, gnu::cold]] static void before_wait(
    const Fiber* f, const void* pc, const Region& r, Access a) {
  begin_failure(kPdl, f, pc);
  say("%s of tensor '%s' before grid_wait, when the kernels before may still %s it", verb(a),
      r.range->name, r.reads_waited ? "write" : "use");
  give_up();
}

// ---- the checks

static inline unsigned place32(const void* pc) { return static_cast<unsigned>(place(pc)); }

// Recorded as epoch `e`; `f`'s knowledge decides. An atomic access conflicts with no other.
template <bool kGlobal>
static inline void touch(
    Cell& c, Fiber* f, const void* pc, Epoch e, Access a, const Target& t, usize size) {
  if (fresh<kGlobal>(c.write)) {
    if (!ordered(c.write, f) && !(c.write & e & kAtomic))
      conflict(f, pc, t, size, a, c.write, kWrite, c.write_place);
  } else if (!kGlobal && a == kRead) {
    unwritten(f, pc, t, size);
  }
  if (a == kRead) {
    if (c.read == e || (e & kAtomic)) return;
    if (!fresh<kGlobal>(c.read) ||
        (thread_of(c.read) != static_cast<int>(kMany) && ordered(c.read, f)))
      c.read = e;
    else
      add_reader<kGlobal>(c, e, f);
    c.read_place = place32(pc);
    return;
  }
  if (c.read) {
    if (const Epoch reader = concurrent_reader<kGlobal>(c, f))
      conflict(f, pc, t, size, a, reader, kRead, c.read_place);
    forget_readers<kGlobal>(c);
  }
  c.write = e;
  c.write_place = place32(pc);
}

static inline usize offset_in(const Cta* c, usize at) {
  return at - reinterpret_cast<usize>(c->smem);
}

// Of the shared memory of `c`, within its bounds.
static inline void touch_shared(
    Cta* c, Fiber* f, const void* pc, usize offset, usize size, Epoch e, Access a) {
  for_cells<false>(c->cells, c->bytes, offset, size,
      [&](Cell& cell, usize at) { touch<false>(cell, f, pc, e, a, Target{nullptr, c, at}, size); });
}

static void check_shared_bounds(
    const Cta* c, Fiber* f, const void* pc, usize at, usize size, Access a, usize alignment) {
  const usize offset = offset_in(c, at), bytes = static_cast<usize>(g.smem_bytes);
  if (offset >= bytes || offset + size > bytes) {
    begin_failure(kOutOfBounds, f, pc);
    say("out-of-bounds shared %s of %lu bytes at byte %ld of %d", verb(a), size,
        static_cast<long>(offset), g.smem_bytes);
    give_up();
  }
  if (offset & (alignment - 1)) misaligned(f, pc, "shared", offset, size, a);
}

static inline void shared_access(
    Cta* c, Fiber* f, const void* pc, usize at, usize size, Access a, usize alignment) {
  check_shared_bounds(c, f, pc, at, size, a, alignment);
  if (g.checks) touch_shared(c, f, pc, offset_in(c, at), size, f->epoch, a);
}

[[gnu::noinline]] static void touch_global(
    const Region& r, Fiber* f, const void* pc, usize at, usize size, Epoch e, Access a) {
  if (a == kWrite ? r.writes_waited : r.reads_waited)
    if (!f->known[g.pdl_slot]) before_wait(f, pc, r, a);
  const usize offset = at - r.lo;
  if (unsigned char* written = r.tensor->written) {
    if (a == kWrite)
      memset(written + offset, 1, size);
    else
      for (usize i = 0; i < size; ++i)
        if (!written[offset + i]) unwritten(f, pc, Target{&r, nullptr, offset + i}, size);
  }
  if (r.tracked)
    for_cells<true>(r.tensor->words, r.tensor->parts, offset, size, [&](Cell& cell, usize byte) {
      touch<true>(cell, f, pc, e, a, Target{&r, nullptr, byte}, size);
    });
}

// The tensor with [at, at + size), or null.
static inline const Region* region_of(usize at, usize size) {
  for (int i = -1; i < region_count; ++i) {  // first the one that was right last time
    const int index = i < 0 ? last_region : i;
    const Region& r = regions[index];
    if (at >= r.lo && at + size <= r.hi && index < region_count) {
      last_region = index;
      return &r;
    }
  }
  return nullptr;
}

static inline const Region& bounded(
    Fiber* f, const void* pc, usize at, usize size, Access a, usize alignment) {
  if (at & (alignment - 1)) misaligned(f, pc, "global", at, size, a);
  const Region* r = region_of(at, size);
  if (!r || (a == kWrite && !r->range->writable)) out_of_bounds(f, pc, at, size, a);
  return *r;
}

static inline void global_access(
    Fiber* f, const void* pc, usize at, usize size, Access a, usize alignment, U64 atomic = 0) {
  const Region& r = bounded(f, pc, at, size, a, alignment);
  if (r.tracked || r.reads_waited || r.tensor->written)
    if (g.checks) touch_global(r, f, pc, at, size, f->epoch | atomic, a);
}

static inline bool in_smem(usize at) { return at - g.smem < g.smem_span; }

static Cta* peer(unsigned rank) {
  if (rank >= static_cast<unsigned>(g.cta_count))
    fail(kOutOfBounds, "cluster rank %u in a cluster of %d", rank, g.cta_count);
  return &g.ctas[rank];
}

// The shared memory of another block: it must have started, and not exit before.
static void remote_access(Cta* c, Fiber* f, const void* pc, const char* what) {
  if (c == f->cta) return;
  if (c->live == 0) {
    begin_failure(kExit, f, pc);
    say("%s of the shared memory of block %d of the cluster, which has exited", what, c->rank);
    give_up();
  }
  if (!g.checks) return;
  bool started = false;
  for (int t = 0; t < c->threads && !started; ++t) started = f->known[c->first[t].index] != 0;
  if (!started) {
    begin_failure(kRace, f, pc);
    say("%s of the shared memory of block %d of the cluster, which may not have started: a cluster "
        "barrier comes first",
        what, c->rank);
    give_up();
  }
  c->remote[f->index] = Remote{clock_of(f->epoch), pc};
}

// ---- api.h

void check_global_from(const void* pc, const void* p, usize size, Access a) {
  cur->pc = pc;
  global_access(cur, pc, reinterpret_cast<usize>(p), size, a, size);
}
void check_global(const void* p, usize size, Access a) {
  check_global_from(__builtin_return_address(0), p, size, a);
}

void check_shared(const Cta* c, const void* p, usize size, Access a) {
  EMU_HERE();
  shared_access(const_cast<Cta*>(c), cur, cur->pc, reinterpret_cast<usize>(p), size, a, size);
}

char* map_shared_from(const void* pc, const void* p, unsigned rank, usize size, Access a) {
  cur->pc = pc;
  const usize at = reinterpret_cast<usize>(p);
  check_shared_bounds(cur->cta, cur, pc, at, size, a, size);
  Cta* c = peer(rank);
  remote_access(c, cur, pc, verb(a));
  const usize offset = offset_in(cur->cta, at);
  if (g.checks) touch_shared(c, cur, pc, offset, size, cur->epoch, a);
  return c->smem + offset;
}
char* map_shared(const void* p, unsigned rank, usize size, Access a) {
  return map_shared_from(__builtin_return_address(0), p, rank, size, a);
}

void access(Fiber* f, const void* p, usize size, Access a) {
  const usize at = reinterpret_cast<usize>(p), alignment = size & (size - 1) ? 1 : size;
  if (in_smem(at))
    shared_access(f->cta, f, f->pc, at, size, a, alignment);
  else
    global_access(f, f->pc, at, size, a, alignment);
}

// ---- plain C++ accesses

static inline void plain(const void* pc, const void* p, usize size, Access a, usize alignment) {
  const usize at = reinterpret_cast<usize>(p);
  if (at - g.stacks < g.stacks_span) return;
  Fiber* f = cur;
  if (!f) return;
  if (in_smem(at)) return shared_access(f->cta, f, pc, at, size, a, alignment);
  const usize image = reinterpret_cast<usize>(&__ehdr_start);
  if (a == kRead && at - image < static_cast<usize>(&_end - &__ehdr_start)) return;  // constants
  global_access(f, pc, at, size, a, alignment);
}

}  // namespace emu

#define EMU_ACCESS(n) \
  void __tsan_read##n(void* p) { emu::plain(__builtin_return_address(0), p, n, emu::kRead, n); } \
  void __tsan_write##n(void* p) { emu::plain(__builtin_return_address(0), p, n, emu::kWrite, n); } \
  void __tsan_unaligned_read##n(void* p) { \
    emu::plain(__builtin_return_address(0), p, n, emu::kRead, 1); \
  } \
  void __tsan_unaligned_write##n(void* p) { \
    emu::plain(__builtin_return_address(0), p, n, emu::kWrite, 1); \
  }

extern "C" {
EMU_ACCESS(1)
EMU_ACCESS(2)
EMU_ACCESS(4)
EMU_ACCESS(8)
EMU_ACCESS(16)
void __tsan_read_range(void* p, unsigned long size) {
  if (size) emu::plain(__builtin_return_address(0), p, size, emu::kRead, 1);
}
void __tsan_write_range(void* p, unsigned long size) {
  if (size) emu::plain(__builtin_return_address(0), p, size, emu::kWrite, 1);
}
void __tsan_init() {}

struct EmuTypeMismatch {  // as g++ lays it out
  const char* file;
  unsigned line, column;
  const void* type;
  unsigned char log_alignment;
  unsigned char kind;  // 1: a store
};
void __ubsan_handle_type_mismatch_v1(const EmuTypeMismatch* what, void* p) {
  emu::Fiber* f = emu::cur;
  if (!f) return;
  const emu::usize at = reinterpret_cast<emu::usize>(p);
  const bool shared = emu::in_smem(at);
  emu::misaligned(f, __builtin_return_address(0), shared ? "shared" : "plain",
      shared ? emu::offset_in(f->cta, at) : at, 1ul << what->log_alignment,
      what->kind == 1 ? emu::kWrite : emu::kRead);
}
}
