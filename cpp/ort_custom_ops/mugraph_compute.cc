// MuGraphKernel::compute: one run of a node. Everything it needs lives on the stack.

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "declared.h"
#include "mugraph_kernel.h"
#include "staging.h"
#include "tensor_info.h"
#include "tensor_map.h"

namespace mirage {
namespace {

constexpr int64_t kMaxGrid[3] = {std::numeric_limits<int32_t>::max(), 65535, 65535};
constexpr int64_t kMaxElements = int64_t(1) << 40;  // times 8 bytes: far below overflow
constexpr size_t kFewLaunches = 4;  // of a variant, whose numbers need no memory from the heap
constexpr uintptr_t kVectorBytes = 16;  // generated code loads 16 bytes at a time

size_t element_bytes(int onnx_type) {
  switch (onnx_type) {
    case 2:
    case 3:
    case 9: return 1;
    case 4:
    case 5:
    case 10:
    case 16: return 2;
    case 1:
    case 6:
    case 12: return 4;
    default: return 8;
  }
}

std::string shape_text(const int64_t* dims, size_t rank) {
  std::string out = "[";
  for (size_t i = 0; i < rank; ++i) {
    if (i > 0) out += ",";
    out += dims[i] == kAnyDim ? "*" : std::to_string(dims[i]);
  }
  return out + "]";
}

// "dim 0 of input 1 * 2": a product, with inputs as counted in the model.
std::string product_text(const Expr& product) {
  std::string out;
  for (const Token& token : product.tokens) {
    if (token.op == Op::kMul) continue;
    if (!out.empty()) out += " * ";
    out += token.op == Op::kConst
        ? std::to_string(token.value)
        : "dim " + std::to_string(token.axis) + " of input " + std::to_string(token.input + 1);
  }
  return out;
}

// Why two sizes that the model's symbols declare equal are not, or "".
std::string differs(const Equal& pair, const Dims& dims) {
  int64_t left = 0, right = 0;
  const char* why = nullptr;
  if (!pair.left.eval(dims, &left, &why) || !pair.right.eval(dims, &right, &why)) {
    return std::string("bad size: ") + why;
  }
  if (left == right) return "";
  return "sizes disagree that the model declares equal: " + product_text(pair.left) + " is " +
      std::to_string(left) + ", " + product_text(pair.right) + " is " + std::to_string(right);
}

// "input 1", with inputs as counted in the model.
std::string place_text(const Arg& arg) {
  if (arg.kind == ArgKind::kWorkspace) return "the workspace";
  return arg.kind == ArgKind::kInput ? "input " + std::to_string(arg.index + 1)
                                     : "output " + std::to_string(arg.index);
}

bool is_aligned(const void* data, int64_t elements, int type) {
  return uint64_t(elements) * element_bytes(type) < kVectorBytes ||
      reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0;
}

}  // namespace

struct MuGraphKernel::Run {
  Run(ort::KernelContext* context, const cu::Driver* driver, cu::Stream stream)
      : context(context), stream(stream), staging(driver, stream) {}
  ort::KernelContext* context;
  cu::Stream stream;
  Staging staging;
  Dims dims;
  // Of as many inputs and outputs as the plan has.
  void* inputs[kMaxInputs];
  void* outputs[kMaxOutputs];
  uint64_t input_bytes[kMaxInputs];
  uint64_t output_bytes[kMaxOutputs];
  char* workspace = nullptr;
  int64_t workspace_bytes = 0;
  uint64_t made_bytes = 0;  // of outputs and workspace so far
};

// A launch with the numbers of one run. All of a run are made, and so checked, before the first is
// launched.
struct MuGraphKernel::Prepared {
  unsigned grid[3];
  uint64_t slots[kMaxArgs];
  uint64_t bytes[kMaxArgs];  // that there are behind a pointer
  std::vector<cu::TensorMap> maps;  // in the order of the arguments that are some

