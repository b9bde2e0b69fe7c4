// Integer expressions over input dims, in reverse Polish notation: "d0.0,16,ceildiv".
//
// Tokens are joined by commas: a decimal int64, d<input>.<dim>, or an operator. Arithmetic is
// checked: an overflow or a divisor < 1 is an error of the evaluation, never undefined behaviour.
// mirage_onnx/custom_op/plan.py holds the same definition in Python; tests compare the two.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mirage {

constexpr size_t kMaxInputs = 64;
constexpr size_t kMaxRank = 8;
constexpr size_t kMaxExprTokens = 128;
constexpr size_t kMaxExprStack = 16;

// Shapes of the plan's inputs at one run.
struct Dims {
  size_t rank[kMaxInputs];
  int64_t dim[kMaxInputs][kMaxRank];
};

enum class Op : uint8_t {
  kConst,
  kDim,
  kAdd,
  kSub,
  kMul,
  kCeilDiv,
  kMod,
  kMin,
  kMax,
  kEq,
  kLe,
  kAnd
};

struct Token {
  Op op;
  uint8_t input;  // kDim
  uint8_t axis;  // kDim
  int64_t value;  // kConst
};

struct Expr {
  std::vector<Token> tokens;

  bool is_constant(int64_t* value) const;
  // Evaluates; false with a reason (a string literal) on overflow or a bad divisor.
  bool eval(const Dims&, int64_t* out, const char** why) const;
};

// Canonical decimal int64: no leading zero, no "-0". Returns null on success, else the reason.
const char* parse_int(std::string_view text, int64_t* out);

// Parses one expression. `ranks` holds the rank of each of the `inputs` inputs.
// Returns an empty string on success, else the reason.
std::string parse_expr(std::string_view text, const size_t* ranks, size_t inputs, Expr* out);

}  // namespace mirage
