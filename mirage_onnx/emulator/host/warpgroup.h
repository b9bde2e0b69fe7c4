// Tensor cores fed by a warpgroup. PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
//
// An instruction is known when its 128th lane arrives, and happens as late as allowed: when the warpgroup
// waits for its group. Until then its accumulators are poison on the lanes' stacks, the shared memory
// that it will read may not be written, and registers of operand A may not change.
#pragma once

#include "async.h"

namespace emu {

constexpr int kGroupLanes = 128, kDepthBytes = 32;  // of 16 elements

struct Accumulator {  // what instructions under way have made of d so far
  float* at[kGroupLanes];
  float* values[kGroupLanes];
  int count;  // of a lane
  int users;
  Accumulator* next;
};

struct GroupMma {
  const char* what;
  const void* pc;
  Fiber* fiber;
  TileMma tile;
  Accumulator* d;
  const unsigned* a_at[kGroupLanes];  // null: A is in shared memory
  unsigned a[kGroupLanes][4];
  U64 a_tile, b_tile;
  bool turned;
  unsigned group;
  GroupMma* next;
};

struct GroupMmaLane {
  float* d;
  const unsigned* a;
  U64 a_tile, b_tile;
  int columns;
  TileMma tile;
};

static Warpgroup& warpgroup_of(const char* what) {
  if (cur->thread / kGroupLanes >= cur->cta->threads / kGroupLanes)
    fail(kMisuse, "%s by the last of %d threads, which are no whole warpgroup", what, cur->cta->threads);
  return cur->cta->warpgroups[cur->thread / kGroupLanes];
}

// Whether this lane is the last of the warpgroup; the others are parked until it has run.
static bool arrive_at_warpgroup(Warpgroup& w, const char* what, void* payload) {
  if (w.arrived == 0)
    w.what = what;
  else if (strcmp(w.what, what) != 0)
    fail(kDiverged, "diverged warpgroup: this lane is at %s while another waits at %s", what,
        w.what);
  w.lane[cur->thread % kGroupLanes] = payload;
  if (++w.arrived == kGroupLanes) return true;
  park(what, &w);
  return false;
}
static void leave_warpgroup(Warpgroup& w) {
  w.arrived = 0;
  Fiber* first = cur->cta->first + cur->thread / kGroupLanes * kGroupLanes;
  for (int i = 0; i < kGroupLanes; ++i)
    if (first[i].key == &w) wake_one(first + i);
}

// ---- tiles in shared memory

// The byte of depth chunk `chunk` (8 elements) of row `row`, as the descriptor says; K-major.
static unsigned place_in_tile(U64 tile, int row, int chunk) {
  const unsigned start = static_cast<unsigned>(tile & 0x3fff) << 4;
  const unsigned across = static_cast<unsigned>(tile >> 16 & 0x3fff) << 4;
  const unsigned down = static_cast<unsigned>(tile >> 32 & 0x3fff) << 4;
  const unsigned mode = static_cast<unsigned>(tile >> 62);
  const unsigned r = static_cast<unsigned>(row), c = static_cast<unsigned>(chunk);
  if (mode == 0) return start + r / 8 * down + c * across + r % 8 * 16;
  const unsigned pitch = 256u >> mode;  // 128, 64, 32
  const unsigned at = start + r / 8 * down + r % 8 * pitch + c * 16;
  return at ^ (at >> 7 & ((8u >> (mode - 1)) - 1)) << 4;
}

// The byte of eight columns from 8 * `chunk` on, at depth `row`, of a turned operand; MN-major.
static unsigned place_in_turned(U64 tile, int row, int chunk) {
  const unsigned start = static_cast<unsigned>(tile & 0x3fff) << 4;
  const unsigned across = static_cast<unsigned>(tile >> 16 & 0x3fff) << 4;
  const unsigned down = static_cast<unsigned>(tile >> 32 & 0x3fff) << 4;
  const unsigned r = static_cast<unsigned>(row), c = static_cast<unsigned>(chunk);
  if (tile >> 62 != 1) fail(kMisuse, "a turned tile that is not swizzled by 128 bytes");
  const unsigned at = start + c / 8 * across + r / 8 * down + r % 8 * 128 + c % 8 * 16;
  return at ^ (at >> 7 & 7) << 4;
}

// Every chunk that the instruction reads: each(byte, row, chunk); of a turned tile `rows` are columns.
template <class F>
static void for_chunks(U64 tile, int rows, bool turned, F each) {
  if (turned)
    for (int k = 0; k < 16; ++k)
      for (int c = 0; c < rows / 8; ++c) each(place_in_turned(tile, k, c), k, c);
  else
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < 2; ++c) each(place_in_tile(tile, r, c), r, c);
}

