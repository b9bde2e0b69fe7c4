// Cubin -> CUlibrary -> CUkernel, once per process, keyed by the content of the cubin.
//
// Libraries are never unloaded: a captured CUDA graph may outlive its session and still name them.
// The cost is bounded by the number of distinct cubins a process ever uses.
#pragma once

#include <string>

#include "bundle.h"
#include "driver_api.h"
#include "plan.h"

namespace mirage {

// Gives the kernel that `launch` names, ready to be launched on `device` without any lazy work:
// loaded into the current context, with its shared memory and cluster limits raised where needed,
// and with the parameters, threads and cluster that the plan has. Thread safe.
// Returns an empty string on success, else the reason.
std::string prepare_kernel(const cu::Driver&, cu::Device device, const Section& cubin,
    const Launch& launch, cu::Kernel* out);

}  // namespace mirage
