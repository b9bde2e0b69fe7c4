// Feeds mutated plans and bundles to the parsers, under the address and undefined-behaviour
// sanitizers: fuzz_main <iterations> <file>... The first file is a bundle, the others plans.
// Accepted expressions are evaluated too. Deterministic: the seed is the iteration number.
//
// fuzz_main judge <corpus> reads files that tests/support/damaged_files.py made, {kind, u32 size, bytes},
// and prints a line for each: why it is refused, or nothing, or the digest of a node that runs it.
//
// Memory is counted: at its peak a reader may hold twice what is needed, and a little; more ends the
// program. Needed are the file and what was made of it or, where it is refused and nothing is left, could
// have been: a token of two characters is 16 bytes. The largest peak is told on stderr at the end.

#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "bundle.h"
#include "image.h"
#include "node_digest.h"
#include "plan.h"

namespace {

struct Memory {
  size_t held = 0;  // bytes, now
  size_t peak = 0;
  size_t made = 0;  // held when a reader was done, before what it made is dropped
} memory;

void* allocate(size_t bytes) {
  void* p = std::malloc(bytes == 0 ? 1 : bytes);
  if (p == nullptr) std::abort();
  memory.held += malloc_usable_size(p);
  memory.peak = std::max(memory.peak, memory.held);
  return p;
}

void release(void* p) {
  if (p != nullptr) memory.held -= malloc_usable_size(p);
  std::free(p);
}

}  // namespace

void* operator new(size_t bytes) { return allocate(bytes); }
void* operator new[](size_t bytes) { return allocate(bytes); }
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, size_t) noexcept { release(p); }
void operator delete[](void* p, size_t) noexcept { release(p); }

