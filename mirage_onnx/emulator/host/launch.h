// A launch: its clusters, one after the other.
#pragma once

#include <sys/time.h>

#include "cluster.h"
#include "fault.h"

namespace emu {

static bool prepare(const Launch& l) {
  if (l.cluster < 1 || l.cluster > kMostBlocks || l.grid[0] % l.cluster) {
    say("a grid of %d blocks is no multiple of the cluster's %d (16 at most)", l.grid[0],
        l.cluster);
    return false;
  }
  if (l.grid[0] < 1 || l.grid[1] < 1 || l.grid[2] < 1 || l.block < 1 || l.block > 1024) {
    say("a grid of %d x %d x %d blocks of %d threads", l.grid[0], l.grid[1], l.grid[2], l.block);
    return false;
  }
  if (!reserve(l) || !set_regions(l)) {
    say("no memory for %d threads and %d tensors", g.fiber_count, l.ranges);
    return false;
  }
  launch_arena.start_over();
  global_readers.start_over();
  forget_clocks();
  forget_locations();
  g.clock_length = g.fiber_count + g.cta_count * kBarriers + 2;
  g.pdl_slot = g.clock_length - 2;
  g.copy_slot = g.clock_length - 1;
  const U64 clusters = static_cast<U64>(l.grid[0] / l.cluster) * static_cast<U64>(l.grid[1]) *
      static_cast<U64>(l.grid[2]);
  if (clusters >= 1ull << (62 - kSequenceShift)) return say("too many blocks"), false;
  if (g.sequence + clusters >= 1ull << (63 - kSequenceShift)) forget_shadows();
  g.first_sequence = g.sequence + 1;
  if (l.checks) {
    g.after_predecessors = zero_clock();
    g.after_predecessors->clocks[g.pdl_slot] = 1;
  }
  return true;
}

static int launch(const Entry& entry, const Launch& l, Failure* failure) {
  g.launch = &l;
  g.call = entry.call;
  g.checks = l.checks;
  g.failure = failure;
  g.failed = g.copying = false;
  g.owner = gettid();
  *failure = Failure();
  failure->kind = kMisuse;
  failure->thread = -1;
  if (sigsetjmp(g.landing, 1)) return 1;  // no memory for what comes before the first thread
  if (!prepare(l)) return 1;
  // Faults run on a stack of their own: the fiber's may be the thing that is full.
  static char* signal_stack = reserve_pages(16 * kPage);
  if (!signal_stack) return say("no memory for a stack of 16 pages"), 1;
  stack_t ours = {}, theirs = {};
  ours.ss_sp = signal_stack;
  ours.ss_size = 16 * kPage;
  sigaltstack(&ours, &theirs);
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int i = 0; i < kSignalCount; ++i) sigaction(kSignals[i], &action, &old_action[i]);
  itimerval limit = {};
  limit.it_value.tv_sec = l.timeout_s;
  if (sigsetjmp(g.landing, 1) == 0) {
    g.running = true;
    setitimer(ITIMER_VIRTUAL, &limit, nullptr);
    int base[3];
    for (base[2] = 0; base[2] < l.grid[2] && !g.failed; ++base[2])
      for (base[1] = 0; base[1] < l.grid[1] && !g.failed; ++base[1])
        for (base[0] = 0; base[0] < l.grid[0] && !g.failed; base[0] += l.cluster) run_cluster(base);
  }
  g.running = false;
  cur = nullptr;
  limit.it_value.tv_sec = 0;
  setitimer(ITIMER_VIRTUAL, &limit, nullptr);
  for (int i = 0; i < kSignalCount; ++i) {
    // A timer signal may still be under way, and would by default end the process.
    if (kSignals[i] == SIGVTALRM && old_action[i].sa_handler == SIG_DFL) continue;
    sigaction(kSignals[i], &old_action[i], nullptr);
  }
  sigaltstack(&theirs, nullptr);
  return g.failed;
}

}  // namespace emu
