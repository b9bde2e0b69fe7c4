// Atomics on global memory, scope gpu. What a release published stays at the address until a store replaces
// it (a release sequence continues through read-modify-writes); an acquire takes it. A relaxed
// operation does so together with a fence: PTX ISA, "Memory Consistency Model", synchronizes-with.
#pragma once

#include "barrier.h"

namespace emu {

constexpr int kCtaScope = 0, kGpuScope = 1;

struct Location {
  usize at;
  Foreign* published[2];  // by scope; that of a block is for its threads only
  const Cta* cta;
  U64 sequence;
};

constexpr usize kLocations = 1 << 16;
static Location* locations = nullptr;  // open addressing, of this launch

static void forget_locations() { locations = nullptr; }

static Location& location(const void* p) {
  if (!locations) locations = make<Location>(launch_arena, kLocations);
  const usize at = reinterpret_cast<usize>(p);
  for (usize i = at / 4, n = 0; n < kLocations; ++i, ++n) {
    Location& l = locations[i % kLocations];
    if (l.at == at || !l.at) {
      l.at = at;
      return l;
    }
  }
  fail(kFault, "atomics on more than %lu addresses", kLocations);
}

// What the thread knows and did, for threads of any cluster.
static Foreign* published() {
  Clock* c = copy(cur->base);
  c->clocks[cur->index] = clock_of(cur->epoch);
  Foreign* f = make<Foreign>(launch_arena);
  *f = Foreign{g.sequence, c, nullptr};
  Foreign* all = merged(f, c->foreign);
  tick(cur);
  return all;
}

static void acquire_published(Foreign* all) {
  if (!all) return;
  Clock* c = copy(cur->base);
  for (const Foreign* f = all; f; f = f->next)
    if (f->sequence == g.sequence) join_into(c, f->clock);
  c->foreign = merged(c->foreign, all);
  set_base(cur, c);
}

static void release_at(Location& l, bool replace, Foreign* gpu, Foreign* cta) {
  if (l.cta != cur->cta || l.sequence != g.sequence) {
    l.published[kCtaScope] = nullptr;
    l.cta = cur->cta;
    l.sequence = g.sequence;
  }
  if (replace) l.published[kCtaScope] = l.published[kGpuScope] = nullptr;
  l.published[kGpuScope] = merged(l.published[kGpuScope], gpu);
  l.published[kCtaScope] = merged(l.published[kCtaScope], cta);
}

static Foreign* visible(const Location& l) {
  const bool here = l.cta == cur->cta && l.sequence == g.sequence;
  return here ? merged(l.published[kGpuScope], l.published[kCtaScope]) : l.published[kGpuScope];
}

void fence(bool gpu) {
  EMU_HERE();
  if (!g.checks) return;
  acquire_published(cur->unfenced);
  cur->unfenced = nullptr;
  Foreign* all = published();
  cur->fenced[kCtaScope] = all;
  if (gpu) cur->fenced[kGpuScope] = all;
}

static void synchronise(const void* at, Order order, bool reads, bool writes, bool replaces) {
  if (!g.checks) return;
  Location& l = location(at);
  if (reads) {
    if (order == kAcquire || order == kAcqRel)
      acquire_published(visible(l));
    else
      cur->unfenced = merged(cur->unfenced, visible(l));
  }
  if (!writes) return;
  if (order == kRelease || order == kAcqRel)
    release_at(l, replaces, published(), nullptr);
  else
    release_at(l, replaces, cur->fenced[kGpuScope], cur->fenced[kCtaScope]);
}

static void atomic_access(const void* pc, const void* at, Access a) {
  global_access(cur, pc, reinterpret_cast<usize>(at), 4, kRead, 4, kAtomic);
  if (a == kWrite) global_access(cur, pc, reinterpret_cast<usize>(at), 4, kWrite, 4, kAtomic);
}

unsigned atom_add(unsigned* at, unsigned value, Order order) {
  atomic_access(EMU_HERE(), at, kWrite);
  synchronise(at, order, true, true, false);
  const unsigned old = *at;
  *at = old + value;
  return old;
}
unsigned atom_exch(unsigned* at, unsigned value, Order order) {
  atomic_access(EMU_HERE(), at, kWrite);
  synchronise(at, order, true, true, false);
  const unsigned old = *at;
  *at = value;
  return old;
}
unsigned atom_cas(unsigned* at, unsigned expected, unsigned value, Order order) {
  atomic_access(EMU_HERE(), at, kWrite);
  const unsigned old = *at;
  synchronise(at, order, true, old == expected, false);
  if (old == expected) *at = value;
  return old;
}
unsigned atomic_load(const unsigned* at) {
  atomic_access(EMU_HERE(), at, kRead);
  synchronise(at, kAcquire, true, false, false);
  return *at;
}
void atomic_store(unsigned* at, unsigned value) {
  global_access(cur, EMU_HERE(), reinterpret_cast<usize>(at), 4, kWrite, 4, kAtomic);
  synchronise(at, kRelease, false, true, true);
  *at = value;
}

}  // namespace emu