namespace {

const char* const kPieces[] = {"\n", " ", "*", ",", "d0.0", "d", ".", "-", "-9223372036854775808",
    "9223372036854775807", "ceildiv", "mod", "and", "0",
    "i64:", "w:", "#", "launch 0 k grid 1 1 1 block 1 cluster 1 smem 0 pdl 0 args i0#8\n", "variant\n",
    "input f16 *\n", "output f16 d0.0\n"};

std::string mutate(std::string text, std::mt19937* random) {
  const auto below = [&](size_t n) { return n == 0 ? 0 : (*random)() % n; };
  for (size_t edits = 1 + below(3); edits > 0; --edits) {
    const size_t at = below(text.size() + 1);
    switch (below(9)) {
      case 0: text = text.substr(0, at); break;
      case 1: text.erase(at, below(8)); break;
      case 2: text.insert(at, kPieces[below(std::size(kPieces))]); break;
      case 3: text.insert(at, text.substr(below(text.size() + 1), below(60))); break;
      default:
        if (at < text.size()) text[at] = char(below(256));
    }
  }
  return text;
}

void evaluate(const mirage::Plan& plan) {
  mirage::Dims dims{};
  for (auto& shape : dims.dim) {
    for (size_t i = 0; i < mirage::kMaxRank; ++i) shape[i] = int64_t(1) << (9 * i);
  }
  const char* why = nullptr;
  int64_t value = 0;
  if (plan.has_workspace) plan.workspace_bytes.eval(dims, &value, &why);
  for (const auto& pair : plan.equal) {
    pair.left.eval(dims, &value, &why);
    pair.right.eval(dims, &value, &why);
  }
  for (const auto& output : plan.outputs) {
    for (const auto& dim : output.dims) dim.eval(dims, &value, &why);
  }
  for (const auto& variant : plan.variants) {
    if (variant.guarded) variant.guard.eval(dims, &value, &why);
    for (const auto& launch : variant.launches) {
      for (const auto& extent : launch.grid) extent.eval(dims, &value, &why);
      for (const auto& arg : launch.args) {
        const bool is_tensor =
            arg.kind == mirage::ArgKind::kInput || arg.kind == mirage::ArgKind::kOutput;
        if (!is_tensor) arg.value.eval(dims, &value, &why);
        if (arg.is_pointer()) arg.bytes.eval(dims, &value, &why);
      }
    }
  }
}

// Copies to an exactly sized heap block, so that one byte too far is seen.
template <class Use>
void exactly(const std::string& text, Use use) {
  std::unique_ptr<char[]> copy(new char[text.size()]);
  std::copy(text.begin(), text.end(), copy.get());
  use(copy.get(), text.size());
}

std::string judge_bundle(const char* data, size_t size) {
  mirage::Bundle bundle;
  std::string why = mirage::Bundle::open(data, size, &bundle);
  memory.made = memory.held;
  if (!why.empty()) return why;
  unsigned sum = 0;
  for (uint32_t kind = 1; kind <= 3; ++kind) {
    for (uint32_t id = 0; id < 5; ++id) {
      const mirage::Section* section =
          bundle.section(static_cast<mirage::SectionKind>(kind), id, &why);
      for (size_t i = 0; section != nullptr && i < section->size; ++i) sum += section->data[i];
    }
  }
  return sum == 0xffffffff ? "unlikely" : "";  // so that the bytes are read
}

// The node that runs plan 0 of a bundle: "digest <what it states>", or why there is none.
std::string judge_node(const char* data, size_t size) {
  mirage::Bundle bundle;
  mirage::PlannedNode node;
  std::string why = mirage::Bundle::open(data, size, &bundle);
  if (why.empty()) why = mirage::read_node(bundle, 0, &node);
  memory.made = memory.held;
  return why.empty() ? "digest " + node.digest : why;
}

std::string judge(char kind, const char* data, size_t size) {
  if (kind == 'B') return judge_bundle(data, size);
  if (kind == 'N') return judge_node(data, size);
  if (kind == 'I') {
    mirage::ImageKernels kernels;
    const std::string why = mirage::read_image(reinterpret_cast<const uint8_t*>(data), size, &kernels);
    memory.made = memory.held;
    return why;
  }
  mirage::Plan plan;
  const std::string why = mirage::parse_plan({data, size}, &plan);
  memory.made = memory.held;
  if (why.empty()) evaluate(plan);
  return why;
}

// Beside twice what is needed: the reason of a refusal, and what containers begin with.
constexpr size_t kLittle = 4096;

constexpr double kLimitSeconds = 2.0;  // of the processor, with the sanitizers

// Judges one file, which is counted with what is held before.
std::string judge_in_memory(char kind, const char* data, size_t size, size_t* most, double* longest) {
  const size_t before = memory.held;
  memory.peak = memory.made = before;
  const std::clock_t began = std::clock();
  const std::string said = judge(kind, data, size);
  const double seconds = double(std::clock() - began) / CLOCKS_PER_SEC;
  *longest = std::max(*longest, seconds);
  if (seconds > kLimitSeconds) {
    std::fprintf(stderr, "a file of %zu bytes takes %.2f s\n", size, seconds);
    std::abort();
  }
  const size_t peak = memory.peak - before;
  const bool refused = !said.empty() && said.rfind("digest ", 0) != 0;
  const size_t made = refused ? 8 * size : memory.made - before;
  const size_t needed = size + made;
  *most = std::max(*most, peak);
  if (peak > 2 * needed + kLittle) {
    std::fprintf(stderr, "a file of %zu bytes, of which %zu are made, takes %zu\n", size, made, peak);
    std::abort();
  }
  return said;
}

int judge_all(const char* path) {
  std::ifstream file(path, std::ios::binary);
  size_t most = 0;
  double longest = 0;
  char kind;
  while (file.get(kind)) {
    unsigned char size[4];
    file.read(reinterpret_cast<char*>(size), 4);
    std::string text(size[0] | size[1] << 8 | size[2] << 16 | size_t(size[3]) << 24, '\0');
    file.read(text.data(), std::streamsize(text.size()));
    exactly(text, [&](const char* data, size_t n) {
      std::printf("%s\n", judge_in_memory(kind, data, n, &most, &longest).c_str());
    });
  }
  std::fprintf(stderr, "longest s %.3f largest peak %zu\n", longest, most);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "judge") return judge_all(argv[2]);
  std::vector<std::string> files;
  for (int i = 2; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  int accepted = 0;
  for (int i = 0; i < std::atoi(argv[1]); ++i) {
    std::mt19937 random(i);
    exactly(mutate(files[0], &random), [](const char* data, size_t size) {
      judge_bundle(data, size);
    });
    exactly(mutate(files[1 + i % (files.size() - 1)], &random), [&](const char* data, size_t size) {
      mirage::Plan plan;
      if (!mirage::parse_plan({data, size}, &plan).empty()) return;
      ++accepted;
      evaluate(plan);
    });
  }
  std::printf("%d\n", accepted);
  return 0;
}
