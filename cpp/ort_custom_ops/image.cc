#include "image.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace mirage {
namespace {

// ELF64, little endian, as far as it is read here.
constexpr size_t kHeaderBytes = 64, kSectionBytes = 64, kSegmentBytes = 56, kSymbolBytes = 24,
                 kRelaBytes = 24, kRelBytes = 16;
constexpr uint16_t kExecutable = 2, kMachineCuda = 190;
constexpr uint32_t kProgbits = 1, kSymtab = 2, kStrtab = 3, kRela = 4, kNobits = 8, kRel = 9;
constexpr uint16_t kFirstReservedIndex = 0xff00;
constexpr size_t kMaxSections = 4096;
constexpr size_t kMaxNameBytes = 1024;
constexpr size_t kMaxSymbols = 65536;
constexpr size_t kMaxParameters = 64;

// Attributes of a kernel in .nv.info.<kernel>: {u8 form, u8 attribute, u16 value or size}, then as
// many bytes as `size` says where the form is 4. Found by compiling kernels (tests/custom_op).
constexpr uint8_t kFormBytes = 4;
constexpr uint8_t kMaxThreads = 0x05, kParameter = 0x17, kParameterTotal = 0x19, kCluster = 0x3d;

template <class T>
T read(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);  // this library runs on little-endian hosts only
  return value;
}

struct SectionHeader {
  uint32_t name, type;
  uint64_t offset, size;
  uint32_t link, info;
  uint64_t entry_bytes;
};

bool starts_with(std::string_view text, std::string_view head) {
  return text.substr(0, head.size()) == head;
}

class Reader {
 public:
  Reader(const uint8_t* data, size_t size, ImageKernels* out)
      : data_(data), size_(size), out_(out) {}

  std::string run() {
    for (auto step : {&Reader::header, &Reader::segments, &Reader::sections, &Reader::names,
             &Reader::tables, &Reader::kernels}) {
      if (std::string why = (this->*step)(); !why.empty()) return why;
    }
    return "";
  }

 private:
  bool inside(uint64_t offset, uint64_t bytes) const {
    return offset <= size_ && bytes <= size_ - offset;
  }

  std::string header() {
    if (size_ < kHeaderBytes || std::memcmp(data_, "\x7f" "ELF", 4) != 0) return "it is no ELF file";
    if (data_[4] != 2 || data_[5] != 1 || data_[6] != 1) return "it is not 64-bit little-endian ELF";
    if (read<uint16_t>(data_ + 16) != kExecutable || read<uint16_t>(data_ + 18) != kMachineCuda) {
      return "it is no executable for NVIDIA's machine";
    }
    const bool sized = read<uint16_t>(data_ + 52) == kHeaderBytes &&
        read<uint16_t>(data_ + 58) == kSectionBytes;
    return sized ? "" : "its headers have unknown sizes";
  }

  std::string segments() {
    const uint64_t at = read<uint64_t>(data_ + 32);
    const uint16_t count = read<uint16_t>(data_ + 56);
    if (count == 0) return "";
    if (read<uint16_t>(data_ + 54) != kSegmentBytes || !inside(at, uint64_t(count) * kSegmentBytes)) {
      return "its table of segments is out of bounds";
    }
    for (size_t i = 0; i < count; ++i) {
      const uint8_t* p = data_ + at + i * kSegmentBytes;
      if (!inside(read<uint64_t>(p + 8), read<uint64_t>(p + 32))) {
        return "segment " + std::to_string(i) + " is out of bounds";
      }
    }
    return "";
  }

  std::string sections() {
    const uint64_t at = read<uint64_t>(data_ + 40);
    const uint16_t count = read<uint16_t>(data_ + 60);
    if (count == 0 || count > kMaxSections || !inside(at, uint64_t(count) * kSectionBytes)) {
      return "its table of sections is out of bounds";
    }
    for (size_t i = 0; i < count; ++i) {
      const uint8_t* p = data_ + at + i * kSectionBytes;
      const SectionHeader s{read<uint32_t>(p), read<uint32_t>(p + 4), read<uint64_t>(p + 24),
          read<uint64_t>(p + 32), read<uint32_t>(p + 40), read<uint32_t>(p + 44),
          read<uint64_t>(p + 56)};
      if (s.type != kNobits && !inside(s.offset, s.size)) {
        return "section " + std::to_string(i) + " is out of bounds";
      }
      if (s.link >= count) return "section " + std::to_string(i) + " links to none";
      sections_.push_back(s);
    }
    return "";
  }

  // The text at `offset` of a table of strings, which must end inside of it.
  bool text(const SectionHeader& table, uint64_t offset, std::string_view* out) const {
    if (table.type != kStrtab || offset >= table.size) return false;
    const auto* begin = reinterpret_cast<const char*>(data_ + table.offset + offset);
    const void* end = std::memchr(begin, 0, std::min(size_t(table.size - offset), kMaxNameBytes));
    if (end == nullptr) return false;
    *out = {begin, size_t(static_cast<const char*>(end) - begin)};
    return true;
  }

  std::string names() {
    const uint16_t table = read<uint16_t>(data_ + 62);
    if (table >= sections_.size()) return "its names of sections are out of bounds";
    for (const SectionHeader& s : sections_) {
      std::string_view name;
      if (!text(sections_[table], s.name, &name)) return "its names of sections are out of bounds";
      const bool is_ptx = name.find("ptx") != name.npos || name.find("fatbin") != name.npos;
      if (is_ptx) return "it holds PTX";
      names_.push_back(name);
    }
    return "";
  }

