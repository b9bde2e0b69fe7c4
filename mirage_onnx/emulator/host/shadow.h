// What is known of each byte of memory that several threads may access: its last write, and the reads
// since. Exact to the byte: a word of which only a part was accessed is split into its bytes.
#pragma once

#include "clock.h"

namespace emu {

struct Cell {
  Epoch write;
  Epoch read;  // the last read, or kMany with the index of a Readers, of reads that are concurrent
  unsigned write_place;
  unsigned read_place;
};

constexpr Epoch kSplit = ~0ull;  // as `write`: see the four bytes; `read` says of which cluster
constexpr U64 kMany = kThreadMask;

constexpr unsigned kReadersHere = 13;
struct Readers {
  unsigned count;
  unsigned next;  // an older one, or the next free one; 0: none
  unsigned* dense;  // clocks of the threads of `sequence`, where they are many
  U64 sequence;
  Epoch epoch[kReadersHere];
};

struct ReaderPool {
  Arena* arena;
  Readers* at = nullptr;  // 0 is none
  unsigned used = 1, capacity = 0, free = 0;
  unsigned* free_dense = nullptr;

  void start_over() {
    used = 1;
    free = 0;
    free_dense = nullptr;
  }
  unsigned take() {
    if (!at) {
      usize bytes = kMost * sizeof(Readers);
      if (!(at = reinterpret_cast<Readers*>(reserve_most(&bytes)))) out_of_memory();
      capacity = static_cast<unsigned>(bytes / sizeof(Readers));
    }
    unsigned i = free;
    if (i)
      free = at[i].next;
    else if ((i = used++) >= capacity)
      out_of_memory();
    at[i] = Readers();
    return i;
  }
  unsigned* take_dense() {
    unsigned* d = free_dense;
    const usize bytes = sizeof(unsigned) * static_cast<usize>(g.clock_length);
    if (d)
      memcpy(&free_dense, d, sizeof free_dense);
    else
      d = static_cast<unsigned*>(arena->take(bytes));
    memset(d, 0, bytes);
    return d;
  }
  void give(unsigned i) {
    while (i) {
      const unsigned next = at[i].next;
      if (at[i].dense) {
        memcpy(at[i].dense, &free_dense, sizeof free_dense);
        free_dense = at[i].dense;
      }
      at[i].next = free;
      free = i;
      i = next;
    }
  }
  static constexpr unsigned kMost = 1u << kClockBits;
};

static ReaderPool shared_readers{&cluster_arena};  // start over with each cluster
static ReaderPool global_readers{&launch_arena};

// Shared memory knows its cluster's accesses, global memory those of the whole launch.
template <bool kGlobal>
static inline bool fresh(Epoch e) {
  return kGlobal ? sequence_of(e) >= g.first_sequence : sequence_of(e) == g.sequence;
}
template <bool kGlobal>
static inline ReaderPool& readers() {
  return kGlobal ? global_readers : shared_readers;
}

template <bool kGlobal>
[[gnu::noinline]] static void add_reader(Cell& c, Epoch e, const Fiber* f) {
  ReaderPool& pool = readers<kGlobal>();
  unsigned head;
  if (thread_of(c.read) != static_cast<int>(kMany)) {
    head = pool.take();
    pool.at[head].epoch[pool.at[head].count++] = c.read;
    c.read = epoch_of(g.sequence, kMany, head);
  } else {
    head = clock_of(c.read);
  }
  Readers* r = &pool.at[head];
  if (r->dense && r->sequence == g.sequence) {
    r->dense[thread_of(e)] = clock_of(e);
    return;
  }
  for (unsigned i = 0; i < r->count; ++i)
    if (ordered(r->epoch[i], f) && thread_of(e) == f->index) {
      r->epoch[i] = e;
      return;
    }
  if (r->count == kReadersHere && !r->dense) {  // those of this cluster to the dense form
    r->dense = pool.take_dense();
    r->sequence = g.sequence;
    unsigned kept = 0;
    for (unsigned i = 0; i < r->count; ++i)
      if (sequence_of(r->epoch[i]) == g.sequence)
        r->dense[thread_of(r->epoch[i])] = clock_of(r->epoch[i]);
      else
        r->epoch[kept++] = r->epoch[i];
    r->count = kept;
    r->dense[thread_of(e)] = clock_of(e);
    return;
  }
  if (r->count == kReadersHere) {
    const unsigned older = head;
    head = pool.take();
    r = &pool.at[head];
    r->next = older;
    c.read = epoch_of(g.sequence, kMany, head);
  }
  r->epoch[r->count++] = e;
}

// A read that did not happen before what `f` does now, or 0.
template <bool kGlobal>
static Epoch concurrent_reader(const Cell& c, const Fiber* f) {
  if (!fresh<kGlobal>(c.read)) return 0;
  if (thread_of(c.read) != static_cast<int>(kMany)) return ordered(c.read, f) ? 0 : c.read;
  const ReaderPool& pool = readers<kGlobal>();
  for (unsigned i = clock_of(c.read); i; i = pool.at[i].next) {
    const Readers& r = pool.at[i];
    for (unsigned k = 0; k < r.count; ++k)
      if (!ordered(r.epoch[k], f)) return r.epoch[k];
    if (!r.dense) continue;
    for (int t = 0; t < g.clock_length; ++t) {
      const Epoch e = epoch_of(r.sequence, static_cast<U64>(t), r.dense[t]);
      if (r.dense[t] && !ordered(e, f)) return e;
    }
  }
  return 0;
}

template <bool kGlobal>
static inline void forget_readers(Cell& c) {
  if (thread_of(c.read) == static_cast<int>(kMany) && fresh<kGlobal>(c.read))
    readers<kGlobal>().give(clock_of(c.read));
  c.read = 0;
}

// Reads of a copy under way become reads by `e`.
template <bool kGlobal>
static void retire_copy_read(Cell& c, Epoch e) {
  if (!fresh<kGlobal>(c.read)) return;
  if (thread_of(c.read) == g.copy_slot) {
    c.read = e;
  } else if (thread_of(c.read) == static_cast<int>(kMany)) {
    ReaderPool& pool = readers<kGlobal>();
    for (unsigned i = clock_of(c.read); i; i = pool.at[i].next) {
      Readers& r = pool.at[i];
      for (unsigned k = 0; k < r.count; ++k)
        if (thread_of(r.epoch[k]) == g.copy_slot) r.epoch[k] = e;
      if (r.dense && r.dense[g.copy_slot]) {
        r.dense[g.copy_slot] = 0;
        r.dense[thread_of(e)] = clock_of(e);
      }
    }
  }
}

template <bool kGlobal>
static void split(Cell& word, Cell* bytes) {
  ReaderPool& pool = readers<kGlobal>();
  for (int i = 0; i < 4; ++i) {
    bytes[i] = word;
    if (!fresh<kGlobal>(word.read) || thread_of(word.read) != static_cast<int>(kMany)) continue;
    unsigned from = clock_of(word.read), before = 0;
    for (; from && i; from = pool.at[from].next) {  // the first byte keeps the original
      const unsigned to = pool.take();
      const Readers& r = pool.at[from];
      pool.at[to] = r;
      pool.at[to].next = 0;
      if (r.dense) {
        pool.at[to].dense = pool.take_dense();
        memcpy(pool.at[to].dense, r.dense, sizeof(unsigned) * static_cast<usize>(g.clock_length));
      }
      if (before)
        pool.at[before].next = to;
      else
        bytes[i].read = epoch_of(sequence_of(word.read), kMany, to);
      before = to;
    }
  }
  word.write = kSplit;
  word.read = epoch_of(g.sequence, 0, 1);
}

template <bool kGlobal>
static inline bool is_split(const Cell& word) {
  return word.write == kSplit && fresh<kGlobal>(word.read);
}

// Calls each(cell, first byte) for the cells that cover [from, from + size) exactly.
template <bool kGlobal, class F>
static inline void for_cells(Cell* words, Cell* bytes, usize from, usize size, F each) {
  const usize to = from + size;
  while (from < to) {
    Cell& word = words[from / 4];
    if (word.write == kSplit && !fresh<kGlobal>(word.read)) word.write = word.read = 0;
    if (from % 4 == 0 && to - from >= 4 && word.write != kSplit) {
      each(word, from);
      from += 4;
      continue;
    }
    if (word.write != kSplit) split<kGlobal>(word, bytes + from / 4 * 4);
    const usize end = (from / 4 + 1) * 4 < to ? (from / 4 + 1) * 4 : to;
    for (; from < end; ++from) each(bytes[from], from);
  }
}

}  // namespace emu
