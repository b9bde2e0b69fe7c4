// C functions that let the Python tests reach the parsers and the decision rule directly. They are
// part of the library that ships, so that the tests test what ships; they have no side effects.

#include <algorithm>
#include <cstring>
#include <limits>

#include "bundle.h"
#include "counters.h"
#include "decide.h"
#include "image.h"
#include "node_digest.h"
#include "plan.h"
#include "sha256.h"

namespace {

void copy_text(const std::string& text, char* out, size_t capacity) {
  if (capacity == 0) return;
  const size_t n = std::min(text.size(), capacity - 1);
  std::memcpy(out, text.data(), n);
  out[n] = '\0';
}

}  // namespace

// Evaluates an expression over `inputs` shapes; `dims` holds kMaxRank values per input.
// Returns 0 = value, 1 = refused by the parser, 2 = refused by the evaluation.
MIRAGE_EXPORT int mirage_test_eval(const char* text, size_t size, const uint32_t* ranks,
    size_t inputs, const int64_t* dims, int64_t* out, char* error, size_t capacity) {
  mirage::Dims shapes{};
  for (size_t i = 0; i < inputs && i < mirage::kMaxInputs; ++i) {
    shapes.rank[i] = std::min<size_t>(ranks[i], mirage::kMaxRank);
    std::copy_n(dims + i * mirage::kMaxRank, mirage::kMaxRank, shapes.dim[i]);
  }
  mirage::Expr expr;
  const size_t count = std::min(inputs, mirage::kMaxInputs);
  const std::string why = mirage::parse_expr({text, size}, shapes.rank, count, &expr);
  copy_text(why, error, capacity);
  if (!why.empty()) return 1;
  const char* reason = nullptr;
  if (expr.eval(shapes, out, &reason)) return 0;
  copy_text(reason, error, capacity);
  return 2;
}

// Parses a plan; returns 0 when it is accepted, else 1 with the reason in `error`.
MIRAGE_EXPORT int mirage_test_plan(const char* text, size_t size, char* error, size_t capacity) {
  mirage::Plan plan;
  const std::string why = mirage::parse_plan({text, size}, &plan);
  copy_text(why, error, capacity);
  return why.empty() ? 0 : 1;
}

// Opens a bundle and, where `kind` is not 0, reads one of its sections; returns 0 or 1 with the
// reason in `error`.
MIRAGE_EXPORT int mirage_test_bundle(
    const void* data, size_t size, uint32_t kind, uint32_t id, char* error, size_t capacity) {
  mirage::Bundle bundle;
  std::string why = mirage::Bundle::open(data, size, &bundle);
  if (why.empty() && kind != 0) bundle.section(static_cast<mirage::SectionKind>(kind), id, &why);
  copy_text(why, error, capacity);
  return why.empty() ? 0 : 1;
}

// Reads plan `number` of a bundle; returns 0 with the digest of a node that runs it in `text`, where
// `stated` is that or "any", else 1 with the reason.
MIRAGE_EXPORT int mirage_test_node(const void* data, size_t size, uint32_t number,
    const char* stated, char* text, size_t capacity) {
  mirage::Bundle bundle;
  mirage::PlannedNode node;
  std::string why = mirage::Bundle::open(data, size, &bundle);
  if (why.empty()) why = mirage::read_node(bundle, number, &node);
  if (why.empty() && std::strcmp(stated, "any") != 0) why = mirage::check_digest(node, stated);
  copy_text(why.empty() ? node.digest : why, text, capacity);
  return why.empty() ? 0 : 1;
}

// Reads an image; returns 0 with a line "<name> <threads> <cluster> <parameter bytes>..." per kernel
// in `text`, or 1 with the reason.
MIRAGE_EXPORT int mirage_test_image(const uint8_t* data, size_t size, char* text, size_t capacity) {
  mirage::ImageKernels kernels;
  std::string out = mirage::read_image(data, size, &kernels);
  const bool good = out.empty();
  for (const auto& [name, kernel] : kernels) {
    if (!good) break;
    out += name + " " + std::to_string(kernel.threads) + " " + std::to_string(kernel.cluster);
    for (uint32_t bytes : kernel.parameter_bytes) out += " " + std::to_string(bytes);
    out += "\n";
  }
  copy_text(out, text, capacity);
  return good ? 0 : 1;
}

MIRAGE_EXPORT void mirage_test_sha256(const uint8_t* data, size_t size, uint8_t out[32]) {
  const mirage::Digest digest = mirage::sha256(data, size);
  std::copy(digest.begin(), digest.end(), out);
}

// The decision rule. Returns the mode (0 none, 1 cuda, 2 host, 3 refused), the domain in `domain`
// and the reason in `reason`.
MIRAGE_EXPORT int mirage_decide_domain(const char* ep, int driver_given, int ort_has_cuda,
    const char* driver_error, int devices, int major, int minor, const char* name, int multiprocessors,
    char* domain, char* reason, size_t capacity) {
  mirage::Facts facts;
  facts.ep = ep;
  facts.driver_given = driver_given != 0;
  facts.ort_has_cuda = ort_has_cuda != 0;
  facts.driver_error = driver_error;
  facts.devices = devices;
  facts.major = major;
  facts.minor = minor;
  facts.name = name;
  facts.multiprocessors = multiprocessors;
  const mirage::Decision decision = mirage::decide(facts);
  std::string domains = decision.domain;
  for (const std::string& own : decision.own_domains) domains += " " + own;
  copy_text(domains, domain, capacity);
  copy_text(decision.reason, reason, capacity);
  return static_cast<int>(decision.mode);
}
