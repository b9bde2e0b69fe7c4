// SHA-256 (FIPS 180-4), for checking the sections of a bundle and keying the module cache.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace mirage {

using Digest = std::array<uint8_t, 32>;

Digest sha256(const uint8_t* data, size_t size);

}  // namespace mirage