  bool is_empty() const { return grid[0] == 0 || grid[1] == 0 || grid[2] == 0; }
};

ort::Status* MuGraphKernel::compute(ort::KernelContext* context) const noexcept {
  try {
    void* stream = nullptr;
    if (on_device()) {
      if (auto* s = ort::KernelContext_GetGPUComputeStream(api_)(context, &stream)) return s;
    }
    Run run(context, registration_->driver, static_cast<cu::Stream>(stream));
    for (size_t i = 0; i < plan_.inputs.size(); ++i) {
      if (auto* s = read_input(&run, i)) return s;
    }
    for (const Equal& pair : plan_.equal) {
      if (std::string why = differs(pair, run.dims); !why.empty()) {
        return fail(ort::kInvalidArgument, why);
      }
    }
    for (size_t i = 0; i < plan_.outputs.size(); ++i) {
      if (auto* s = make_output(&run, i)) return s;
    }
    const char* why = nullptr;
    if (plan_.has_workspace) {
      if (!plan_.workspace_bytes.eval(run.dims, &run.workspace_bytes, &why) ||
          run.workspace_bytes < 0 || run.workspace_bytes > kMaxElements) {
        return fail(ort::kInvalidArgument,
            std::string("bad workspace size: ") + (why != nullptr ? why : "out of range"));
      }
      if (std::string too_much = afford(&run, uint64_t(run.workspace_bytes)); !too_much.empty()) {
        return fail(ort::kInvalidArgument, too_much);
      }
      void* data = nullptr;
      if (auto* s = make_tensor(&run, plan_.outputs.size(), &run.workspace_bytes, 1, &data)) {
        return s;
      }
      run.workspace = static_cast<char*>(data);
    }
    if (!on_device()) poison(run);
    size_t variant = 0;
    std::string error = choose(run, &variant);
    const size_t count = kernels_[variant].size();
    Prepared few[kFewLaunches];
    const std::unique_ptr<Prepared[]> many(count > kFewLaunches ? new Prepared[count] : nullptr);
    Prepared* prepared = many == nullptr ? few : many.get();
    for (size_t i = 0; error.empty() && i < count; ++i) {
      error = prepare(run, variant, i, &prepared[i]);
    }
    for (size_t i = 0; error.empty() && i < count; ++i) {
      error = launch(&run, variant, i, &prepared[i]);
    }
    if (error.empty()) error = run.staging.write_back();
    if (!error.empty()) return fail(ort::kFail, error);
    counter_->copies.fetch_add(run.staging.count(), std::memory_order_relaxed);
    counter_->runs.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  } catch (...) {  // only memory exhaustion throws
    return ort::CreateStatus(api_)(ort::kFail, "mirage-onnx: out of memory");
  }
}

ort::Status* MuGraphKernel::read_input(Run* run, size_t index) const {
  const InputSpec& spec = plan_.inputs[index];
  const auto what = [index] { return "input " + std::to_string(index + 1); };  // as counted in the model
  const ort::Value* value = nullptr;
  if (auto* s = ort::KernelContext_GetInput(api_)(run->context, index + 1, &value)) return s;
  if (value == nullptr) return fail(ort::kInvalidArgument, what() + " is missing");
  TensorInfo info;
  if (auto* s = info.read(api_, registration_->shape_reference, value)) return s;
  if (info.type != spec.element_type) {
    return fail(ort::kInvalidArgument,
        what() + " has element type " + type_text(info.type) + ", the plan needs " +
            type_text(spec.element_type));
  }
  const bool rank_fits = info.rank == spec.dims.size();
  bool fits = rank_fits;
  int64_t elements = 1;
  for (size_t i = 0; fits && i < info.rank; ++i) {
    fits = spec.dims[i] == kAnyDim || spec.dims[i] == info.dims[i];
    elements *= info.dims[i];
  }
  if (!fits) {
    const std::string found = rank_fits ? "shape " + shape_text(info.dims, info.rank)
                                        : "rank " + std::to_string(info.rank);
    return fail(ort::kInvalidArgument,
        what() + " has " + found + ", the plan needs " +
            shape_text(spec.dims.data(), spec.dims.size()));
  }
  run->dims.rank[index] = info.rank;
  std::copy_n(info.dims, info.rank, run->dims.dim[index]);
  run->input_bytes[index] = uint64_t(elements) * element_bytes(info.type);
  auto* tensor = const_cast<ort::Value*>(value);
  if (auto* s = ort::GetTensorMutableData(api_)(tensor, &run->inputs[index])) return s;
  if (is_aligned(run->inputs[index], elements, info.type)) return nullptr;
  return align(run, what(), &run->inputs[index], run->input_bytes[index], true);
}

ort::Status* MuGraphKernel::make_output(Run* run, size_t index) const {
  const OutputSpec& spec = plan_.outputs[index];
  int64_t dims[kMaxRank];
  int64_t elements = 1;
  for (size_t i = 0; i < spec.dims.size(); ++i) {
    const char* why = nullptr;
    if (!spec.dims[i].eval(run->dims, &dims[i], &why) || dims[i] < 0 ||
        __builtin_mul_overflow(elements, dims[i], &elements) || elements > kMaxElements) {
      return fail(ort::kInvalidArgument,
          "bad dim " + std::to_string(i) + " of output " + std::to_string(index) + ": " +
              (why != nullptr ? why : "out of range"));
    }
  }
  run->output_bytes[index] = uint64_t(elements) * element_bytes(spec.element_type);
  if (std::string why = afford(run, run->output_bytes[index]); !why.empty()) {
    return fail(ort::kInvalidArgument, why);
  }
  if (auto* s = make_tensor(run, index, dims, spec.dims.size(), &run->outputs[index])) return s;
  if (is_aligned(run->outputs[index], elements, spec.element_type)) return nullptr;
  return align(run, "output " + std::to_string(index), &run->outputs[index],
      run->output_bytes[index], false);
}

ort::Status* MuGraphKernel::align(
    Run* run, const std::string& what, void** data, uint64_t bytes, bool input) const {
  std::string why = "the driver has no memory in stream order";
  if (run->staging.available()) why = run->staging.replace(data, bytes, input);
  if (why.empty()) return nullptr;
  return fail(ort::kFail, what + " is not aligned to 16 bytes, and cannot be copied: " + why);
}

// A plan from a file may ask for any size: what cannot be there is refused before it is allocated.
std::string MuGraphKernel::afford(Run* run, uint64_t bytes) const {
  run->made_bytes += bytes;  // at most 33 terms below 2^43
  if (run->made_bytes <= most_bytes_) return "";
  return "outputs and workspace take " + std::to_string(run->made_bytes) + " bytes of the " +
      std::to_string(most_bytes_) + " that there are";
}

ort::Status* MuGraphKernel::make_tensor(
    Run* run, size_t index, const int64_t* dims, size_t rank, void** data) const {
  ort::Value* value = nullptr;
  if (auto* s = ort::KernelContext_GetOutput(api_)(run->context, index, dims, rank, &value)) {
    return s;
  }
  if (value == nullptr) {
    return fail(ort::kInvalidArgument, "output " + std::to_string(index) + " is missing");
  }
  // A caller may have bound a tensor of its own, and ORT allocates by the type that the graph has.
  const bool is_workspace = index == plan_.outputs.size();
  const int type = is_workspace ? ort::kUint8 : plan_.outputs[index].element_type;
  TensorInfo made;
  if (auto* s = made.read(api_, registration_->shape_reference, value)) return s;
  if (made.type != type || made.rank != rank || !std::equal(dims, dims + rank, made.dims)) {
    return fail(ort::kInvalidArgument,
        "output " + std::to_string(index) + " was allocated as " + type_text(made.type) +
            shape_text(made.dims, std::min(made.rank, kMaxRank)) + ", the plan makes " +
            type_text(type) + shape_text(dims, rank));
  }
  if (auto* s = ort::GetTensorMutableData(api_)(value, data)) return s;
  if (is_workspace && dims[0] > 0 && reinterpret_cast<uintptr_t>(*data) % kVectorBytes != 0) {
    return fail(ort::kInvalidArgument, "the workspace is not aligned to 16 bytes");
  }
  return nullptr;
}

// In host mode an element that no kernel writes must not keep the right value of an earlier run.
void MuGraphKernel::poison(const Run& run) const {
  for (size_t i = 0; i < plan_.outputs.size(); ++i) {
    // A caller may have bound an input and an output to one buffer.
    void* const* end = run.inputs + plan_.inputs.size();
    if (std::find(run.inputs, end, run.outputs[i]) != end) continue;
    // All ones: NaN in every float type.
    if (run.output_bytes[i] > 0) std::memset(run.outputs[i], 0xff, run.output_bytes[i]);
  }
  if (run.workspace_bytes > 0) std::memset(run.workspace, 0xff, size_t(run.workspace_bytes));
}

std::string MuGraphKernel::choose(const Run& run, size_t* variant) const {
  for (size_t i = 0; i < plan_.variants.size(); ++i) {
    int64_t taken = 1;
    const char* why = nullptr;
    const Variant& candidate = plan_.variants[i];
    *variant = i;
    if (candidate.guarded && !candidate.guard.eval(run.dims, &taken, &why)) {
      return "the guard of variant " + std::to_string(i) + " failed: " + why;
    }
    if (taken != 0) return "";
  }
  return "no variant applies";  // unreachable: the parser demands that the last has no guard
}

// `bytes`: how much memory there is behind a pointer.
std::string MuGraphKernel::pack(
    const Run& run, const Arg& arg, uint64_t* slot, uint64_t* bytes) const {
  int64_t value = 0;
  const char* why = nullptr;
  *bytes = 0;
  switch (arg.kind) {
    case ArgKind::kInput:
      *slot = reinterpret_cast<uintptr_t>(run.inputs[arg.index]);
      *bytes = run.input_bytes[arg.index];
      break;
    case ArgKind::kOutput:
      *slot = reinterpret_cast<uintptr_t>(run.outputs[arg.index]);
      *bytes = run.output_bytes[arg.index];
      break;
    case ArgKind::kWorkspace:
      if (!arg.value.eval(run.dims, &value, &why)) return why;
      if (value < 0 || value > run.workspace_bytes) return "offset outside of the workspace";
      *slot = reinterpret_cast<uintptr_t>(run.workspace + value);
      *bytes = uint64_t(run.workspace_bytes - value);
      break;
    case ArgKind::kInt32:
    case ArgKind::kInt64:
      if (!arg.value.eval(run.dims, &value, &why)) return why;
      if (arg.kind == ArgKind::kInt32 && value != int64_t(int32_t(value))) {
        return "value does not fit in 32 bits";
      }
      *slot = uint64_t(value);  // little endian: a 32-bit argument is the low half
      return "";
  }
  if (!arg.bytes.eval(run.dims, &value, &why)) return why;
  if (value >= 0 && uint64_t(value) <= *bytes) return "";
  return "the kernel takes " + std::to_string(value) + " bytes of " + place_text(arg) +
      ", there are " + std::to_string(*bytes);
}

std::string MuGraphKernel::prepare(
    const Run& run, size_t variant, size_t index, Prepared* out) const {
  const Launch& launch = plan_.variants[variant].launches[index];
  for (int i = 0; i < 3; ++i) {
    int64_t extent = 0;
    const char* why = nullptr;
    if (!launch.grid[i].eval(run.dims, &extent, &why) || extent < 0 || extent > kMaxGrid[i]) {
      return "grid of " + launch.kernel + ": " + (why != nullptr ? why : "out of range");
    }
    out->grid[i] = unsigned(extent);
  }
  if (out->is_empty()) return "";
  if (out->grid[0] % launch.cluster != 0) {
    return "grid of " + launch.kernel + ": " + std::to_string(out->grid[0]) +
        " is not a multiple of the cluster size " + std::to_string(launch.cluster);
  }
  for (size_t i = 0; i < launch.args.size(); ++i) {
    std::string why = pack(run, launch.args[i], &out->slots[i], &out->bytes[i]);
    if (why.empty() && launch.args[i].is_map) {
      why = encode_map(*registration_->driver, launch.args[i].map, out->slots[i], out->bytes[i],
          &out->maps.emplace_back());
    }
    if (!why.empty()) return "argument " + std::to_string(i) + " of " + launch.kernel + ": " + why;
  }
  return "";
}

std::string MuGraphKernel::launch(
    Run* run, size_t variant, size_t index, Prepared* prepared) const {
  if (prepared->is_empty()) return "";
  const Launch& launch = plan_.variants[variant].launches[index];
  cu::LaunchConfig config{};
  std::copy(prepared->grid, prepared->grid + 3, config.grid);
  void* params[kMaxArgs];
  size_t maps = 0;
  for (size_t i = 0; i < launch.args.size(); ++i) {
    params[i] = launch.args[i].is_map ? static_cast<void*>(&prepared->maps[maps++]) : &prepared->slots[i];
  }
  cu::LaunchAttribute attributes[3] = {};
  config.attributes = attributes;
  if (launch.cluster > 1) {
    cu::LaunchAttribute& attribute = attributes[config.attribute_count++];
    attribute.id = cu::kAttrClusterDim;
    attribute.value.cluster = {launch.cluster, 1, 1};
  }
  // Beside a copy a kernel does not begin early: what it reads before it waits may be the copy.
  if (launch.pdl && !run->staging.used()) {
    cu::LaunchAttribute& attribute = attributes[config.attribute_count++];
    attribute.id = cu::kAttrProgrammaticStreamSerialization;
    attribute.value.pdl_allowed = 1;
  }
  const cu::HostLaunch host{counter_->id, number_, uint32_t(variant), uint32_t(index),
      uint32_t(launch.args.size()), prepared->bytes};
  if (!on_device()) {
    cu::LaunchAttribute& attribute = attributes[config.attribute_count++];
    attribute.id = cu::kAttrHostLaunch;
    attribute.value.host = &host;
  }
  config.block[0] = launch.block;
  config.block[1] = config.block[2] = 1;
  config.smem_bytes = launch.smem_bytes;
  config.stream = run->stream;
  const cu::Driver& driver = *registration_->driver;
  // The driver takes a CUkernel in place of a CUfunction; the stream decides the context.
  const cu::Result r = driver.LaunchKernelEx(
      &config, reinterpret_cast<cu::Function>(kernels_[variant][index]), params, nullptr);
  if (r != cu::kSuccess) return "launch of " + launch.kernel + " failed: " + driver.describe(r);
  counter_->launches.fetch_add(1, std::memory_order_relaxed);
  return "";
}

}  // namespace mirage
