// Collectives of a warp, barriers of a block and of a cluster, fences of proxies, dependent launch.
#pragma once

#include "memory.h"

namespace emu {

// Runs the collective if this lane is the last; returns whether it is.
static bool arrive_at_collective(const char* what, void* payload) {
  Warp& w = *cur->warp;
  if (w.arrived == 0) {
    w.what = what;
  } else if (w.what != what && strcmp(w.what, what) != 0) {
    fail(kDiverged, "diverged warp: this lane is at %s while another waits at %s", what, w.what);
  }
  w.payload[lane()] = payload;
  return ++w.arrived == w.size;
}

static void leave_collective(Warp& w, Clock* released) {
  w.arrived = 0;
  for (int i = 0; i < w.size; ++i) {
    Fiber* f = w.first + i;
    if (released) acquire(f, released);
    if (f->key == &w) wake_one(f);
  }
}

void collective(const char* what, void* payload, void (*all)(Warp&, void** lane)) {
  EMU_HERE();
  if (!arrive_at_collective(what, payload)) return park(what, cur->warp);
  all(*cur->warp, cur->warp->payload);
  leave_collective(*cur->warp, nullptr);
}

// A warp that must be together, where the device's instruction is .aligned.
static void gather(const char* what) {
  if (!arrive_at_collective(what, nullptr)) return park(what, cur->warp);
  leave_collective(*cur->warp, nullptr);
}

void sync_warp() {
  EMU_HERE();
  Sync& s = cur->cta->warp_sync[cur->thread / 32];
  const bool last = arrive_at_collective("sync_warp", nullptr);
  release_to(s, cur);
  if (!last) return park("sync_warp", cur->warp);
  leave_collective(*cur->warp, s.clock);
  clear(s);
}

// A thread that has exited does not arrive: the generator never lets a thread leave before its
// block's last barrier, so waiting for it is reported as a deadlock.
static void block_barrier(const char* what, int id, int count, bool wait) {
  if (id < 0 || id >= 16) fail(kMisuse, "%s: barrier %d does not exist", what, id);
  if (count <= 0 || count > cur->cta->threads)
    fail(kMisuse, "%s: barrier of %d threads in a block of %d", what, count, cur->cta->threads);
  BlockBarrier& b = cur->cta->barriers[id];
  if (b.arrived == 0)
    b.expected = count;
  else if (b.expected != count)
    fail(kBarrier, "%s: barrier %d of %d threads, but others came for %d", what, id, count,
        b.expected);
  release_to(b.sync, cur);
  if (++b.arrived < count) {
    if (wait) park(what, &b);
    return;
  }
  b.arrived = 0;
  if (wait && g.checks) acquire(cur, b.sync.clock);
  Fiber* first = cur->cta->first;
  for (int i = 0; i < cur->cta->threads; ++i)
    if (first[i].key == &b) {
      if (g.checks) acquire(&first[i], b.sync.clock);
      wake_one(&first[i]);
    }
  clear(b.sync);
}

void sync_block() {
  EMU_HERE();
  block_barrier("sync_block", 0, cur->cta->threads, true);
}

// What a thread says stays until every thread has heard it: of three places in turn the next one is
// emptied, which all have left that come here for the third time.
bool sync_any(bool says) {
  EMU_HERE();
  const unsigned turn = cur->votes++ % 3;
  bool* said = cur->cta->said;
  said[(turn + 1) % 3] = false;
  said[turn] |= says;
  block_barrier("sync_any", 0, cur->cta->threads, true);
  return said[turn];
}

void bar(int id, int threads, bool wait) {
  EMU_HERE();
  const char* what = wait ? "bar_sync" : "bar_arrive";
  if (threads % 32) fail(kMisuse, "%s: %d threads are not whole warps", what, threads);
  block_barrier(what, id, threads, wait);
}

// ---- clusters

static void complete_cluster_barrier() {
  g.cluster_phase++;
  g.cluster_missing = g.live;
  assign(g.cluster_released, g.cluster_sync.clock);
  clear(g.cluster_sync);
  for (int i = 0; i < g.fiber_count; ++i)
    if (g.fibers[i].key == &g.cluster_phase) wake_one(&g.fibers[i]);
}

static void arrive_at_cluster_barrier() {
  release_to(g.cluster_sync, cur);
  if (--g.cluster_missing == 0) complete_cluster_barrier();
}

// Both are .aligned on the device: the whole warp must be there.
void cluster_arrive() {
  EMU_HERE();
  gather("cluster_arrive");
  if (cur->cluster_arrived) fail(kBarrier, "cluster_arrive twice without cluster_wait");
  cur->cluster_arrived = true;
  cur->cluster_phase = g.cluster_phase;
  arrive_at_cluster_barrier();
}

void cluster_wait() {
  EMU_HERE();
  gather("cluster_wait");
  if (!cur->cluster_arrived) fail(kBarrier, "cluster_wait without cluster_arrive");
  if (cur->cluster_phase == g.cluster_phase) park("cluster_wait", &g.cluster_phase);
  cur->cluster_arrived = false;
  if (g.checks) acquire(cur, g.cluster_released);
}

// ---- proxies and dependent launch

void fence_proxy_async() {
  EMU_HERE();
  if (!g.checks) return;
  cur->proxy_fence = clock_of(cur->epoch);
  assign(cur->proxy_base, cur->base);
  for (int r = 0; r < g.cta_count; ++r)
    for (int i = 0; i < g.ctas[r].mbarrier_count; ++i)
      if (g.ctas[r].mbarriers[i].initialiser == cur) g.ctas[r].mbarriers[i].fenced = true;
  tick(cur);
}

// Whether bulk copies started by the running thread may read what was written at `e`: a proxy fence
// lies between. If the writer has fenced since its last release that we know of, it is not known
// whether it did before, too, and taken as such. Bulk copies write as they read; those of threads that
// complete an mbarrier are fenced by who has waited for it.
static bool proxy_fenced(Epoch e) {
  if (sequence_of(e) != g.sequence) return true;
  if (const int at = thread_of(e) - g.fiber_count; at >= 0) {
    if (at >= g.cta_count * kBarriers || !g.ctas[at / kBarriers].mbarriers[at % kBarriers].of_threads)
      return true;
  } else if (g.fibers[thread_of(e)].proxy_fence >= clock_of(e)) {
    return true;
  }
  return cur->proxy_base && cur->proxy_base->clocks[thread_of(e)] >= clock_of(e);
}

void grid_wait() {
  EMU_HERE();
  if (g.checks) acquire(cur, g.after_predecessors);
}

// What is launched next may start, and what was launched before may still run.
void grid_trigger() {
  if (g.checks && !cur->known[g.pdl_slot]) g.launch->early = 1;
}

}  // namespace emu
