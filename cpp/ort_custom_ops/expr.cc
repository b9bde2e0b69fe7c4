#include "expr.h"

namespace mirage {
namespace {

struct OpName {
  std::string_view name;
  Op op;
};
constexpr OpName kOps[] = {{"+", Op::kAdd}, {"-", Op::kSub}, {"*", Op::kMul},
    {"ceildiv", Op::kCeilDiv}, {"mod", Op::kMod}, {"min", Op::kMin}, {"max", Op::kMax},
    {"eq", Op::kEq}, {"le", Op::kLe}, {"and", Op::kAnd}};

// One binary operation; null on success, else the reason.
const char* apply(Op op, int64_t a, int64_t b, int64_t* out) {
  switch (op) {
    case Op::kAdd: return __builtin_add_overflow(a, b, out) ? "overflow" : nullptr;
    case Op::kSub: return __builtin_sub_overflow(a, b, out) ? "overflow" : nullptr;
    case Op::kMul: return __builtin_mul_overflow(a, b, out) ? "overflow" : nullptr;
    case Op::kCeilDiv:
      if (b < 1) return "divisor below 1";
      *out = a / b + (a % b > 0 ? 1 : 0);
      return nullptr;
    case Op::kMod:
      if (b < 1) return "divisor below 1";
      *out = a % b + (a % b < 0 ? b : 0);
      return nullptr;
    case Op::kMin: *out = a < b ? a : b; return nullptr;
    case Op::kMax: *out = a > b ? a : b; return nullptr;
    case Op::kEq: *out = a == b; return nullptr;
    case Op::kLe: *out = a <= b; return nullptr;
    case Op::kAnd: *out = a != 0 && b != 0; return nullptr;
    case Op::kConst:
    case Op::kDim: break;
  }
  return "not an operator";
}

// A token as it may appear in a message: the text is untrusted and can be long.
std::string quoted(std::string_view text) { return "'" + std::string(text.substr(0, 32)) + "'"; }

std::string parse_dim(std::string_view text, const size_t* ranks, size_t inputs, Token* out) {
  const size_t dot = text.find('.');
  int64_t input = 0;
  int64_t axis = 0;
  if (dot == std::string_view::npos || parse_int(text.substr(1, dot - 1), &input) != nullptr ||
      parse_int(text.substr(dot + 1), &axis) != nullptr || input < 0 || axis < 0) {
    return "bad token " + quoted(text);
  }
  if (size_t(input) >= inputs || size_t(axis) >= ranks[input]) {
    return quoted(text) + " is not a dim of an input";
  }
  *out = Token{Op::kDim, uint8_t(input), uint8_t(axis), 0};
  return "";
}

std::string parse_token(std::string_view text, const size_t* ranks, size_t inputs, Token* out) {
  for (const OpName& candidate : kOps) {
    if (text == candidate.name) {
      *out = Token{candidate.op, 0, 0, 0};
      return "";
    }
  }
  if (!text.empty() && text[0] == 'd') return parse_dim(text, ranks, inputs, out);
  *out = Token{Op::kConst, 0, 0, 0};
  const char* why = parse_int(text, &out->value);
  return why == nullptr ? "" : "bad token " + quoted(text);
}

}  // namespace

const char* parse_int(std::string_view text, int64_t* out) {
  const bool negative = !text.empty() && text[0] == '-';
  const std::string_view digits = text.substr(negative ? 1 : 0);
  if (digits.empty()) return "not an integer";
  if (digits[0] == '0' && (digits.size() > 1 || negative)) return "not a canonical integer";
  int64_t value = 0;  // built as a negative number, whose range is the larger one
  for (char c : digits) {
    if (c < '0' || c > '9') return "not an integer";
    if (__builtin_mul_overflow(value, int64_t(10), &value) ||
        __builtin_sub_overflow(value, int64_t(c - '0'), &value)) {
      return "beyond int64";
    }
  }
  if (!negative && __builtin_sub_overflow(int64_t(0), value, &value)) return "beyond int64";
  *out = value;
  return nullptr;
}

std::string parse_expr(std::string_view text, const size_t* ranks, size_t inputs, Expr* out) {
  out->tokens.clear();
  size_t depth = 0;
  for (size_t at = 0; at <= text.size();) {
    size_t comma = text.find(',', at);
    if (comma == std::string_view::npos) comma = text.size();
    Token token;
    std::string why = parse_token(text.substr(at, comma - at), ranks, inputs, &token);
    if (!why.empty()) return why;
    if (out->tokens.size() == kMaxExprTokens) return "expression of more than 128 tokens";
    out->tokens.push_back(token);
    if (token.op == Op::kConst || token.op == Op::kDim) {
      if (++depth > kMaxExprStack) return "expression deeper than 16";
    } else if (depth < 2) {
      return "operator without two operands";
    } else {
      --depth;
    }
    at = comma + 1;
  }
  return depth == 1 ? "" : "expression leaves " + std::to_string(depth) + " values, not 1";
}

bool Expr::is_constant(int64_t* value) const {
  if (tokens.size() != 1 || tokens[0].op != Op::kConst) return false;
  *value = tokens[0].value;
  return true;
}

bool Expr::eval(const Dims& dims, int64_t* out, const char** why) const {
  int64_t stack[kMaxExprStack];
  size_t depth = 0;  // parse_expr has checked the depth and every index
  for (const Token& token : tokens) {
    if (token.op == Op::kConst) {
      stack[depth++] = token.value;
    } else if (token.op == Op::kDim) {
      stack[depth++] = dims.dim[token.input][token.axis];
    } else {
      --depth;
      *why = apply(token.op, stack[depth - 1], stack[depth], &stack[depth - 1]);
      if (*why != nullptr) return false;
    }
  }
  *out = stack[0];
  return true;
}

}  // namespace mirage
