// Aligned stand-ins for the tensors of one run that are not aligned. Generated code loads 16 bytes at
// a time, but whoever binds a tensor may bind any address.
#pragma once

#include <string>

#include "driver_api.h"
#include "plan.h"

namespace mirage {

// Memory comes and goes in the order of the stream, so a run can be captured into a CUDA graph: what
// is taken there is part of the graph.
class Staging {
 public:
  Staging(const cu::Driver* driver, cu::Stream stream) : driver_(driver), stream_(stream) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Whether the driver can: one that has no such entry points is asked nothing.
  bool available() const;
  bool used() const { return count_ > 0; }
  size_t count() const { return count_; }

  // Puts an aligned copy (`input`), or room for what is to be copied back, in the place of `*data`.
  // Returns "" or why not.
  std::string replace(void** data, uint64_t bytes, bool input);

  // Copies what was made to where it belongs. Returns "" or why not.
  std::string write_back();

 private:
  struct Pair {
    cu::Address temporary;
    void* home;
    uint64_t bytes;
    bool input;
  };
  const cu::Driver* driver_;
  cu::Stream stream_;
  size_t count_ = 0;
  Pair pairs_[kMaxInputs + kMaxOutputs + 1];
};

}  // namespace mirage
