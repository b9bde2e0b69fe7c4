// Tensor maps: what the copy engine is told of a tensor, made by the driver for a run.
#pragma once

#include <cstdint>
#include <string>

#include "driver_api.h"
#include "plan.h"

namespace mirage {

// The map of what is at `at`, where there are so many bytes. Returns "" or why there is none.
std::string encode_map(
    const cu::Driver&, const TensorMapSpec&, uint64_t at, uint64_t bytes, cu::TensorMap* out);

}  // namespace mirage
