// FNV-1a, 64 bits: the hash of stored ids and fingerprints.
#pragma once

#include <cstdint>
#include <string_view>

namespace precbench {

inline constexpr std::uint64_t kFingerprintStart = 0xcbf29ce484222325u;

/// Adds bytes to the hash; `state` starts as kFingerprintStart.
constexpr void add_to_fingerprint(std::uint64_t& state, std::string_view bytes) {
  constexpr std::uint64_t kPrime = 0x100000001b3u;
  for (const char byte : bytes) state = (state ^ static_cast<unsigned char>(byte)) * kPrime;
}

}  // namespace precbench
