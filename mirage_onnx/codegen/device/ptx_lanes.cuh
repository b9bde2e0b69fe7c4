// Votes and shuffles, by the whole warp (PTX ISA: vote.sync, shfl.sync). Part of ptx.cuh.
//
// A shuffle works in segments of `width` lanes, a power of two: with the first lane `low` and the
// last lane `high` of this lane's segment,
//   shfl       reads lane low + source % width
//   shfl_up    reads lane - delta,  or its own where that lies below `low`
//   shfl_down  reads lane + delta,  or its own where that lies above `high`
//   shfl_xor   reads lane ^ mask,   or its own where that lies above `high` (not below `low`)
// Of source, delta and mask only the low five bits count.
#pragma once

namespace ptx {

PTX_DEVICE unsigned ballot(bool vote) { return __ballot_sync(0xffffffffu, vote); }  // bit per lane
PTX_DEVICE bool any(bool vote) { return __any_sync(0xffffffffu, vote); }
PTX_DEVICE bool all(bool vote) { return __all_sync(0xffffffffu, vote); }

PTX_DEVICE float shfl(float value, int source, int width = 32) {
  return __shfl_sync(0xffffffffu, value, source, width);
}
PTX_DEVICE unsigned shfl(unsigned value, int source, int width = 32) {
  return __shfl_sync(0xffffffffu, value, source, width);
}
PTX_DEVICE float shfl_up(float value, int delta, int width = 32) {
  return __shfl_up_sync(0xffffffffu, value, static_cast<unsigned>(delta), width);
}
PTX_DEVICE unsigned shfl_up(unsigned value, int delta, int width = 32) {
  return __shfl_up_sync(0xffffffffu, value, static_cast<unsigned>(delta), width);
}
PTX_DEVICE float shfl_down(float value, int delta, int width = 32) {
  return __shfl_down_sync(0xffffffffu, value, static_cast<unsigned>(delta), width);
}
PTX_DEVICE unsigned shfl_down(unsigned value, int delta, int width = 32) {
  return __shfl_down_sync(0xffffffffu, value, static_cast<unsigned>(delta), width);
}
PTX_DEVICE float shfl_xor(float value, int mask, int width = 32) {
  return __shfl_xor_sync(0xffffffffu, value, mask, width);
}
PTX_DEVICE unsigned shfl_xor(unsigned value, int mask, int width = 32) {
  return __shfl_xor_sync(0xffffffffu, value, mask, width);
}

}  // namespace ptx
