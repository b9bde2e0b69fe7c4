#include "tensor_map.h"

namespace mirage {

std::string encode_map(const cu::Driver& driver, const TensorMapSpec& map, uint64_t at, uint64_t bytes,
    cu::TensorMap* out) {
  if (driver.TensorMapEncodeTiled == nullptr) return "the CUDA driver makes no tensor maps";
  // 31 bits each: 64 hold the sum.
  const uint64_t end = 2 * uint64_t(map.first + (map.rows - 1) * map.pitch + map.columns);
  if (end > bytes) {
    return "its tensor map has " + std::to_string(end) + " bytes, there are " + std::to_string(bytes);
  }
  const uint64_t sizes[2] = {uint64_t(map.columns), uint64_t(map.rows)};
  const uint64_t strides[1] = {2 * uint64_t(map.pitch)};
  const unsigned box[2] = {64, unsigned(map.box)}, steps[2] = {1, 1};
  const cu::Result r = driver.TensorMapEncodeTiled(out, cu::kTensorMapU16, 2,
      reinterpret_cast<void*>(at + 2 * uint64_t(map.first)), sizes, strides, box, steps, 0,
      cu::kTensorMapSwizzle128, cu::kTensorMapPromotion256, 0);
  return r == cu::kSuccess ? "" : "cuTensorMapEncodeTiled failed: " + driver.describe(r);
}

}  // namespace mirage
