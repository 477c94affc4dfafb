// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104), with which processes prove to each other that they know a
// secret.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace precbench {

using Digest = std::array<std::uint8_t, 32>;

Digest sha256(std::string_view bytes);
Digest hmac_sha256(std::string_view key, std::string_view message);

/// Returns 64 hex digits.
std::string hex(const Digest& digest);

/// Compares in a time that does not depend on where the texts differ.
bool equal_in_constant_time(std::string_view a, std::string_view b);

/// Returns 32 unpredictable bytes as hex. Throws std::system_error if the system has none.
std::string random_hex();

}  // namespace precbench
