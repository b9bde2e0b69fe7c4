// The threads of one cluster, from their start to their end: the scheduler, exits, deadlocks.
#pragma once

#include "warpgroup.h"

namespace emu {

static void fiber_main() {
  g.call(g.launch->args);
  Cta& c = *cur->cta;
  check_copies_at_exit();
  check_warpgroup_at_exit();
  cur->done = true;
  grid_trigger();  // implied
  --g.live;
  release_to(c.exits, cur);
  // An exited thread counts as arrived at the cluster barrier.
  if (!(cur->cluster_arrived && cur->cluster_phase == g.cluster_phase)) arrive_at_cluster_barrier();
  // Its shared memory may be given to another block now: whoever still reads it reads poison.
  if (--c.live == 0) {
    check_block_at_exit(c);
    if (g.smem_bytes) memset(c.smem, kPoison, static_cast<usize>(g.smem_bytes));
  }
  to_scheduler();
  __builtin_unreachable();
}

static void say_waiting(const Fiber* f) {
  say(" at %s", f->waits ? f->waits : "nothing");
  if (f->pc) say("\x01%lx\x02", place(f->pc));
  for (const BlockBarrier& b : f->cta->barriers)
    if (f->key == &b) say(" (%d of %d arrived)", b.arrived, b.expected);
  if (f->key == f->warp) say(" (%d of %d lanes arrived)", f->warp->arrived, f->warp->size);
  if (f->key == &g.cluster_phase) say(" (%d threads missing)", g.cluster_missing);
  for (const Mbarrier& m : f->cta->mbarriers)
    if (f->key == &m) say(" ("), say_mbarrier(m), say(")");
}

static void deadlock() {
  const Fiber* stuck = nullptr;
  for (int i = 0; i < g.fiber_count && !stuck; ++i)
    if (!g.fibers[i].done) stuck = &g.fibers[i];
  begin_failure(kDeadlock, stuck, stuck->pc);
  say("deadlock: ");
  bool comma = false;
  for (int c = 0; c < g.cta_count; ++c) {
    const Cta& cta = g.ctas[c];
    for (int i = 0, j; i < cta.threads && cta.live; i = j) {  // runs in the same condition
      const Fiber* f = &cta.first[i];
      for (j = i + 1; j < cta.threads; ++j) {
        const Fiber* o = &cta.first[j];
        if (o->key != f->key || o->done != f->done || (!f->done && o->pc != f->pc)) break;
      }
      const bool many = j - i > 1;
      say("%sblock (%d,%d,%d) thread", comma ? "; " : "", cta.block[0], cta.block[1], cta.block[2]);
      if (many)
        say("s %d-%d ", i, j - 1);
      else
        say(" %d ", i);
      say(f->done ? "exited" : many ? "wait" : "waits");
      if (!f->done) say_waiting(f);
      comma = true;
    }
  }
}

static void start_clocks() {
  const bool checks = g.checks;
  ++g.sequence;
  cluster_arena.start_over();
  shared_readers.start_over();
  forget_copies();
  Clock* start = checks ? zero_clock() : nullptr;
  for (int i = 0; i < g.fiber_count; ++i) {
    Fiber* f = &g.fibers[i];
    f->epoch = epoch_of(g.sequence, static_cast<U64>(i), 1);
    f->base = nullptr;
    if (checks) set_base(f, retain(start));
    f->fenced[0] = f->fenced[1] = f->unfenced = nullptr;
    f->proxy_fence = 0;
    f->proxy_base = nullptr;
    f->loads = f->stores = nullptr;
    f->load_group = f->store_group = 0;
    f->wgmma_fenced = false;
    f->votes = 0;
  }
  drop(start);
}

static void drop_clocks() {
  for (int i = 0; i < g.fiber_count; ++i) drop(g.fibers[i].base), drop(g.fibers[i].proxy_base);
  for (int r = 0; r < g.cta_count; ++r) {
    Cta& c = g.ctas[r];
    clear(c.exits);
    for (int i = 0; i < c.mbarrier_count; ++i) {
      clear(c.mbarriers[i].sync);
      drop(c.mbarriers[i].released);
    }
  }
  clear(g.cluster_sync);
  assign(g.cluster_released, nullptr);
}

static void start_cluster(const int* base) {
  const Launch& l = *g.launch;
  g.head = g.tail = g.poller_count = g.fruitless = 0;
  g.live = g.cluster_missing = g.fiber_count;
  g.cluster_phase++;
  g.cluster_sync = Sync();
  g.cluster_released = nullptr;
  start_clocks();
  for (int r = 0; r < g.cta_count; ++r) {
    Cta& c = g.ctas[r];
    c.rank = r;
    c.block[0] = base[0] + r;
    c.block[1] = base[1];
    c.block[2] = base[2];
    c.live = c.threads;
    for (BlockBarrier& b : c.barriers) b = BlockBarrier();
    for (bool& said : c.said) said = false;
    for (Warp& w : c.warps) w.arrived = 0;
    for (Warpgroup& w : c.warpgroups) w = Warpgroup();
    for (Sync& s : c.warp_sync) s = Sync();
    c.mbarrier_count = 0;
    c.exits = Sync();
    if (g.checks) c.remote = make<Remote>(cluster_arena, static_cast<usize>(g.fiber_count));
    if (l.smem_bytes) memset(c.smem, kPoison, g.smem_capacity);
  }
  for (int i = 0; i < g.fiber_count; ++i) {
    Fiber* f = &g.fibers[l.descending ? g.fiber_count - 1 - i : i];
    f->done = f->cluster_arrived = false;
    f->waits = nullptr;
    f->key = nullptr;
    f->pc = nullptr;
    start_fiber(f, &fiber_main);
    enqueue(f);
  }
}

// Plain stores between the end of shared memory and its page's end; with checks there are none.
static bool damaged_shared_memory() {
  for (int r = 0; r < g.cta_count; ++r) {
    const Cta& c = g.ctas[r];
    for (usize i = static_cast<usize>(g.smem_bytes); i < g.smem_capacity && g.smem_bytes; ++i)
      if (static_cast<unsigned char>(c.smem[i]) != kPoison) {
        begin_failure(kOutOfBounds, c.first, nullptr);
        g.failure->thread = -1;
        say("block (%d,%d,%d): shared memory was written at byte %lu of %d", c.block[0], c.block[1],
            c.block[2], i, g.smem_bytes);
        return true;
      }
  }
  return false;
}

static void run_cluster(const int* base) {
  start_cluster(base);
  for (;;) {
    while (g.head != g.tail) {
      Fiber* f = g.queue[g.head];
      if (++g.head == g.slots) g.head = 0;
      to_fiber(f);
      if (g.failed) return;
    }
    if (finish_one_copy()) continue;
    if (!g.poller_count || g.fruitless++ > 1000) break;
    for (int i = 0; i < g.poller_count; ++i) enqueue(g.pollers[i]);
    g.poller_count = 0;
  }
  if (g.live) return deadlock();
  if (!g.checks && damaged_shared_memory()) return;
  if (g.checks) drop_clocks();
}

}  // namespace emu
