// Reader of the bundle: one uint8 initializer per model with every cubin and plan of the model.
//
// Little endian: "MUGRAPH1", u32 version, u32 entry count, entries {u32 kind, u32 id, u64 offset,
// u64 size, 32 bytes SHA-256}, then the sections. The bytes come from a model file, so nothing in
// them is believed before it is checked. mirage_onnx/custom_op/bundle.py has the rules, which are
// the same here, in the same order and words; only it decodes provenance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sha256.h"

namespace mirage {

constexpr size_t kMaxBundleBytes = size_t(256) << 20;

enum class SectionKind : uint32_t { kCubin = 1, kPlan = 2, kProvenance = 3 };

struct Section {
  const uint8_t* data;
  size_t size;
  Digest digest;
};

// The sections of a bundle, every byte of which was checked once. Immutable.
class Bundle {
 public:
  // The bytes must outlive the Bundle. Returns "" or the reason of a refusal.
  static std::string open(const void* data, size_t size, Bundle* out);

  // Null with a reason when there is no such section.
  const Section* section(SectionKind kind, uint32_t id, std::string* error) const;

  // Whether the header and the table of `data` are those that were checked.
  bool has_table(const void* data, size_t size) const;

 private:
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  std::vector<uint8_t> table_;
  std::vector<Section> sections_[4];  // by kind, then id
};

// As open(), but nodes that share a bundle share the work: while one of them holds the Bundle, its
// session holds the bytes, so the same place with the same table is not read again. Thread safe.
std::shared_ptr<const Bundle> open_shared_bundle(const void* data, size_t size, std::string* error);

}  // namespace mirage
