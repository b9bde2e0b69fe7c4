// Vector clocks: what happened before what (Lamport's relation; the race detection of FastTrack, Flanagan
// and Freund 2009).
//
// Each thread of the cluster has a clock that advances when it releases. A thread's `base` says for
// every thread up to which of its clocks it has acquired; threads that leave a barrier together share
// one. Behind the threads follow slots for what is no thread: each mbarrier (its clock counts phases,
// and bulk copies write as it), the predecessors of a dependent launch, and copies under way, which
// nobody ever acquires. Clusters run one after the other, yet are concurrent: what a thread acquired
// from earlier ones, through atomics, is a list by cluster, `foreign`.
#pragma once

#include "fiber.h"

namespace emu {

constexpr int kClockBits = 23, kThreadBits = 15;
constexpr U64 kClockMask = (1ull << kClockBits) - 1, kThreadMask = (1ull << kThreadBits) - 1;
constexpr U64 kAtomic = 1ull << (kClockBits + kThreadBits);
constexpr int kSequenceShift = kClockBits + kThreadBits + 1;

static inline Epoch epoch_of(U64 sequence, U64 thread, U64 clock) {
  return sequence << kSequenceShift | thread << kClockBits | clock;
}
static inline unsigned clock_of(Epoch e) { return static_cast<unsigned>(e & kClockMask); }
static inline int thread_of(Epoch e) { return static_cast<int>(e >> kClockBits & kThreadMask); }
static inline U64 sequence_of(Epoch e) { return e >> kSequenceShift; }

struct Clock {
  int references;
  Foreign* foreign;
  Clock* next_free;
  unsigned clocks[];
};

struct Foreign {  // immutable, newest cluster first
  U64 sequence;
  Clock* clock;
  Foreign* next;
};

static Clock* free_clocks = nullptr;  // of this launch

static Clock* new_clock() {
  Clock* c = free_clocks;
  if (c)
    free_clocks = c->next_free;
  else
    c = static_cast<Clock*>(
        launch_arena.take(sizeof(Clock) + sizeof(unsigned) * static_cast<usize>(g.clock_length)));
  c->references = 1;
  c->foreign = nullptr;
  return c;
}
static Clock* zero_clock() {
  Clock* c = new_clock();
  memset(c->clocks, 0, sizeof(unsigned) * static_cast<usize>(g.clock_length));
  return c;
}
static inline Clock* retain(Clock* c) {
  if (c) ++c->references;
  return c;
}
static inline void drop(Clock* c) {
  if (c && --c->references == 0) {
    c->next_free = free_clocks;
    free_clocks = c;
  }
}
static inline void assign(Clock*& to, Clock* from) {
  retain(from);
  drop(to);
  to = from;
}
static Clock* copy(const Clock* from) {
  Clock* c = new_clock();
  c->foreign = from->foreign;
  memcpy(c->clocks, from->clocks, sizeof(unsigned) * static_cast<usize>(g.clock_length));
  return c;
}

static Clock* joined(Clock* a, Clock* b);

static Foreign* merged(Foreign* a, Foreign* b) {
  Foreign* first = nullptr;
  Foreign** end = &first;
  while (a != b && a && b) {
    Foreign* f = static_cast<Foreign*>(launch_arena.take(sizeof(Foreign)));
    const U64 sequence = a->sequence > b->sequence ? a->sequence : b->sequence;
    const bool in_a = a->sequence == sequence, in_b = b->sequence == sequence;
    f->sequence = sequence;
    f->clock = in_a && in_b ? joined(a->clock, b->clock) : retain(in_a ? a->clock : b->clock);
    if (in_a) a = a->next;
    if (in_b) b = b->next;
    *end = f;
    end = &f->next;
  }
  *end = a ? a : b;
  return first;
}

static void join_into(Clock* to, const Clock* from) {
  const int n = g.clock_length;
  for (int i = 0; i < n; ++i)
    if (from->clocks[i] > to->clocks[i]) to->clocks[i] = from->clocks[i];
  if (from->foreign) to->foreign = merged(to->foreign, from->foreign);
}

// Threads that share their knowledge acquire the same thing one after the other.
static struct {
  Clock *a, *b, *join;
} last_join;

// A reference to what knows both; neither is changed.
static Clock* joined(Clock* a, Clock* b) {
  if (a == b || !b) return retain(a);
  if (!a) return retain(b);
  if (last_join.a == a && last_join.b == b) return retain(last_join.join);
  unsigned more = 0;  // a knows something that b does not
  for (int i = 0; i < g.clock_length; ++i) more |= a->clocks[i] > b->clocks[i];
  Clock* result;
  if (!more && (a->foreign == b->foreign || !a->foreign)) {
    result = retain(b);
  } else {
    result = copy(a);
    join_into(result, b);
  }
  assign(last_join.a, a);
  assign(last_join.b, b);
  assign(last_join.join, result);
  return result;
}

static void forget_clocks() {  // of the launch before
  free_clocks = nullptr;
  last_join = {};
}

// The thread's accesses from now on are not known to whom it released before.
static inline void tick(Fiber* f) {
  if (clock_of(f->epoch) == kClockMask)
    fail(kFault, "more synchronisation than the emulator counts");
  ++f->epoch;
}

static inline void set_base(Fiber* f, Clock* c) {  // takes the reference
  drop(f->base);
  f->base = c;
  f->known = c->clocks;
}

// Adds what `f` knows and did; `f` goes on with a new clock.
static void release_to(Sync& s, Fiber* f) {
  if (!g.checks) return;
  if (!s.clock) {
    s.clock = copy(f->base);
  } else {
    if (s.clock->references > 1) {
      Clock* own = copy(s.clock);
      drop(s.clock);
      s.clock = own;
    }
    if (s.last != f->base) join_into(s.clock, f->base);
  }
  if (s.last != f->base) assign(s.last, f->base);
  s.clock->clocks[f->index] = clock_of(f->epoch);
  tick(f);
}

static inline void acquire(Fiber* f, Clock* c) {
  if (!c || c == f->base) return;
  set_base(f, joined(f->base, c));
}

// For the next round of a barrier, whose members all waited.
static void clear(Sync& s) {
  drop(s.clock);
  drop(s.last);
  s = Sync();
}

[[gnu::noinline]] static bool ordered_far(Epoch e, const Fiber* f) {
  for (const Foreign* at = f->base->foreign; at; at = at->next)
    if (at->sequence == sequence_of(e)) return at->clock->clocks[thread_of(e)] >= clock_of(e);
  return false;
}

// Whether the access `e` happened before what `f` does now.
static inline bool ordered(Epoch e, const Fiber* f) {
  if ((e ^ f->epoch) >> kSequenceShift) return ordered_far(e, f);
  const int t = thread_of(e);
  return t == f->index || f->known[t] >= clock_of(e);
}

}  // namespace emu
