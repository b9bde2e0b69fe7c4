// The kernel object of one MuGraph node: created once per session, immutable, run concurrently.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bundle.h"
#include "counters.h"
#include "driver_api.h"
#include "mugraph_op.h"
#include "ort_abi.h"
#include "plan.h"

namespace mirage {

class MuGraphKernel {
 public:
  // Reads the bundle, parses the plan and loads its cubins. Throws only on memory exhaustion.
  static ort::Status* create(
      const MuGraphOp&, const ort::Api*, const ort::KernelInfo*, MuGraphKernel** out);

  // Checks the inputs, allocates the outputs through ORT and launches on ORT's stream. It does not
  // synchronise, and takes device memory only for tensors that are not aligned (`staging.h`), in the
  // order of the stream, so it can be captured into a CUDA graph.
  ort::Status* compute(ort::KernelContext*) const noexcept;

 private:
  struct Run;  // the state of one compute()
  struct Prepared;

  bool on_device() const { return registration_->mode == Mode::kCuda; }
  ort::Status* fail(int code, const std::string& why) const;
  ort::Status* load(const ort::KernelInfo*);
  std::string load_plan(
      const void* data, size_t size, const std::string& digest, cu::Device device);
  std::string find_device(cu::Device* out) const;
  std::string is_ours(cu::Device device) const;
  std::string registered_for_first() const;
  ort::Status* read_input(Run*, size_t index) const;
  ort::Status* make_output(Run*, size_t index) const;
  ort::Status* make_tensor(Run*, size_t index, const int64_t* dims, size_t rank, void** data) const;
  ort::Status* align(
      Run*, const std::string& what, void** data, uint64_t bytes, bool input) const;
  std::string afford(Run*, uint64_t bytes) const;
  void poison(const Run&) const;
  std::string choose(const Run&, size_t* variant) const;
  std::string prepare(const Run&, size_t variant, size_t index, Prepared*) const;
  std::string launch(Run*, size_t variant, size_t index, Prepared*) const;
  std::string pack(const Run&, const Arg&, uint64_t* slot, uint64_t* bytes) const;

  const Registration* registration_ = nullptr;
  const ort::Api* api_ = nullptr;
  std::string label_;  // "node 'name' (MuGraph_3)", for messages
  uint32_t number_ = 0;  // of the plan
  std::shared_ptr<const Bundle> bundle_;  // for the session's other nodes; not read in a run
  Plan plan_;
  uint64_t most_bytes_ = 0;  // that outputs and workspace of a run can take together
  std::vector<std::vector<cu::Kernel>> kernels_;  // [variant][launch]
  std::shared_ptr<Counter> counter_;
};

}  // namespace mirage
