#include "bundle.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

namespace mirage {
namespace {

constexpr char kMagic[] = "MUGRAPH1";
constexpr uint32_t kVersion = 2;
constexpr size_t kHeaderBytes = 16;
constexpr size_t kEntryBytes = 56;
constexpr uint32_t kMaxEntries = 4096;
constexpr size_t kAlignment = 16;

template <class T>
T read_le(const uint8_t* p) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= T(p[i]) << (8 * i);
  return value;
}

size_t aligned(size_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

bool all_zero(const uint8_t* begin, const uint8_t* end) {
  return std::all_of(begin, end, [](uint8_t byte) { return byte == 0; });
}

bool is_ascii(const uint8_t* data, size_t size) {
  return std::none_of(data, data + size, [](uint8_t byte) { return byte >= 0x80; });
}

const char* kind_name(SectionKind kind) {
  switch (kind) {
    case SectionKind::kCubin: return "cubin";
    case SectionKind::kPlan: return "plan";
    case SectionKind::kProvenance: return "provenance";
  }
  return "section of unknown kind";
}

}  // namespace

std::string Bundle::open(const void* data, size_t size, Bundle* out) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  if (size > kMaxBundleBytes) return "bundle: it is longer than 256 MiB";
  if (size < kHeaderBytes || std::memcmp(bytes, kMagic, 8) != 0) {
    return "bundle: it does not begin with MUGRAPH1";
  }
  const uint32_t version = read_le<uint32_t>(bytes + 8);
  if (version != kVersion) {
    return "bundle: it has version " + std::to_string(version) + ", this program reads " +
        std::to_string(kVersion) + ": optimize the original model again";
  }
  const uint32_t entries = read_le<uint32_t>(bytes + 12);
  if (entries > kMaxEntries || entries > (size - kHeaderBytes) / kEntryBytes) {
    return "bundle: " + std::to_string(entries) + " entries do not fit in " + std::to_string(size) +
        " bytes";
  }
  size_t end = kHeaderBytes + size_t(entries) * kEntryBytes;
  out->data_ = bytes;
  out->size_ = size;
  out->table_.assign(bytes, bytes + end);
  uint32_t last_kind = 0;
  for (uint32_t i = 0; i < entries; ++i) {
    const uint8_t* entry = bytes + kHeaderBytes + size_t(i) * kEntryBytes;
    const uint32_t kind = read_le<uint32_t>(entry);
    const uint32_t id = read_le<uint32_t>(entry + 4);
    const uint64_t offset = read_le<uint64_t>(entry + 8);
    const uint64_t length = read_le<uint64_t>(entry + 16);
    const auto refuse = [&](const char* why) {
      return "bundle: entry " + std::to_string(i) + " " + why;
    };
    // Sections follow each other without gaps, so a byte outside every hash must be padding.
    const bool in_order =
        kind >= 1 && kind <= 3 && kind >= last_kind && id == out->sections_[kind].size();
    if (!in_order || offset != aligned(end)) return refuse("is out of order or out of place");
    if (offset > size || length > size - offset) return refuse("is cut off");
    if (!all_zero(bytes + end, bytes + offset)) return refuse("is out of order or out of place");
    Section section{bytes + offset, size_t(length), {}};
    section.digest = sha256(section.data, section.size);
    if (std::memcmp(section.digest.data(), entry + 24, 32) != 0) {
      return refuse("does not have its SHA-256: the bytes were changed");
    }
    if (SectionKind(kind) == SectionKind::kPlan && !is_ascii(section.data, section.size)) {
      return refuse("is not ASCII");
    }
    out->sections_[kind].push_back(section);
    last_kind = kind;
    end = size_t(offset + length);
  }
  if (end != size) {
    return "bundle: " + std::to_string(size - end) + " bytes after the last section";
  }
  return "";
}

const Section* Bundle::section(SectionKind kind, uint32_t id, std::string* error) const {
  const std::vector<Section>& of_kind = sections_[uint32_t(kind)];
  if (id < of_kind.size()) return &of_kind[id];
  *error = "bundle: it has no " + std::string(kind_name(kind)) + " " + std::to_string(id);
  return nullptr;
}

bool Bundle::has_table(const void* data, size_t size) const {
  return data == data_ && size == size_ && std::memcmp(data, table_.data(), table_.size()) == 0;
}

std::shared_ptr<const Bundle> open_shared_bundle(const void* data, size_t size, std::string* error) {
  static auto* mutex = new std::mutex;  // never destroyed, see driver_api.cc
  static auto* opened = new std::map<const void*, std::weak_ptr<const Bundle>>;
  std::lock_guard<std::mutex> lock(*mutex);
  for (auto it = opened->begin(); it != opened->end();) {
    it = it->second.expired() ? opened->erase(it) : std::next(it);
  }
  const auto found = opened->find(data);
  if (found != opened->end()) {
    const std::shared_ptr<const Bundle> held = found->second.lock();
    if (held != nullptr && held->has_table(data, size)) return held;
  }
  auto bundle = std::make_shared<Bundle>();
  *error = Bundle::open(data, size, bundle.get());
  if (!error->empty()) return nullptr;
  (*opened)[data] = bundle;
  return bundle;
}

}  // namespace mirage
