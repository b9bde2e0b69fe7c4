// mbarriers: phases of arrivals and of transferred bytes. PTX ISA, "mbarrier". The object in shared memory
// is opaque: its state is kept beside, by its place.
#pragma once

#include "atomic.h"

namespace emu {

constexpr long kMostBytes = (1 << 20) - 1;  // of a transaction count, either sign

static Mbarrier* find_mbarrier(Cta* c, usize offset) {
  for (int i = 0; i < c->mbarrier_count; ++i)
    if (c->mbarriers[i].live && c->mbarriers[i].offset == offset) return &c->mbarriers[i];
  return nullptr;
}

// The barrier that block `c` has at the place of `bar`; its init happened before.
static Mbarrier& mbarrier_of(const char* what, const U64* bar, Cta* c) {
  const usize at = reinterpret_cast<usize>(bar);
  check_shared_bounds(cur->cta, cur, cur->pc, at, 8, kRead, 8);
  remote_access(c, cur, cur->pc, what);
  const usize offset = offset_in(cur->cta, at);
  Mbarrier* m = find_mbarrier(c, offset);
  if (!m)
    fail(kBarrier, "%s: no mbarrier was initialised at byte %lu of the shared memory of block %d",
        what, offset, c->rank);
  if (g.checks) touch_shared(c, cur, cur->pc, offset, 8, cur->epoch | kAtomic, kRead);
  return *m;
}

static void say_mbarrier(const Mbarrier& m) {
  say("mbarrier at byte %u: phase %u, %u of %u arrivals, %ld bytes to come", m.offset, m.phase,
      m.count - m.pending, m.count, m.bytes);
}

// The clock of the barrier's slot that those who wait for its current phase will know.
static Epoch phase_epoch(const Mbarrier& m) {
  return epoch_of(g.sequence, static_cast<U64>(m.slot), m.completed + 1);
}

static void complete_phase_if_due(Mbarrier& m) {
  if (m.pending || m.bytes) return;
  ++m.phase;
  ++m.completed;
  m.pending = m.count;
  g.fruitless = 0;
  if (g.checks) {
    Clock* c = m.sync.clock ? copy(m.sync.clock) : zero_clock();
    c->clocks[m.slot] = m.completed;
    drop(m.sync.clock);
    m.sync.clock = c;
    assign(m.released, c);
  }
  for (int i = 0; i < g.fiber_count; ++i)
    if (g.fibers[i].key == &m) wake_one(&g.fibers[i]);
}

static void arrive(const char* what, Mbarrier& m) {
  if (m.pending == 0) {
    begin_failure(kBarrier, cur, cur->pc);
    say("%s: one arrival too many; ", what);
    say_mbarrier(m);
    give_up();
  }
  --m.pending;
  complete_phase_if_due(m);
}

static void transfer(const char* what, Mbarrier& m, long bytes) {
  m.bytes += bytes;
  if (m.bytes > kMostBytes || m.bytes < -kMostBytes)
    fail(kBarrier, "%s: a transaction count of %ld bytes, more than 2^20 - 1", what, m.bytes);
}

void mbarrier_init(U64* bar, unsigned count) {
  EMU_HERE();
  Cta* c = cur->cta;
  const usize at = reinterpret_cast<usize>(bar);
  shared_access(c, cur, cur->pc, at, 8, kWrite, 8);
  const usize offset = offset_in(c, at);
  if (count == 0 || count > static_cast<unsigned>(kMostBytes))
    fail(kMisuse, "mbarrier_init: a count of %u arrivals", count);
  if (find_mbarrier(c, offset))
    fail(kBarrier, "mbarrier_init: byte %lu already holds an mbarrier (mbarrier_inval comes first)",
        offset);
  Mbarrier* m = nullptr;
  for (int i = 0; i < c->mbarrier_count && !m; ++i)
    if (!c->mbarriers[i].live && c->mbarriers[i].offset == offset) m = &c->mbarriers[i];
  if (!m) {
    if (c->mbarrier_count == kBarriers)
      fail(kMisuse, "mbarrier_init: the emulator has %d mbarriers per block", kBarriers);
    const int i = c->mbarrier_count++;
    m = &c->mbarriers[i];
    *m = Mbarrier();
    m->slot = g.fiber_count + c->rank * kBarriers + i;
  }
  m->offset = static_cast<unsigned>(offset);
  m->live = true;
  m->fenced = false;
  m->count = m->pending = count;
  m->bytes = 0;
  m->phase = 0;
  m->initialiser = cur;
  clear(m->sync);
  assign(m->released, nullptr);
  memset(bar, 0, 8);
}

void mbarrier_inval(U64* bar) {
  EMU_HERE();
  Mbarrier& m = mbarrier_of("mbarrier_inval", bar, cur->cta);
  m.live = false;
  shared_access(cur->cta, cur, cur->pc, reinterpret_cast<usize>(bar), 8, kWrite, 8);
}

void fence_mbarrier_init() {
  EMU_HERE();
  for (int i = 0; i < cur->cta->mbarrier_count; ++i)
    if (cur->cta->mbarriers[i].initialiser == cur) cur->cta->mbarriers[i].fenced = true;
}

void mbarrier_arrive(U64* bar, unsigned rank) {
  EMU_HERE();
  const char* what = rank == kOwnRank ? "mbarrier_arrive" : "mbarrier_arrive_remote";
  Mbarrier& m = mbarrier_of(what, bar, rank == kOwnRank ? cur->cta : peer(rank));
  release_to(m.sync, cur);
  arrive(what, m);
}

void mbarrier_arrive_expect_tx(U64* bar, unsigned bytes) {
  EMU_HERE();
  Mbarrier& m = mbarrier_of("mbarrier_arrive_expect_tx", bar, cur->cta);
  transfer("mbarrier_arrive_expect_tx", m, static_cast<long>(bytes));
  release_to(m.sync, cur);
  arrive("mbarrier_arrive_expect_tx", m);
}

void mbarrier_expect_tx(U64* bar, unsigned bytes) {
  EMU_HERE();
  Mbarrier& m = mbarrier_of("mbarrier_expect_tx", bar, cur->cta);
  transfer("mbarrier_expect_tx", m, static_cast<long>(bytes));
}

static bool phase_complete(const Mbarrier& m, unsigned parity) { return (m.phase & 1) != parity; }

static bool passed(const Mbarrier& m, unsigned parity) {
  if (!phase_complete(m, parity)) return false;
  if (g.checks) acquire(cur, m.released);
  return true;
}

// phaseParity is 0 or 1; PTX says nothing of other values.
static void check_parity(const char* what, unsigned parity) {
  if (parity > 1) fail(kMisuse, "%s: the parity of a phase is 0 or 1, not %u", what, parity);
}

// May suspend the thread; here until nothing else can run, so that a loop of polls ends.
bool mbarrier_try_wait(U64* bar, unsigned parity) {
  EMU_HERE();
  check_parity("mbarrier_try_wait", parity);
  Mbarrier& m = mbarrier_of("mbarrier_try_wait", bar, cur->cta);
  if (!phase_complete(m, parity)) poll("mbarrier_try_wait");
  return passed(m, parity);
}

void mbarrier_wait(U64* bar, unsigned parity) {
  EMU_HERE();
  check_parity("wait", parity);
  Mbarrier& m = mbarrier_of("wait", bar, cur->cta);
  while (!phase_complete(m, parity)) park("wait", &m);
  passed(m, parity);
}

}  // namespace emu
