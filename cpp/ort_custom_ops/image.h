// Reader of a cubin: what the driver would otherwise be the first to look at.
//
// The driver takes an image by its address alone, so a table that points beyond the image is a read
// beyond our buffer, and it takes PTX and fat binaries too, which nothing here has checked. An image
// must be one ELF file of NVIDIA's machine with every table and section inside. Kernels are those
// that say what they take: bytes of their parameters, threads, and blocks of a cluster.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace mirage {

struct ImageKernel {
  std::vector<uint32_t> parameter_bytes;
  uint32_t threads = 0;  // of a block, as compiled for
  uint32_t cluster = 1;  // blocks
  uint64_t shared_bytes = 0;  // static, with what the system keeps for itself
};

using ImageKernels = std::map<std::string, ImageKernel>;

// Returns "" or the reason of a refusal.
std::string read_image(const uint8_t* data, size_t size, ImageKernels* out);

}  // namespace mirage
