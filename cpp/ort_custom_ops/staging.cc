#include "staging.h"

namespace mirage {

Staging::~Staging() {
  for (size_t i = 0; i < count_; ++i) driver_->MemFreeAsync(pairs_[i].temporary, stream_);
}

bool Staging::available() const {
  return driver_->MemAllocAsync != nullptr && driver_->MemFreeAsync != nullptr &&
      driver_->MemcpyAsync != nullptr;
}

std::string Staging::replace(void** data, uint64_t bytes, bool input) {
  Pair& pair = pairs_[count_];
  pair = {0, *data, bytes, input};
  if (const cu::Result r = driver_->MemAllocAsync(&pair.temporary, bytes, stream_);
      r != cu::kSuccess) {
    return "cuMemAllocAsync failed: " + driver_->describe(r);
  }
  ++count_;
  if (input) {
    const cu::Result r = driver_->MemcpyAsync(
        pair.temporary, reinterpret_cast<cu::Address>(pair.home), bytes, stream_);
    if (r != cu::kSuccess) return "cuMemcpyAsync failed: " + driver_->describe(r);
  }
  *data = reinterpret_cast<void*>(pair.temporary);
  return "";
}

std::string Staging::write_back() {
  for (size_t i = 0; i < count_; ++i) {
    const Pair& pair = pairs_[i];
    if (pair.input) continue;
    const cu::Result r = driver_->MemcpyAsync(
        reinterpret_cast<cu::Address>(pair.home), pair.temporary, pair.bytes, stream_);
    if (r != cu::kSuccess) return "cuMemcpyAsync failed: " + driver_->describe(r);
  }
  return "";
}

}  // namespace mirage
