// Packs data for tests, as xz does.
#pragma once

#include <lzma.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace precbench::testing {

/// Returns the data as one xz stream. `preset`: 0 to 9.
inline std::string packed_with_xz(std::string_view data, std::uint32_t preset = 1) {
  std::string packed(lzma_stream_buffer_bound(data.size()), '\0');
  std::size_t bytes = 0;
  if (lzma_easy_buffer_encode(
          preset, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const std::uint8_t*>(data.data()), data.size(),
          reinterpret_cast<std::uint8_t*>(packed.data()), &bytes, packed.size()) != LZMA_OK)
    throw std::runtime_error("liblzma does not pack");
  packed.resize(bytes);
  return packed;
}

}  // namespace precbench::testing
