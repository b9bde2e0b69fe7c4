#include "bundle.h"

#include <cstring>

namespace mirage {
namespace {

constexpr char kMagic[] = "MUGRAPH1";
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 16;
constexpr size_t kEntryBytes = 56;
constexpr uint32_t kMaxEntries = 4096;

template <class T>
T read_le(const uint8_t* p) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= T(p[i]) << (8 * i);
  return value;
}

const char* kind_name(uint32_t kind) {
  switch (static_cast<SectionKind>(kind)) {
    case SectionKind::kCubin: return "cubin";
    case SectionKind::kPlan: return "plan";
    case SectionKind::kProvenance: return "provenance";
  }
  return "section of unknown kind";
}

}  // namespace

bool Bundle::open(const void* data, size_t size, Bundle* out, std::string* error) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  if (size < kHeaderBytes || std::memcmp(bytes, kMagic, 8) != 0) {
    *error = "bundle: it does not begin with MUGRAPH1";
    return false;
  }
  const uint32_t version = read_le<uint32_t>(bytes + 8);
  if (version != kVersion) {
    *error = "bundle: version " + std::to_string(version) + ", this library reads version 1";
    return false;
  }
  const uint32_t entries = read_le<uint32_t>(bytes + 12);
  if (entries > kMaxEntries || entries > (size - kHeaderBytes) / kEntryBytes) {
    *error = "bundle: " + std::to_string(entries) + " entries do not fit in " +
        std::to_string(size) + " bytes";
    return false;
  }
  const uint64_t first = kHeaderBytes + uint64_t(entries) * kEntryBytes;
  for (uint32_t i = 0; i < entries; ++i) {
    const uint8_t* entry = bytes + kHeaderBytes + size_t(i) * kEntryBytes;
    const uint32_t kind = read_le<uint32_t>(entry);
    const uint64_t offset = read_le<uint64_t>(entry + 8);
    const uint64_t length = read_le<uint64_t>(entry + 16);
    const char* why = nullptr;
    if (kind < 1 || kind > 3)
      why = "has an unknown kind";
    else if (offset % 16 != 0)
      why = "is not 16-byte aligned";
    else if (offset < first || offset > size || length > size - offset)
      why = "is out of bounds";
    if (why != nullptr) {
      *error = "bundle: entry " + std::to_string(i) + " " + why;
      return false;
    }
  }
  out->data_ = bytes;
  out->entries_ = entries;
  return true;
}

bool Bundle::section(SectionKind kind, uint32_t id, Section* out, std::string* error) const {
  const std::string what = std::string(kind_name(uint32_t(kind))) + " " + std::to_string(id);
  for (uint32_t i = 0; i < entries_; ++i) {
    const uint8_t* entry = data_ + kHeaderBytes + size_t(i) * kEntryBytes;
    if (read_le<uint32_t>(entry) != uint32_t(kind) || read_le<uint32_t>(entry + 4) != id) continue;
    out->data = data_ + read_le<uint64_t>(entry + 8);
    out->size = size_t(read_le<uint64_t>(entry + 16));
    out->digest = sha256(out->data, out->size);
    if (std::memcmp(out->digest.data(), entry + 24, 32) != 0) {
      *error = "bundle: the SHA-256 of " + what + " does not match: the bytes were changed";
      return false;
    }
    return true;
  }
  *error = "bundle: it has no " + what;
  return false;
}

}  // namespace mirage
