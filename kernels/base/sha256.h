// SHA-256 (FIPS 180-4), which identifies files, and HMAC-SHA256 (RFC 2104), with which processes prove to each other that
// they know a secret.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace precbench {

using Digest = std::array<std::uint8_t, 32>;

Digest sha256(std::string_view bytes);

/// The digest of a text that comes in parts.
class Sha256 {
 public:
  void add(std::string_view bytes);
  /// Returns the digest of all parts so far. To be called once, last.
  Digest digest();

 private:
  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string rest_;  ///< less than a block
  std::uint64_t length_ = 0;
};
Digest hmac_sha256(std::string_view key, std::string_view message);

/// Returns 64 hex digits.
std::string hex(const Digest& digest);

/// Compares in a time that does not depend on where the texts differ.
bool equal_in_constant_time(std::string_view a, std::string_view b);

/// Returns 32 unpredictable bytes as hex. Throws std::system_error if the system has none.
std::string random_hex();

}  // namespace precbench
