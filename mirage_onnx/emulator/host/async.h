// Asynchronous copies. PTX ISA, "Asynchronous copy". A copy moves its bytes as late as allowed: when
// its thread waits for its group, or, if it completes on an mbarrier, when no thread can run. Until then
// its target is poison, of which every access is an error, and so is a write of a store's source.
#pragma once

#include "mbarrier.h"

namespace emu {

constexpr usize kTensorRow = 128;  // bytes of a row of a box

enum class CopyKind { kLoad, kArrive, kBulkLoad, kTensor, kRemote, kStore };

struct Copy {
  CopyKind kind;
  bool read;  // a store: its source is free again
  Fiber* fiber;
  const void* pc;
  char* to;
  const char* from;
  usize size;  // written
  usize bytes;  // read; the rest is zero
  unsigned group;
  Cta* cta;  // of the target, where that is shared memory
  Mbarrier* bar;  // completes there
  unsigned number;  // counts the cluster's copies
  unsigned loads;  // kArrive: the number of the thread's last load before it
  unsigned rows;  // kTensor: of `bytes` each (the rest of 128 is zero), `pitch` bytes apart
  usize pitch;
  Copy* next;
};

static Copy* free_copies = nullptr;
static unsigned copy_count = 0;

static void forget_copies() {  // of the cluster before
  free_copies = nullptr;
  copy_count = 0;
  g.flying = nullptr;
}

static Copy* new_copy(CopyKind kind, void* to, const void* from, usize size) {
  Copy* c = free_copies;
  if (c)
    free_copies = c->next;
  else
    c = static_cast<Copy*>(cluster_arena.take(sizeof(Copy)));
  *c = Copy();
  c->kind = kind;
  c->fiber = cur;
  c->pc = cur->pc;
  c->to = static_cast<char*>(to);
  c->from = static_cast<const char*>(from);
  c->size = c->bytes = size;
  c->number = ++copy_count;
  return c;
}
static void append(Copy*& list, Copy* c) {
  Copy** end = &list;
  while (*end) end = &(*end)->next;
  *end = c;
}
static Copy* unlink(Copy** at) {
  Copy* c = *at;
  *at = c->next;
  return c;
}
static void recycle(Copy* c) {
  c->next = free_copies;
  free_copies = c;
}

static Epoch copy_epoch() { return epoch_of(g.sequence, static_cast<U64>(g.copy_slot), 1); }

static void poison_target(Cta* c, char* to, usize size) {
  if (g.checks)
    touch_shared(c, cur, cur->pc, static_cast<usize>(to - c->smem), size, copy_epoch(), kWrite);
  memset(to, kPoison, size);
}

// The target's bytes are there, for whoever happens after `e`.
static void publish_target(Cta* c, const Copy& copy, Epoch e) {
  if (copy.kind == CopyKind::kTensor) {
    memset(copy.to, 0, copy.size);
    for (usize r = 0; r < copy.rows; ++r)
      for (usize at = 0; at < copy.bytes; at += 16)
        memcpy(copy.to + r * kTensorRow + (at / 16 ^ r % 8) * 16, copy.from + r * copy.pitch + at, 16);
  } else {
    memcpy(copy.to, copy.from, copy.bytes);
    memset(copy.to + copy.bytes, 0, copy.size - copy.bytes);
  }
  if (!g.checks) return;
  for_cells<false>(
      c->cells, c->bytes, static_cast<usize>(copy.to - c->smem), copy.size, [&](Cell& cell, usize) {
        cell.write = e;
        cell.write_place = place32(copy.pc);
      });
}

// Checked when the copy starts (an atomic read conflicts with plain writes and leaves no trace) ...
static void source_may_be_read(const void* from, usize bytes, usize alignment) {
  global_access(cur, cur->pc, reinterpret_cast<usize>(from), bytes, kRead, alignment, kAtomic);
}
// ... and again when it ends, as a read at `e`.
static void source_was_read(const Copy& copy, Epoch e) {
  if (!g.checks || !copy.bytes) return;
  const usize rows = copy.kind == CopyKind::kTensor ? copy.rows : 1;
  for (usize n = 0; n < rows; ++n) {
    const usize at = reinterpret_cast<usize>(copy.from) + n * copy.pitch;
    const Region* r = region_of(at, copy.bytes);
    if (r && r->tracked)
      for_cells<true>(
          r->tensor->words, r->tensor->parts, at - r->lo, copy.bytes, [&](Cell& cell, usize byte) {
            touch<true>(cell, copy.fiber, copy.pc, e, kRead, Target{r, nullptr, byte}, copy.bytes);
          });
  }
}

// ---- cp.async

void cp_async(void* smem, const void* gmem, int size, int bytes) {
  EMU_HERE();
  if (bytes < 0 || bytes > size) fail(kMisuse, "cp_async of %d bytes, %d from memory", size, bytes);
  const usize n = static_cast<usize>(size), at = reinterpret_cast<usize>(gmem);
  check_shared_bounds(cur->cta, cur, cur->pc, reinterpret_cast<usize>(smem), n, kWrite, n);
  if (at & (n - 1)) misaligned(cur, cur->pc, "global", at, n, kRead);
  if (bytes) source_may_be_read(gmem, static_cast<usize>(bytes), 1);
  poison_target(cur->cta, static_cast<char*>(smem), n);
  Copy* c = new_copy(CopyKind::kLoad, smem, gmem, n);
  c->bytes = static_cast<usize>(bytes);
  c->group = cur->load_group;
  c->cta = cur->cta;
  append(cur->loads, c);
}

static void finish_load(Copy** at, Epoch e) {
  Copy* c = unlink(at);
  source_was_read(*c, e);
  publish_target(c->cta, *c, e);
  recycle(c);
}

void cp_async_commit() { ++cur->load_group; }

void cp_async_wait(int groups) {
  EMU_HERE();
  while (cur->loads && cur->loads->group + static_cast<unsigned>(groups) < cur->load_group)
    finish_load(&cur->loads, cur->epoch);
}

void cp_async_wait_all() {
  EMU_HERE();
  while (cur->loads) finish_load(&cur->loads, cur->epoch);
}

void cp_async_mbarrier_arrive(U64* bar) {
  EMU_HERE();
  Copy* c = new_copy(CopyKind::kArrive, nullptr, nullptr, 0);
  c->bar = &mbarrier_of("cp_async_mbarrier_arrive", bar, cur->cta);
  c->cta = cur->cta;
  for (Copy* load = cur->loads; load; load = load->next) c->loads = load->number;
  append(g.flying, c);
}

// ---- bulk copies

static void check_bulk(const char* what, usize bytes) {
  if (bytes % 16 || !bytes)
    fail(kMisaligned, "%s of %lu bytes: a multiple of 16 is needed", what, bytes);
}

static Mbarrier& copy_mbarrier(const char* what, const U64* bar, Cta* c) {
  Mbarrier& m = mbarrier_of(what, bar, c);
  if (g.checks && !m.fenced)
    fail(kProxy,
        "%s: the copy may not see the mbarrier at byte %u: fence_mbarrier_init (or "
        "fence_proxy_async) comes after its init",
        what, m.offset);
  return m;
}

// Bytes of shared memory that the async proxy reads later.
static void lend_bytes(const char* what, Cta* c, usize from, usize bytes) {
  for_cells<false>(c->cells, c->bytes, from, bytes, [&](Cell& cell, usize byte) {
    touch<false>(cell, cur, cur->pc, copy_epoch(), kRead, Target{nullptr, c, byte}, bytes);
    if (!proxy_fenced(cell.write)) {
      begin_failure(kProxy, cur, cur->pc);
      say("%s reads byte %lu of shared memory, and no fence_proxy_async follows its write by ",
          what, byte);
      say_epoch(cell.write, cell.write_place);
      give_up();
    }
  });
}
// Own shared memory as the source of a copy that ends later.
static void lend_source(const char* what, const void* from, usize bytes) {
  const usize at = reinterpret_cast<usize>(from);
  check_shared_bounds(cur->cta, cur, cur->pc, at, bytes, kRead, 16);
  if (g.checks) lend_bytes(what, cur->cta, offset_in(cur->cta, at), bytes);
}
static void give_source_back(Cta* c, const Copy& copy, Epoch e) {
  if (!g.checks) return;
  for_cells<false>(c->cells, c->bytes, static_cast<usize>(copy.from - c->smem), copy.bytes,
      [&](Cell& cell, usize) { retire_copy_read<false>(cell, e); });
}

void bulk_load(void* smem, const void* gmem, unsigned bytes, U64* bar, unsigned ranks) {
  EMU_HERE();
  const char* what = ranks ? "bulk_load_multicast" : "bulk_load";
  check_bulk(what, bytes);
  check_shared_bounds(cur->cta, cur, cur->pc, reinterpret_cast<usize>(smem), bytes, kWrite, 16);
  source_may_be_read(gmem, bytes, 16);
  if (!ranks) ranks = 1u << cur->cta->rank;
  for (unsigned r = 0; r < 16; ++r) {
    if (!(ranks >> r & 1)) continue;
    Cta* c = peer(r);
    remote_access(c, cur, cur->pc, what);
    char* to = c->smem + offset_in(cur->cta, reinterpret_cast<usize>(smem));
    Mbarrier* m = &copy_mbarrier(what, bar, c);
    poison_target(c, to, bytes);
    Copy* copy = new_copy(CopyKind::kBulkLoad, to, gmem, bytes);
    copy->cta = c;
    copy->bar = m;
    append(g.flying, copy);
  }
}

void tensor_load(void* smem, const U64* map, int column, int row, U64* bar, unsigned ranks) {
  EMU_HERE();
  const char* what = ranks ? "tensor_load_multicast" : "tensor_load";
  const long rows = static_cast<long>(map[1]), columns = static_cast<long>(map[2]);
  const usize pitch = 2 * map[3], box = map[4], size = box * kTensorRow;
  const usize to_offset = reinterpret_cast<usize>(smem);
  if (column < 0 || row < 0) fail(kMisuse, "%s: a box at column %d of row %d", what, column, row);
  if (box < 1 || box > 256 || pitch % 16 || map[0] % 16)
    fail(kMisuse, "%s: a map of boxes of %lu rows, rows %lu bytes apart", what, box, pitch);
  check_shared_bounds(cur->cta, cur, cur->pc, to_offset, size, kWrite, 16);
  if (offset_in(cur->cta, to_offset) % 1024)
    fail(kMisaligned, "%s to byte %lu of shared memory: swizzled rows begin at a multiple of 1024", what,
        offset_in(cur->cta, to_offset));
  const usize there = row < rows && column < columns
      ? 2 * static_cast<usize>(columns - column < 64 ? columns - column : 64)
      : 0;
  const long left = rows - row;
  const usize count = !there ? 0 : left < static_cast<long>(box) ? static_cast<usize>(left) : box;
  const char* from = reinterpret_cast<const char*>(map[0]) + static_cast<usize>(row) * pitch +
      2 * static_cast<usize>(column);
  for (usize r = 0; r < count; ++r) source_may_be_read(from + r * pitch, there, 16);
  if (!ranks) ranks = 1u << cur->cta->rank;
  for (unsigned r = 0; r < 16; ++r) {
    if (!(ranks >> r & 1)) continue;
    Cta* c = peer(r);
    remote_access(c, cur, cur->pc, what);
    char* to = c->smem + offset_in(cur->cta, to_offset);
    Mbarrier* m = &copy_mbarrier(what, bar, c);
    poison_target(c, to, size);
    Copy* copy = new_copy(CopyKind::kTensor, to, from, size);
    copy->bytes = there;
    copy->rows = static_cast<unsigned>(count);
    copy->pitch = pitch;
    copy->cta = c;
    copy->bar = m;
    append(g.flying, copy);
  }
}

void bulk_copy_remote(void* smem, unsigned rank, const void* from, unsigned bytes, U64* bar) {
  EMU_HERE();
  const char* what = "bulk_copy_remote";
  check_bulk(what, bytes);
  check_shared_bounds(cur->cta, cur, cur->pc, reinterpret_cast<usize>(smem), bytes, kWrite, 16);
  Cta* c = peer(rank);
  remote_access(c, cur, cur->pc, what);
  Mbarrier* m = &copy_mbarrier(what, bar, c);
  lend_source(what, from, bytes);
  char* to = c->smem + offset_in(cur->cta, reinterpret_cast<usize>(smem));
  poison_target(c, to, bytes);
  Copy* copy = new_copy(CopyKind::kRemote, to, from, bytes);
  copy->cta = c;
  copy->bar = m;
  append(g.flying, copy);
}

void bulk_store(void* gmem, const void* smem, unsigned bytes) {
  EMU_HERE();
  check_bulk("bulk_store", bytes);
  lend_source("bulk_store", smem, bytes);
  const usize at = reinterpret_cast<usize>(gmem);
  const Region& r = bounded(cur, cur->pc, at, bytes, kWrite, 16);
  if (g.checks) touch_global(r, cur, cur->pc, at, bytes, copy_epoch(), kWrite);
  Copy* c = new_copy(CopyKind::kStore, gmem, smem, bytes);
  c->group = cur->store_group;
  append(cur->stores, c);
}

void bulk_commit() { ++cur->store_group; }

static void finish_store(Copy** at, Epoch e) {
  Copy* c = unlink(at);
  if (const Region* r = g.checks ? region_of(reinterpret_cast<usize>(c->to), c->size) : nullptr)
    for_cells<true>(r->tensor->words, r->tensor->parts, reinterpret_cast<usize>(c->to) - r->lo,
        c->size, [&](Cell& cell, usize) { cell.write = e; });
  recycle(c);
}

void bulk_wait(int groups, bool only_read) {
  EMU_HERE();
  for (Copy** at = &cur->stores; *at;) {
    Copy* c = *at;
    if (c->group + static_cast<unsigned>(groups) >= cur->store_group) break;
    if (!c->read) {
      memcpy(c->to, c->from, c->bytes);
      give_source_back(cur->cta, *c, cur->epoch);
      c->read = true;
    }
    if (only_read)
      at = &c->next;
    else
      finish_store(at, cur->epoch);
  }
}

// ---- completion

// The copy engine at work: no thread can run.
static bool finish_one_copy() {
  if (!g.flying) return false;
  Copy** at = &g.flying;
  while (g.launch->descending && (*at)->next) at = &(*at)->next;
  // What an earlier arrival of the thread waits for a later one waits for, too: by then both are due.
  if (const Copy* last = *at; last->kind == CopyKind::kArrive) {
    at = &g.flying;
    while ((*at)->kind != CopyKind::kArrive || (*at)->fiber != last->fiber) at = &(*at)->next;
  }
  Copy* c = unlink(at);
  Mbarrier& m = *c->bar;
  cur = c->fiber;  // whom to name in an error
  const void* pc = cur->pc;
  cur->pc = c->pc;
  g.copying = true;
  if (c->kind == CopyKind::kArrive) {
    m.of_threads = true;
    while (cur->loads && cur->loads->number <= c->loads) finish_load(&cur->loads, phase_epoch(m));
    arrive("cp_async_mbarrier_arrive", m);
  } else {
    if (c->kind == CopyKind::kBulkLoad || c->kind == CopyKind::kTensor)
      source_was_read(*c, phase_epoch(m));
    else
      give_source_back(c->fiber->cta, *c, phase_epoch(m));
    publish_target(c->cta, *c, phase_epoch(m));
    transfer("a bulk copy", m, -static_cast<long>(c->size));
    complete_phase_if_due(m);
  }
  g.copying = false;
  cur->pc = pc;
  cur = nullptr;
  recycle(c);
  return true;
}

// A thread ends: nothing that it started may be left without somebody who waits for it.
static void check_copies_at_exit() {
  const Copy* last = nullptr;
  for (const Copy* load = cur->loads; load; load = load->next) last = load;
  for (const Copy* c = g.flying; c && last; c = c->next)
    if (c->kind == CopyKind::kArrive && c->fiber == cur && c->loads == last->number) last = nullptr;
  if (last) {
    begin_failure(kInFlight, cur, last->pc);
    say("the thread exits with a cp_async that was not waited for");
    give_up();
  }
  while (cur->stores) {
    if (!cur->stores->read) {
      begin_failure(kExit, cur, cur->stores->pc);
      say("the thread exits while its bulk_store may still read shared memory (bulk_commit and "
          "bulk_wait_read come first)");
      give_up();
    }
    finish_store(&cur->stores, cur->epoch);
  }
}

// A block ends: no copy may still use its shared memory, no thread of another block may have
// accessed it without the block knowing.
static void check_block_at_exit(Cta& c) {
  for (const Copy* f = g.flying; f; f = f->next)
    if (f->cta == &c || (f->kind == CopyKind::kRemote && f->fiber->cta == &c)) {
      begin_failure(kExit, f->fiber, f->pc);
      say("block %d of the cluster exits while this copy may still use its shared memory", c.rank);
      give_up();
    }
  if (!g.checks || g.cta_count == 1) return;
  for (int t = 0; t < g.fiber_count; ++t)
    if (c.remote[t].clock > c.exits.clock->clocks[t]) {
      begin_failure(kExit, &g.fibers[t], c.remote[t].pc);
      say("block %d of the cluster may exit before this access to its shared memory: no barrier "
          "of the cluster follows",
          c.rank);
      give_up();
    }
}

}  // namespace emu
