// The launch plan of one MuGraph: what the custom op must check, allocate and launch.
//
// A declarative ASCII text, one statement a line, one spelling (docs in custom_op/plan.py). It comes
// from a model file, so the parser accepts nothing it does not understand and bounds everything.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "expr.h"

namespace mirage {

constexpr int kPlanVersion = 2;
constexpr size_t kMaxPlanBytes = 1 << 20;
constexpr size_t kMaxOutputs = 32;
constexpr size_t kMaxEqual = 256;
constexpr size_t kMaxVariants = 64;
constexpr size_t kMaxLaunches = 64;  // per variant
constexpr size_t kMaxArgs = 64;
constexpr size_t kMaxNameBytes = 255;
constexpr int64_t kMaxSmemBytes = 232448;  // 227 KiB: the most any supported GPU gives a block
constexpr int64_t kMaxCubinId = 4095;
constexpr int64_t kAnyDim = -1;

struct InputSpec {
  int element_type;  // ONNX TensorProto.DataType
  std::vector<int64_t> dims;  // kAnyDim where the plan takes any size
};

// Two products of input dims that must agree in every run.
struct Equal {
  Expr left;
  Expr right;
};

struct OutputSpec {
  int element_type;
  std::vector<Expr> dims;
};

// A tensor of 16-bit elements as the copy engine is told of it: see custom_op/plan.py.
struct TensorMapSpec {
  int64_t first, rows, columns, pitch, box;
};

enum class ArgKind { kInput, kOutput, kWorkspace, kInt32, kInt64 };

struct Arg {
  ArgKind kind;
  uint32_t index = 0;  // kInput, kOutput
  Expr value;  // byte offset, or the integer
  Expr bytes;  // that the kernel touches at a pointer at most
  bool is_map = false;  // the kernel is given a tensor map of what is behind the pointer
  TensorMapSpec map = {};

  bool is_pointer() const { return kind != ArgKind::kInt32 && kind != ArgKind::kInt64; }
};

struct Launch {
  uint32_t cubin;
  std::string kernel;
  Expr grid[3];
  uint32_t block;
  uint32_t cluster;
  uint32_t smem_bytes;
  bool pdl;
  std::vector<Arg> args;
};

struct Variant {
  bool guarded;
  Expr guard;
  std::vector<Launch> launches;
};

struct Plan {
  std::vector<InputSpec> inputs;
  std::vector<Equal> equal;
  std::vector<OutputSpec> outputs;
  bool has_workspace = false;
  Expr workspace_bytes;
  std::vector<Variant> variants;
};

// Returns an empty string on success, else "plan line N: reason".
std::string parse_plan(std::string_view text, Plan* out);

const char* element_type_name(int element_type);  // "f16"; "?" for a type that no plan can name

}  // namespace mirage
