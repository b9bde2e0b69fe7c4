#include "counters.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>

namespace mirage {
namespace {

struct Registry {
  std::mutex mutex;
  uint64_t next_id = 1;
  std::deque<std::shared_ptr<Counter>> counters;  // by id
  size_t trim_at = kMaxFinished;  // size at which finished counters are looked for again
};

Registry& registry() {
  static auto* instance = new Registry;  // never destroyed, see driver_api.cc
  return *instance;
}

// Drops the oldest finished counters; a use count of 1 means that no kernel holds it any more.
void trim(Registry& all) {
  if (all.counters.size() < all.trim_at) return;
  size_t finished = 0;
  for (const auto& counter : all.counters) finished += counter.use_count() == 1 ? 1 : 0;
  std::deque<std::shared_ptr<Counter>> kept;
  for (auto& counter : all.counters) {
    if (counter.use_count() == 1 && finished > kMaxFinished / 2) {
      --finished;
    } else {
      kept.push_back(std::move(counter));
    }
  }
  all.counters = std::move(kept);
  all.trim_at = all.counters.size() + kMaxFinished / 2;
}

void append_quoted(const std::string& text, std::string* out) {
  out->push_back('"');
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(char(c));
    } else if (c < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", c);
      *out += escape;
    } else {
      out->push_back(char(c));
    }
  }
  out->push_back('"');
}

std::string to_json(const char* session) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  std::string out = "[";
  for (const auto& counter : registry().counters) {
    if (session != nullptr && counter->session != session) continue;
    if (out.size() > 1) out += ",";
    out += "{\"id\":" + std::to_string(counter->id) + ",\"session\":";
    append_quoted(counter->session, &out);
    out += ",\"node\":";
    append_quoted(counter->node, &out);
    out += ",\"op\":";
    append_quoted(counter->op, &out);
    out += ",\"runs\":" + std::to_string(counter->runs.load());
    out += ",\"launches\":" + std::to_string(counter->launches.load());
    out += ",\"copies\":" + std::to_string(counter->copies.load()) + "}";
  }
  return out + "]";
}

}  // namespace

std::shared_ptr<Counter> new_counter(std::string session, std::string node, std::string op) {
  auto counter = std::make_shared<Counter>();
  counter->session = std::move(session);
  counter->node = std::move(node);
  counter->op = std::move(op);
  std::lock_guard<std::mutex> lock(registry().mutex);
  trim(registry());
  counter->id = registry().next_id++;
  registry().counters.push_back(counter);
  return counter;
}

}  // namespace mirage

size_t mirage_counters_json(const char* session, char* buffer, size_t capacity) {
  try {
    const std::string json = mirage::to_json(session);
    if (buffer != nullptr && capacity > 0) {
      const size_t n = std::min(json.size(), capacity - 1);
      std::memcpy(buffer, json.data(), n);
      buffer[n] = '\0';
    }
    return json.size() + 1;
  } catch (...) {
    return 0;
  }
}

uint64_t mirage_counters_mark() {
  std::lock_guard<std::mutex> lock(mirage::registry().mutex);
  return mirage::registry().next_id;
}
