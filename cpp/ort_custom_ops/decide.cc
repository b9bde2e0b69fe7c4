#include "decide.h"

namespace mirage {
namespace {

constexpr char kDomainPrefix[] = "ai.mirage.v1.";  // v1: the version of the plan language

struct Target {
  int major, minor;
  const char* name;
};
constexpr Target kTargets[] = {
    {8, 0, "sm80"}, {8, 6, "sm86"}, {8, 7, "sm87"}, {8, 9, "sm89"}, {9, 0, "sm90a"},
    {10, 0, "sm100a"}, {10, 3, "sm103a"}, {12, 0, "sm120a"},
    {12, 1, "sm121a"}};

const char* find_target(int major, int minor) {
  for (const Target& target : kTargets) {
    if (target.major == major && target.minor == minor) return target.name;
  }
  return nullptr;
}

std::string which(const Facts& facts) { return facts.name.empty() ? "" : ", " + facts.name; }

}  // namespace

std::vector<std::string> chip_words(const std::string& name, int multiprocessors) {
  std::string plain;
  for (const char c : name) {
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) plain += c;
    if (c >= 'A' && c <= 'Z') plain += char(c - 'A' + 'a');
  }
  for (const std::string maker : {"nvidia", "geforce"}) {
    if (plain.compare(0, maker.size(), maker) == 0) plain.erase(0, maker.size());
  }
  std::vector<std::string> words;
  if (!plain.empty()) words.push_back(plain);
  if (multiprocessors > 0) words.push_back("x" + std::to_string(multiprocessors));
  return words;
}

bool needs_driver(const Facts& facts) {
  if (facts.ep == "auto") return facts.ort_has_cuda;
  return facts.ep == "cuda" || (facts.ep == "host" && facts.driver_given);
}

Decision decide(const Facts& facts) {
  if (facts.ep == "none") return {Mode::kNone, "", {}, "ai.mirage.ep is none"};
  const bool automatic = facts.ep == "auto";
  if (!automatic && facts.ep != "cuda" && facts.ep != "host") {
    return {Mode::kRefuse, "", {}, "ai.mirage.ep is '" + facts.ep + "', not auto, cuda, none or host"};
  }
  if (automatic && !facts.ort_has_cuda) {
    return {Mode::kNone, "", {}, "this ONNX Runtime has no CUDAExecutionProvider"};
  }
  if (facts.ep == "host" && !facts.driver_given) {
    return {Mode::kRefuse, "", {}, "ai.mirage.ep=host needs a driver library in ai.mirage.driver"};
  }
  // From here on a shortcoming of the machine is normal for auto and an error for an explicit wish.
  const Mode otherwise = automatic ? Mode::kNone : Mode::kRefuse;
  if (!facts.driver_error.empty()) return {otherwise, "", {}, facts.driver_error};
  if (facts.devices < 1) return {otherwise, "", {}, "the driver has no CUDA device"};
  const char* target = find_target(facts.major, facts.minor);
  if (target == nullptr) {
    return {otherwise, "", {},
        "there are no kernels for compute capability " + std::to_string(facts.major) + "." +
            std::to_string(facts.minor) + which(facts)};
  }
  const std::string domain = std::string(kDomainPrefix) + target;
  std::vector<std::string> own;
  for (const std::string& word : chip_words(facts.name, facts.multiprocessors)) {
    own.push_back(domain + "_" + word);
  }
  return {facts.ep == "host" ? Mode::kHost : Mode::kCuda, domain, own,
      std::string("device 0 is ") + target + which(facts)};
}

}  // namespace mirage
