#include "node_digest.h"

namespace mirage {
namespace {

std::string hexadecimal(const Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (uint8_t byte : digest) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

}  // namespace

std::string read_node(const Bundle& bundle, uint32_t number, PlannedNode* out) {
  std::string why;
  const Section* text = bundle.section(SectionKind::kPlan, number, &why);
  if (text == nullptr) return why;
  why = parse_plan({reinterpret_cast<const char*>(text->data), text->size}, &out->plan);
  if (!why.empty()) return why;
  std::vector<uint8_t> tied(text->digest.begin(), text->digest.end());
  for (const Variant& variant : out->plan.variants) {
    for (const Launch& launch : variant.launches) {
      const Section* image = bundle.section(SectionKind::kCubin, launch.cubin, &why);
      if (image == nullptr) return why;
      out->images.push_back(image);
      tied.insert(tied.end(), image->digest.begin(), image->digest.end());
    }
  }
  out->digest = hexadecimal(sha256(tied.data(), tied.size()));
  return "";
}

std::string check_digest(const PlannedNode& node, const std::string& stated) {
  if (stated.empty()) return "bundle: the node has no digest of its plan and images";
  if (stated == node.digest) return "";
  return "bundle: its plan and images do not have the digest that the node states";
}

}  // namespace mirage