static void lend_tile(const char* what, U64 tile, int rows, bool turned) {
  if (tile >> 49 & 7) fail(kMisuse, "%s: a descriptor with a base offset", what);
  Cta* c = cur->cta;
  for_chunks(tile, rows, turned, [&](unsigned at, int, int) {
    check_shared_bounds(c, cur, cur->pc, reinterpret_cast<usize>(c->smem) + at, 16, kRead, 16);
    if (g.checks) lend_bytes(what, c, at, 16);
  });
}

// Now they are read: whatever nothing orders before this is a race.
static void read_tile(Cta* c, U64 tile, int rows, bool turned, unsigned* to) {
  for_chunks(tile, rows, turned, [&](unsigned at, int r, int k) {
    if (g.checks) {
      for_cells<false>(c->cells, c->bytes, at, 16,
          [&](Cell& cell, usize) { retire_copy_read<false>(cell, cur->epoch); });
      touch_shared(c, cur, cur->pc, at, 16, cur->epoch, kRead);
    }
    if (!turned) {
      memcpy(to + r * 8 + k * 4, c->smem + at, 16);
      return;
    }
    for (int n = 0; n < 8; ++n)  // depth r of row 8k + n
      memcpy(reinterpret_cast<char*>(to + (8 * k + n) * 8) + 2 * r, c->smem + at + 2 * n, 2);
  });
}

// ---- accumulators

static bool is_poison(const float* at, int count) {
  for (int i = 0; i < count; ++i) {
    unsigned bits;
    memcpy(&bits, at + i, sizeof bits);
    if (bits != 0xffffffffu) return false;
  }
  return true;
}

static void check_untouched(const char* what, const Accumulator& d) {
  for (int l = 0; l < kGroupLanes; ++l)
    if (!is_poison(d.at[l], d.count))
      fail(kInFlight, "%s: lane %d has written its accumulators before wgmma_wait", what, l);
}

static Accumulator* accumulator_of(Warpgroup& w, const char* what, GroupMmaLane** lane, int count) {
  for (Accumulator* d = w.accumulators; d; d = d->next) {
    if (!d->users || d->at[0] != lane[0]->d) continue;
    if (d->count != count) fail(kMisuse, "%s: accumulators under way with another shape", what);
    check_untouched(what, *d);
    ++d->users;
    return d;
  }
  Fiber* first = cur->cta->first + cur->thread / kGroupLanes * kGroupLanes;
  for (int l = 0; l < kGroupLanes; ++l)
    if (!first[l].wgmma_fenced)
      fail(kMisuse, "%s takes registers that lane %d may have written: no wgmma_fence comes before",
          what, l);
  Accumulator* d = w.accumulators;
  while (d && (d->users || d->count != count)) d = d->next;
  if (!d) {
    d = make<Accumulator>(cluster_arena);
    d->count = count;
    for (int l = 0; l < kGroupLanes; ++l)
      d->values[l] = make<float>(cluster_arena, static_cast<usize>(count));
    d->next = w.accumulators;
    w.accumulators = d;
  }
  d->users = 1;
  const usize bytes = sizeof(float) * static_cast<usize>(count);
  for (int l = 0; l < kGroupLanes; ++l) {
    d->at[l] = lane[l]->d;
    memcpy(d->values[l], d->at[l], bytes);
    memset(d->at[l], kPoison, bytes);
  }
  return d;
}

// ---- api.h

void wgmma(const char* what, float* d, int columns, const unsigned* a, U64 a_tile, U64 b_tile,
    bool turned, TileMma tile) {
  EMU_HERE();
  Warpgroup& w = warpgroup_of(what);
  GroupMmaLane own{d, a, a_tile, b_tile, columns, tile};
  if (!arrive_at_warpgroup(w, what, &own)) return;
  GroupMmaLane** lane = reinterpret_cast<GroupMmaLane**>(w.lane);
  GroupMma* m = make<GroupMma>(cluster_arena);
  m->what = what;
  m->pc = cur->pc;
  m->fiber = cur;
  m->tile = tile;
  m->a_tile = a_tile;
  m->b_tile = b_tile;
  m->turned = turned;
  m->group = w.group;
  for (int l = 0; l < kGroupLanes; ++l) {
    if (lane[l]->columns != columns || lane[l]->b_tile != b_tile ||
        (!a && lane[l]->a_tile != a_tile))
      fail(kMisuse, "%s: lanes of a warpgroup with different tiles", what);
    m->a_at[l] = lane[l]->a;
    if (a) memcpy(m->a[l], lane[l]->a, sizeof m->a[l]);
  }
  m->d = accumulator_of(w, what, lane, columns / 2);
  if (!a) lend_tile(what, a_tile, 64, false);
  lend_tile(what, b_tile, columns, turned);
  GroupMma** end = &w.pending;
  while (*end) end = &(*end)->next;
  *end = m;
  leave_warpgroup(w);
}