  std::string tables() {
    for (size_t i = 0; i < sections_.size(); ++i) {
      const SectionHeader& s = sections_[i];
      const bool is_rela = s.type == kRela || s.type == kRel;
      bool good = true;
      if (s.type == kSymtab || is_rela) good = afford(s);
      if (good && s.type == kSymtab) good = symbols(s);
      if (good && is_rela) good = relocations(s, s.type == kRela ? kRelaBytes : kRelBytes);
      if (!good) return "section " + std::string(names_[i].substr(0, 64)) + " is damaged";
    }
    return "";
  }

  bool symbols(const SectionHeader& s) const {
    if (s.entry_bytes != kSymbolBytes || s.size % kSymbolBytes != 0) return false;
    if (s.size / kSymbolBytes > kMaxSymbols) return false;
    for (uint64_t at = 0; at < s.size; at += kSymbolBytes) {
      const uint8_t* p = data_ + s.offset + at;
      const uint16_t section = read<uint16_t>(p + 6);
      std::string_view name;
      if (!text(sections_[s.link], read<uint32_t>(p), &name)) return false;
      if (section >= kFirstReservedIndex) continue;
      if (section >= sections_.size()) return false;
      const uint64_t value = read<uint64_t>(p + 8), bytes = read<uint64_t>(p + 16);
      const uint64_t room = sections_[section].size;
      if (section != 0 && (value > room || bytes > room - value)) return false;
    }
    return true;
  }

  bool relocations(const SectionHeader& s, size_t each) const {
    const SectionHeader& symbols = sections_[s.link];
    if (s.entry_bytes != each || s.size % each != 0) return false;
    if (s.info >= sections_.size() || symbols.type != kSymtab) return false;
    for (uint64_t at = 0; at < s.size; at += each) {
      const uint8_t* p = data_ + s.offset + at;
      if (read<uint64_t>(p) >= sections_[s.info].size) return false;
      if (read<uint32_t>(p + 12) >= symbols.size / kSymbolBytes) return false;
    }
    return true;
  }

  // Tables that overlap must not make the work more than a few passes over the image.
  bool afford(const SectionHeader& s) {
    if (s.size > 2 * size_ - spent_) return false;
    spent_ += size_t(s.size);
    return true;
  }

  // A kernel is a section .text.<name> whose own .nv.info.<name> tells what it takes.
  std::string kernels() {
    std::map<std::string_view, const SectionHeader*> named;
    for (size_t i = 1; i < sections_.size(); ++i) {
      if (!named.emplace(names_[i], &sections_[i]).second) {
        return "it has two sections " + std::string(names_[i].substr(0, 64));
      }
    }
    for (const auto& [section, header] : named) {
      if (!starts_with(section, ".text.")) continue;
      if (header->type != kProgbits || header->size == 0) continue;
      const std::string name(section.substr(6));
      const auto info = named.find(".nv.info." + name);
      ImageKernel kernel;
      if (info == named.end() || !afford(*info->second)) continue;
      if (!attributes(*info->second, &kernel)) continue;
      const auto shared = named.find(".nv.shared." + name);
      if (shared != named.end()) kernel.shared_bytes = shared->second->size;
      out_->emplace(name, std::move(kernel));
    }
    return "";
  }

  // False for what is cut off, contradicts itself, or does not tell threads.
  bool attributes(const SectionHeader& s, ImageKernel* out) const {
    if (s.type == kNobits) return false;
    const uint8_t* p = data_ + s.offset;
    const uint8_t* end = p + s.size;
    std::map<uint16_t, std::pair<uint32_t, uint32_t>> parameters;  // ordinal -> offset, bytes
    uint32_t total = 0;
    while (end - p >= 4) {
      const uint8_t form = p[0], attribute = p[1];
      const uint16_t value = read<uint16_t>(p + 2);
      p += 4;
      const size_t bytes = form == kFormBytes ? value : 0;
      if (bytes > size_t(end - p)) return false;
      if (form == kFormBytes && attribute == kParameter) {
        if (bytes != 12) return false;
        const std::pair<uint32_t, uint32_t> place{read<uint16_t>(p + 6), read<uint32_t>(p + 8) >> 18};
        if (!parameters.emplace(read<uint16_t>(p + 4), place).second) return false;
      } else if (form == kFormBytes && (attribute == kMaxThreads || attribute == kCluster)) {
        if (bytes != 12) return false;
        const bool is_line = read<uint32_t>(p + 4) == 1 && read<uint32_t>(p + 8) == 1;
        if (!is_line) return false;
        (attribute == kCluster ? out->cluster : out->threads) = read<uint32_t>(p);
      } else if (attribute == kParameterTotal) {
        total = value;
      }
      p += bytes;
    }
    if (p != end || out->threads == 0 || out->cluster == 0) return false;
    if (parameters.size() > kMaxParameters) return false;
    uint32_t room = 0;  // parameters must follow each other, or the driver copies other bytes
    for (const auto& [ordinal, place] : parameters) {
      const auto [offset, bytes] = place;
      if (ordinal != out->parameter_bytes.size() || bytes == 0 || offset < room) return false;
      room = offset + bytes;
      out->parameter_bytes.push_back(bytes);
    }
    return room == total;
  }

  const uint8_t* data_;
  size_t size_;
  ImageKernels* out_;
  std::vector<SectionHeader> sections_;
  std::vector<std::string_view> names_;
  size_t spent_ = 0;  // bytes of tables read so far
};

}  // namespace

std::string read_image(const uint8_t* data, size_t size, ImageKernels* out) {
  return Reader(data, size, out).run();
}

}  // namespace mirage
