// Packs data for tests, as xz does, and unpacks their files.
#pragma once

#include <lzma.h>

#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "kernels/base/xz.h"

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

/// Returns the unpacked contents of an .xz file.
inline std::string unpacked_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  XzReader reader(path, "", [&file](char* to, std::size_t most) {
    file.read(to, static_cast<std::streamsize>(most));
    return static_cast<std::size_t>(file.gcount());
  });
  std::string text, block(std::size_t{1} << 16, '\0');
  for (std::size_t count; (count = reader.read(block.data(), block.size())) > 0;) text.append(block, 0, count);
  return text;
}

}  // namespace precbench::testing