static void finish_group_mma(Warpgroup& w, GroupMma& m) {
  (void)w;
  static unsigned a[64 * 8], b[256 * 8];
  const int columns = m.d->count * 2;
  Cta* c = cur->cta;
  if (m.a_at[0]) {
    for (int l = 0; l < kGroupLanes; ++l)
      if (memcmp(m.a_at[l], m.a[l], sizeof m.a[l]) != 0)
        fail(kInFlight, "%s: lane %d has changed its registers of operand A before wgmma_wait",
            m.what, l);
  } else {
    read_tile(c, m.a_tile, 64, false, a);
  }
  read_tile(c, m.b_tile, columns, m.turned, b);
  check_untouched(m.what, *m.d);
  for (int warp = 0; warp < 4; ++warp) {
    unsigned rows[32][4], across[32][2];
    float sums[32][4];
    for (int l = 0; l < 32; ++l)
      for (int r = 0; r < 4; ++r)
        rows[l][r] = m.a_at[0] ? m.a[warp * 32 + l][r]
                               : a[(warp * 16 + l / 4 + r % 2 * 8) * 8 + l % 4 + r / 2 * 4];
    for (int j = 0; j < columns / 8; ++j) {
      for (int l = 0; l < 32; ++l) {
        const float* v = m.d->values[warp * 32 + l];
        for (int r = 0; r < 2; ++r) across[l][r] = b[(j * 8 + l / 4) * 8 + l % 4 + r * 4];
        for (int r = 0; r < 4; ++r) sums[l][r] = v[r / 2 * (m.d->count / 2) + j * 2 + r % 2];
      }
      m.tile(sums, rows, across);
      for (int l = 0; l < 32; ++l) {
        float* v = m.d->values[warp * 32 + l];
        for (int r = 0; r < 4; ++r) v[r / 2 * (m.d->count / 2) + j * 2 + r % 2] = sums[l][r];
      }
    }
  }
  if (--m.d->users) return;
  for (int l = 0; l < kGroupLanes; ++l)
    memcpy(m.d->at[l], m.d->values[l], sizeof(float) * static_cast<usize>(m.d->count));
}

void wgmma_fence() {
  EMU_HERE();
  cur->wgmma_fenced = true;
}

void wgmma_commit() {
  EMU_HERE();
  Warpgroup& w = warpgroup_of("wgmma_commit");
  if (!arrive_at_warpgroup(w, "wgmma_commit", nullptr)) return;
  ++w.group;
  leave_warpgroup(w);
}

void wgmma_wait(int groups) {
  EMU_HERE();
  Warpgroup& w = warpgroup_of("wgmma_wait");
  if (!arrive_at_warpgroup(w, "wgmma_wait", nullptr)) return;
  bool some = false;
  while (w.pending && w.pending->group + static_cast<unsigned>(groups) < w.group) {
    finish_group_mma(w, *w.pending);
    w.pending = w.pending->next;
    some = true;
  }
  Fiber* first = cur->cta->first + cur->thread / kGroupLanes * kGroupLanes;
  for (int i = 0; some && i < kGroupLanes; ++i) first[i].wgmma_fenced = false;
  leave_warpgroup(w);
}

unsigned shared_offset(const void* p) {
  EMU_HERE();
  const usize at = reinterpret_cast<usize>(p);
  check_shared_bounds(cur->cta, cur, cur->pc, at, 1, kRead, 16);
  return static_cast<unsigned>(offset_in(cur->cta, at));
}

static void check_warpgroup_at_exit() {
  const Warpgroup& w = cur->cta->warpgroups[cur->thread / kGroupLanes];
  if (!w.pending) return;
  begin_failure(kInFlight, cur, w.pending->pc);
  say("the thread exits with a %s that was not waited for", w.pending->what);
  give_up();
}

}  // namespace emu
