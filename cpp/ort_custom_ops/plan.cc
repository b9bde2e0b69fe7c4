#include "plan.h"

namespace mirage {
namespace {

using Words = std::vector<std::string_view>;

constexpr size_t kLaunchWords = 16;  // before its arguments
// One more than any statement has: what follows is too much anyway, and is not kept.
constexpr size_t kMaxWords = kLaunchWords + kMaxArgs + 1;

struct ElementType {
  std::string_view name;
  int onnx;
};
constexpr ElementType kElementTypes[] = {{"f16", 10}, {"bf16", 16}, {"f32", 1}, {"f64", 11},
    {"i8", 3}, {"u8", 2}, {"i16", 5}, {"u16", 4}, {"i32", 6}, {"u32", 12}, {"i64", 7}, {"u64", 13},
    {"bool", 9}, {"e4m3", 17}, {"e5m2", 19}};

bool find_element_type(std::string_view name, int* out) {
  for (const ElementType& type : kElementTypes) {
    if (type.name == name) {
      *out = type.onnx;
      return true;
    }
  }
  return false;
}

bool is_identifier(std::string_view name) {
  if (name.empty() || name.size() > kMaxNameBytes) return false;
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    if (!letter && !(i > 0 && c >= '0' && c <= '9')) return false;
  }
  return true;
}

// Reads statements in their fixed order; every method returns "" or the reason of a refusal.
class Parser {
 public:
  explicit Parser(Plan* plan) : plan_(plan) {}

  std::string statement(const Words& words) {
    const std::string_view head = words[0];
    if (section_ == 0) {
      section_ = 1;
      const std::string version = std::to_string(kPlanVersion);
      const bool known = words.size() == 2 && head == "plan" && words[1] == version;
      return known ? "" : "expected 'plan " + version + "'";
    }
    if (head == "input" && section_ == 1) return input(words);
    if (head == "equal" && section_ <= 2) return equal(words);
    if (head == "output" && section_ <= 3) return output(words);
    if (head == "workspace" && section_ == 3) return workspace(words);
    if (head == "variant" && section_ >= 3) return variant(words);
    if (head == "launch" && section_ == 5) return launch(words);
    return "statement '" + std::string(head.substr(0, 32)) + "' is unknown or out of place";
  }

  std::string finish() const {
    if (plan_->variants.empty()) return "the plan has no variant";
    if (plan_->variants.back().guarded) return "the last variant must have no guard";
    return "";
  }

 private:
  std::string expr(std::string_view text, Expr* out) const {
    return parse_expr(text, ranks_, plan_->inputs.size(), out);
  }

  // An expression that must not be a negative constant.
  std::string extent(std::string_view text, Expr* out) const {
    std::string why = expr(text, out);
    int64_t value = 0;
    if (why.empty() && out->is_constant(&value) && value < 0) why = "negative constant";
    return why;
  }

  std::string input(const Words& words) {
    InputSpec spec;
    if (plan_->inputs.size() == kMaxInputs) return "more than 64 inputs";
    if (words.size() < 2 || !find_element_type(words[1], &spec.element_type)) {
      return "expected 'input <dtype> <dim>...'";
    }
    if (words.size() - 2 > kMaxRank) return "rank above 8";
    for (size_t i = 2; i < words.size(); ++i) {
      int64_t dim = kAnyDim;
      if (words[i] != "*" && (parse_int(words[i], &dim) != nullptr || dim < 0)) {
        return "a dim must be '*' or an integer >= 0";
      }
      spec.dims.push_back(dim);
    }
    ranks_[plan_->inputs.size()] = spec.dims.size();
    plan_->inputs.push_back(std::move(spec));
    return "";
  }

  std::string equal(const Words& words) {
    section_ = 2;
    if (plan_->equal.size() == kMaxEqual) return "more than 256 equalities";
    if (words.size() != 3) return "expected 'equal <expr> <expr>'";
    Equal pair;
    std::string why = expr(words[1], &pair.left);
    if (why.empty()) why = expr(words[2], &pair.right);
    if (!why.empty()) return why;
    for (const Expr* side : {&pair.left, &pair.right}) {
      for (const Token& token : side->tokens) {
        if (token.op != Op::kConst && token.op != Op::kDim && token.op != Op::kMul) {
          return "only products can be compared";
        }
      }
    }
    plan_->equal.push_back(std::move(pair));
    return "";
  }

