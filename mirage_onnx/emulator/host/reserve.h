// Memory of a launch, kept from one to the next: stacks, shared memory, tensors, and their records.
#pragma once

#include "memory.h"

namespace emu {

constexpr usize kGuard = 1 << 20;  // around tensors and shared memory: reserved, costs nothing
constexpr usize kBlockSpan = 2 * kGuard;  // from one block's shared memory to the next one's
constexpr int kMostBlocks = 16;  // of a cluster

static inline usize rounded(usize n) { return (n + kPage - 1) / kPage * kPage; }

static char* reserve_range(usize bytes) {
  void* p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<char*>(p);
}
static bool open_pages(char* p, usize bytes) {
  return mprotect(p, bytes, PROT_READ | PROT_WRITE) == 0;
}

static bool reserve_threads() {
  constexpr usize kEach = kStack + kPage;
  if (!g.stacks) {
    char* all = reserve_range(kEach * kMostThreads);
    if (!all) return false;
    g.stacks = reinterpret_cast<usize>(all);
    g.stacks_span = kEach * kMostThreads;
  }
  if (g.fiber_count <= g.fiber_capacity) return true;
  Fiber* bigger = allocate<Fiber>(static_cast<usize>(g.fiber_count));
  for (int i = 0; i < g.fiber_count; ++i) {
    bigger[i].stack = reinterpret_cast<char*>(g.stacks) + kEach * static_cast<usize>(i) + kPage;
    if (i >= g.fiber_capacity && !open_pages(bigger[i].stack, kStack)) return false;
  }
  Fiber** queue = allocate<Fiber*>(static_cast<usize>(g.fiber_count) + 1);
  Fiber** pollers = allocate<Fiber*>(static_cast<usize>(g.fiber_count) + 1);
  free(g.fibers);  // only now: without memory the launch ends above, and the next one has these
  free(g.queue);
  free(g.pollers);
  g.fibers = bigger;
  g.fiber_capacity = g.fiber_count;
  g.slots = g.fiber_count + 1;
  g.queue = queue;
  g.pollers = pollers;
  return true;
}

// Gives the stacks back. With their guards, those of 512 threads are a thousand mappings, and Linux
// grants a process 65530 of all its libraries.
static void release_threads() {
  if (!g.stacks) return;
  munmap(reinterpret_cast<void*>(g.stacks), g.stacks_span);
  free(g.fibers);
  free(g.queue);
  free(g.pollers);
  g.fibers = nullptr;
  g.queue = g.pollers = nullptr;
  g.fiber_capacity = 0;
  g.stacks = g.stacks_span = 0;
}

static bool reserve_blocks(usize smem) {
  if (!g.smem) {
    char* all = reserve_range(kBlockSpan * kMostBlocks + kGuard);
    g.ctas = allocate<Cta>(kMostBlocks);
    if (!all) return false;
    g.smem = reinterpret_cast<usize>(all);
    g.smem_span = kBlockSpan * kMostBlocks + kGuard;
  }
  if (smem > kGuard) return false;
  if (smem == g.smem_capacity && g.cta_count <= g.cta_capacity) return true;
  const int most = g.cta_count > g.cta_capacity ? g.cta_count : g.cta_capacity;
  for (int r = 0; r < most; ++r) {
    Cta& c = g.ctas[r];
    c.smem = reinterpret_cast<char*>(g.smem) + kBlockSpan * static_cast<usize>(r) + kGuard;
    if (mprotect(c.smem, kGuard, PROT_NONE) || (smem && !open_pages(c.smem, smem))) return false;
    if (c.cells) continue;
    constexpr usize kWords = kGuard / 4;
    c.cells = reinterpret_cast<Cell*>(reserve_pages((kWords + kGuard) * sizeof(Cell)));
    if (!c.cells) return false;
    c.bytes = c.cells + kWords;
  }
  g.cta_capacity = most;
  g.smem_capacity = smem;
  return true;
}

static bool reserve(const Launch& l) {
  const int warps = (l.block + 31) / 32;
  g.cta_count = l.cluster;
  g.fiber_count = g.cta_count * l.block;
  g.smem_bytes = l.smem_bytes;
  if (!reserve_threads() || !reserve_blocks(rounded(static_cast<usize>(l.smem_bytes))))
    return false;
  for (int r = 0; r < g.cta_count; ++r) {
    Cta& c = g.ctas[r];
    c.threads = l.block;
    c.first = g.fibers + r * l.block;
    for (int w = 0; w < warps; ++w) {
      c.warps[w].first = c.first + w * 32;
      c.warps[w].size = l.block - w * 32 < 32 ? l.block - w * 32 : 32;
    }
    for (int t = 0; t < l.block; ++t) {
      Fiber& f = c.first[t];
      f.cta = &c;
      f.warp = &c.warps[t / 32];
      f.thread = t;
      f.index = r * l.block + t;
    }
  }
  return true;
}

// Memory for one tensor: a guard, a page of poison, the bytes, poison to a page's end, a guard.
static Tensor* tensors = nullptr;

static usize spread(usize bytes) { return kPage + rounded(bytes + 256); }
static usize shadow_size(usize bytes) { return (bytes / 4 + 1 + bytes + 4) * sizeof(Cell); }

static char* tensor_map(usize bytes, bool initialised) {
  char* p = reserve_range(spread(bytes) + 2 * kGuard);
  if (!p) return nullptr;
  unsigned char* written = nullptr;
  if (!initialised) written = reinterpret_cast<unsigned char*>(reserve_pages(rounded(bytes + 1)));
  Tensor* t = static_cast<Tensor*>(calloc(1, sizeof(Tensor)));  // no launch is on, which could fail
  if (!t || (!initialised && !written) || !open_pages(p + kGuard, spread(bytes))) {
    munmap(p, spread(bytes) + 2 * kGuard);
    if (written) munmap(written, rounded(bytes + 1));
    free(t);
    return nullptr;
  }
  p += kGuard;
  memset(p, kPoison, kPage);
  memset(p + kPage + bytes, kPoison, spread(bytes) - kPage - bytes);
  t->data = p + kPage;
  t->bytes = bytes;
  t->written = written;
  t->next = tensors;
  tensors = t;
  return t->data;
}

static void tensor_unmap(char* data) {
  for (Tensor** at = &tensors; *at; at = &(*at)->next) {
    Tensor* t = *at;
    if (t->data != data) continue;
    *at = t->next;
    munmap(data - kPage - kGuard, spread(t->bytes) + 2 * kGuard);
    if (t->words) munmap(t->words, shadow_size(t->bytes));
    if (t->written) munmap(t->written, rounded(t->bytes + 1));
    free(t);
    return;
  }
}

// The offset of a byte around the tensor that a plain store overwrote, or 0; with checks there is none.
static long tensor_damage(const char* p, usize bytes) {
  const long end = static_cast<long>(spread(bytes) - kPage);
  for (long i = -static_cast<long>(kPage); i < end; ++i) {
    if (i == 0) i = static_cast<long>(bytes);
    if (static_cast<unsigned char>(p[i]) != kPoison) return i;
  }
  return 0;
}

static bool set_regions(const Launch& l) {
  region_count = last_region = 0;
  if (l.ranges > static_cast<int>(sizeof regions / sizeof *regions)) return false;
  for (int i = 0; i < l.ranges; ++i) {
    const Range& range = l.range[i];
    Region& r = regions[region_count++];
    r = Region();
    r.lo = reinterpret_cast<usize>(range.lo);
    r.hi = reinterpret_cast<usize>(range.hi);
    r.range = &range;
    r.tensor = tensors;
    while (r.tensor->data != range.lo) r.tensor = r.tensor->next;
    if (!l.checks) continue;
    r.writes_waited = l.pdl;
    r.reads_waited = l.pdl && range.predecessor_writes;
    r.tracked = range.writable;
    Tensor& t = *r.tensor;
    if (r.tracked && !t.words) {
      t.words = reinterpret_cast<Cell*>(reserve_pages(shadow_size(t.bytes)));
      if (!t.words) return false;
      t.parts = t.words + t.bytes / 4 + 1;
    }
  }
  return true;
}

// Sequence numbers of clusters are used up: every record is too old to count.
static void forget_shadows() {
  g.sequence = 0;
  for (int r = 0; r < g.cta_capacity; ++r)
    madvise(g.ctas[r].cells, (kGuard / 4 + kGuard) * sizeof(Cell), MADV_DONTNEED);
  for (Tensor* t = tensors; t; t = t->next)
    if (t->words) madvise(t->words, shadow_size(t->bytes), MADV_DONTNEED);
}

}  // namespace emu
