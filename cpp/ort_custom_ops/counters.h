// Counts of what really ran, per kernel object. They are how a test or a user learns that a node
// took our path and not the function body, so they outlive the session that made them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#ifdef _WIN32
#define MIRAGE_EXPORT extern "C" __declspec(dllexport)
#else
#define MIRAGE_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace mirage {

struct Counter {
  uint64_t id = 0;  // in order of creation, from 1
  std::string session;
  std::string node;
  std::string op;
  std::atomic<uint64_t> runs{0};
  std::atomic<uint64_t> launches{0};
  std::atomic<uint64_t> copies{0};  // of tensors that were not aligned
};

// A counter for a new kernel object. Held by the kernel while it lives and by the list of
// counters, which forgets the oldest finished ones beyond kMaxFinished.
std::shared_ptr<Counter> new_counter(std::string session, std::string node, std::string op);

constexpr size_t kMaxFinished = 4096;

}  // namespace mirage

// Writes a JSON array of the counters of one session tag (null = all) to `buffer`, NUL terminated
// and cut at `capacity`. Returns the bytes needed, NUL included (0 only when memory ran out).
MIRAGE_EXPORT size_t mirage_counters_json(const char* session, char* buffer, size_t capacity);

// The id that the next counter will get.
MIRAGE_EXPORT uint64_t mirage_counters_mark();