  std::string output(const Words& words) {
    section_ = 3;
    OutputSpec spec;
    if (plan_->outputs.size() == kMaxOutputs) return "more than 32 outputs";
    if (words.size() < 2 || !find_element_type(words[1], &spec.element_type)) {
      return "expected 'output <dtype> <expr>...'";
    }
    if (words.size() - 2 > kMaxRank) return "rank above 8";
    for (size_t i = 2; i < words.size(); ++i) {
      Expr dim;
      if (std::string why = extent(words[i], &dim); !why.empty()) return why;
      spec.dims.push_back(std::move(dim));
    }
    plan_->outputs.push_back(std::move(spec));
    return "";
  }

  std::string workspace(const Words& words) {
    section_ = 4;
    if (words.size() != 2) return "expected 'workspace <expr>'";
    plan_->has_workspace = true;
    return extent(words[1], &plan_->workspace_bytes);
  }

  std::string variant(const Words& words) {
    section_ = 5;
    if (words.size() > 2) return "expected 'variant' or 'variant <expr>'";
    if (plan_->variants.size() == kMaxVariants) return "more than 64 variants";
    if (!plan_->variants.empty() && !plan_->variants.back().guarded) {
      return "a variant without a guard must be the last";
    }
    Variant variant{words.size() == 2, {}, {}};
    std::string why = variant.guarded ? expr(words[1], &variant.guard) : "";
    plan_->variants.push_back(std::move(variant));
    return why;
  }

  static std::string number(
      std::string_view text, int64_t low, int64_t high, const char* what, int64_t* out) {
    if (parse_int(text, out) == nullptr && *out >= low && *out <= high) return "";
    return std::string(what) + " must be an integer in " + std::to_string(low) + ".." +
        std::to_string(high);
  }

  std::string launch(const Words& words) {
    const bool shaped = words.size() >= kLaunchWords && words[3] == "grid" && words[7] == "block" &&
        words[9] == "cluster" && words[11] == "smem" && words[13] == "pdl" && words[15] == "args";
    if (!shaped) {
      return "expected 'launch <cubin> <kernel> grid <expr> <expr> <expr> block <n> cluster <n> "
             "smem <n> pdl <0|1> args <arg>...'";
    }
    Variant& variant = plan_->variants.back();
    if (variant.launches.size() == kMaxLaunches) return "more than 64 launches in a variant";
    if (words.size() - kLaunchWords > kMaxArgs) return "more than 64 arguments";
    Launch launch;
    int64_t cubin, block, cluster, smem, pdl;
    std::string why = number(words[1], 0, kMaxCubinId, "cubin", &cubin);
    if (why.empty() && !is_identifier(words[2])) why = "the kernel name is not an identifier";
    for (int i = 0; i < 3 && why.empty(); ++i) why = extent(words[4 + i], &launch.grid[i]);
    if (why.empty()) why = number(words[8], 1, 1024, "block", &block);
    if (why.empty()) why = number(words[10], 1, 16, "cluster", &cluster);
    if (why.empty()) why = number(words[12], 0, kMaxSmemBytes, "smem", &smem);
    if (why.empty()) why = number(words[14], 0, 1, "pdl", &pdl);
    if (!why.empty()) return why;
    launch.cubin = uint32_t(cubin);
    launch.kernel = std::string(words[2]);
    launch.block = uint32_t(block);
    launch.cluster = uint32_t(cluster);
    launch.smem_bytes = uint32_t(smem);
    launch.pdl = pdl == 1;
    for (size_t i = kLaunchWords; i < words.size(); ++i) {
      Arg arg;
      if (why = argument(words[i], &arg); !why.empty()) return why;
      launch.args.push_back(std::move(arg));
    }
    variant.launches.push_back(std::move(launch));
    return "";
  }

