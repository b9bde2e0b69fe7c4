// Reader of the bundle: one uint8 initializer per model with every cubin and plan of the model.
//
// Little endian: "MUGRAPH1", u32 version, u32 entry count, entries {u32 kind, u32 id, u64 offset,
// u64 size, 32 bytes SHA-256}, then the sections, 16-byte aligned. The bytes come from a model
// file, so nothing in them is believed before it is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "sha256.h"

namespace mirage {

enum class SectionKind : uint32_t { kCubin = 1, kPlan = 2, kProvenance = 3 };

struct Section {
  const uint8_t* data;
  size_t size;
  Digest digest;
};

class Bundle {
 public:
  // Checks the header and the bounds of every entry. The bytes must outlive the Bundle.
  static bool open(const void* data, size_t size, Bundle* out, std::string* error);

  // Finds one section and checks its hash.
  bool section(SectionKind kind, uint32_t id, Section* out, std::string* error) const;

 private:
  const uint8_t* data_ = nullptr;
  uint32_t entries_ = 0;
};

}  // namespace mirage
