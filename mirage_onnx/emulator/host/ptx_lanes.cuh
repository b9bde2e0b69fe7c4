// Twin of codegen/device/ptx_lanes.cuh.
#pragma once

namespace ptx {

namespace host {

struct Vote {
  bool vote;
  unsigned ballot;
};

EMU_HOST static void count_votes(emu::Warp& w, Vote** lane) {
  unsigned ballot = 0;
  for (int i = 0; i < w.size; ++i) ballot |= static_cast<unsigned>(lane[i]->vote) << i;
  for (int i = 0; i < w.size; ++i) lane[i]->ballot = ballot;
}

PTX_DEVICE unsigned ballot(const char* what, bool vote) {
  Vote v{vote, 0};
  emu::collective(what, v, &count_votes);
  return v.ballot;
}

enum class Shuffle { kIndex, kUp, kDown, kXor };

// One instruction of one lane: PTX ISA, shfl.sync, with b = offset and c made of `width` as CUDA
// does.
template <class T>
struct Exchange {
  T value;
  Shuffle mode;
  int offset;
  int width;
  T result;

  // The lane that this one reads.
  EMU_INLINE int source(int lane) const {
    const int b = offset & 31, low = lane & ~(width - 1), high = low | (width - 1);
    switch (mode) {
      case Shuffle::kIndex: return low | (b & (width - 1));
      case Shuffle::kUp: return lane - b >= low ? lane - b : lane;
      case Shuffle::kDown: return lane + b <= high ? lane + b : lane;
      case Shuffle::kXor: return (lane ^ b) <= high ? lane ^ b : lane;
    }
    return lane;
  }
};

template <class T>
EMU_HOST static void exchange(emu::Warp& w, Exchange<T>** lane) {
  for (int i = 0; i < w.size; ++i) {
    const int from = lane[i]->source(i);
    // A lane that the block does not have is undefined on the device: poison here.
    if (from < w.size)
      lane[i]->result = lane[from]->value;
    else
      memset(&lane[i]->result, 0xff, sizeof(T));
  }
}

template <class T>
PTX_DEVICE T shuffle(const char* what, T value, Shuffle mode, int offset, int width) {
  if (width < 1 || width > 32 || (width & (width - 1)))
    emu::fail(emu::kMisuse, "%s: a width of %d lanes is no power of two from 1 to 32", what, width);
  Exchange<T> x{value, mode, offset, width, T()};
  emu::collective(what, x, &exchange<T>);
  return x.result;
}

}  // namespace host

PTX_DEVICE unsigned ballot(bool vote) { return host::ballot("ballot", vote); }
PTX_DEVICE bool any(bool vote) { return host::ballot("any", vote) != 0; }
PTX_DEVICE bool all(bool vote) { return host::ballot("all", !vote) == 0; }

PTX_DEVICE float shfl(float value, int source, int width = 32) {
  return host::shuffle("shfl", value, host::Shuffle::kIndex, source, width);
}
PTX_DEVICE unsigned shfl(unsigned value, int source, int width = 32) {
  return host::shuffle("shfl", value, host::Shuffle::kIndex, source, width);
}
PTX_DEVICE float shfl_up(float value, int delta, int width = 32) {
  return host::shuffle("shfl_up", value, host::Shuffle::kUp, delta, width);
}
PTX_DEVICE unsigned shfl_up(unsigned value, int delta, int width = 32) {
  return host::shuffle("shfl_up", value, host::Shuffle::kUp, delta, width);
}
PTX_DEVICE float shfl_down(float value, int delta, int width = 32) {
  return host::shuffle("shfl_down", value, host::Shuffle::kDown, delta, width);
}
PTX_DEVICE unsigned shfl_down(unsigned value, int delta, int width = 32) {
  return host::shuffle("shfl_down", value, host::Shuffle::kDown, delta, width);
}
PTX_DEVICE float shfl_xor(float value, int mask, int width = 32) {
  return host::shuffle("shfl_xor", value, host::Shuffle::kXor, mask, width);
}
PTX_DEVICE unsigned shfl_xor(unsigned value, int mask, int width = 32) {
  return host::shuffle("shfl_xor", value, host::Shuffle::kXor, mask, width);
}

}  // namespace ptx