  // `t:<first>:<rows>:<columns>:<pitch>:<box>:` in front of a pointer.
  std::string tensor_map(std::string_view text, Arg* out) const {
    struct Limit {
      const char* what;
      int64_t low, high;
      int64_t* value;
    };
    constexpr int64_t kMost = (int64_t(1) << 31) - 1;
    TensorMapSpec& map = out->map;
    const Limit limits[] = {{"first of a tensor map", 0, kMost, &map.first},
        {"rows of a tensor map", 1, kMost, &map.rows},
        {"columns of a tensor map", 1, kMost, &map.columns},
        {"pitch of a tensor map", 1, kMost, &map.pitch}, {"box of a tensor map", 1, 256, &map.box}};
    std::string_view rest = text.substr(2);
    std::string_view parts[5];
    for (std::string_view& part : parts) {
      const size_t colon = rest.find(':');
      if (colon == std::string_view::npos) return bad_argument(text);
      part = rest.substr(0, colon);
      rest = rest.substr(colon + 1);
    }
    for (size_t i = 0; i < 5; ++i) {
      const Limit& l = limits[i];
      if (std::string why = number(parts[i], l.low, l.high, l.what, l.value); !why.empty()) return why;
    }
    if (map.first % 8 != 0 || map.columns % 8 != 0 || map.pitch % 8 != 0 || map.pitch < map.columns) {
      return "rows of a tensor map are multiples of 8 elements, and lie apart";
    }
    const size_t mark = rest.find('#');
    if (mark == std::string_view::npos) return bad_argument(text);
    out->is_map = true;
    std::string why = extent(rest.substr(mark + 1), &out->bytes);
    return why.empty() ? pointer(rest, rest.substr(0, mark), out) : why;
  }

  std::string argument(std::string_view text, Arg* out) const {
    if (text.substr(0, 2) == "t:") return tensor_map(text, out);
    const size_t mark = text.find('#');
    if (mark != std::string_view::npos) {
      std::string why = extent(text.substr(mark + 1), &out->bytes);
      return why.empty() ? pointer(text, text.substr(0, mark), out) : why;
    }
    const std::string_view kind = text.substr(0, 4);
    if (kind != "i32:" && kind != "i64:") return bad_argument(text);
    out->kind = kind == "i32:" ? ArgKind::kInt32 : ArgKind::kInt64;
    return expr(text.substr(4), &out->value);
  }

  // `place`: what stands before the bytes.
  std::string pointer(std::string_view text, std::string_view place, Arg* out) const {
    if (place.substr(0, 2) == "w:") {
      if (!plan_->has_workspace) return "workspace argument, but the plan has no workspace";
      out->kind = ArgKind::kWorkspace;
      return extent(place.substr(2), &out->value);
    }
    const bool named = !place.empty() && (place[0] == 'i' || place[0] == 'o');
    int64_t index = -1;
    if (!named || parse_int(place.substr(1), &index) != nullptr || index < 0) {
      return bad_argument(text);
    }
    const size_t count = place[0] == 'i' ? plan_->inputs.size() : plan_->outputs.size();
    if (size_t(index) >= count) {
      return "'" + std::string(place.substr(0, 32)) + "' is not one of the plan's tensors";
    }
    out->kind = place[0] == 'i' ? ArgKind::kInput : ArgKind::kOutput;
    out->index = uint32_t(index);
    return "";
  }

  static std::string bad_argument(std::string_view text) {
    return "bad argument '" + std::string(text.substr(0, 32)) + "'";
  }

  Plan* plan_;
  int section_ = 0;  // 0 header, 1 inputs, 2 equal, 3 outputs, 4 workspace, 5 variants
  size_t ranks_[kMaxInputs] = {};
};

// Splits at single spaces, up to kMaxWords; false when a word is empty or a byte is not printable ASCII.
bool split(std::string_view line, Words* out) {
  for (char c : line) {
    if (c < ' ' || c > '~') return false;
  }
  for (size_t at = 0; at <= line.size();) {
    size_t space = line.find(' ', at);
    if (space == std::string_view::npos) space = line.size();
    if (space == at) return false;
    if (out->size() < kMaxWords) out->push_back(line.substr(at, space - at));
    at = space + 1;
  }
  return true;
}

}  // namespace

const char* element_type_name(int element_type) {
  for (const ElementType& type : kElementTypes) {
    if (type.onnx == element_type) return type.name.data();
  }
  return "?";
}

std::string parse_plan(std::string_view text, Plan* out) {
  if (text.size() > kMaxPlanBytes) return "plan line 1: the text is longer than 1 MiB";
  Parser parser(out);
  size_t number = 1;
  const auto refuse = [&](const std::string& why) {
    return "plan line " + std::to_string(number) + ": " + why;
  };
  for (size_t at = 0; at < text.size(); ++number) {
    const size_t end = text.find('\n', at);
    if (end == std::string_view::npos) return refuse("the last line must end with a newline");
    Words words;
    if (!split(text.substr(at, end - at), &words)) {
      return refuse("words of printable ASCII separated by single spaces are expected");
    }
    if (std::string why = parser.statement(words); !why.empty()) return refuse(why);
    at = end + 1;
  }
  const std::string why = parser.finish();
  return why.empty() ? "" : refuse(why);
}

}  // namespace mirage
