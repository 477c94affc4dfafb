// Computes FNV-1a over bytes and over samples of files. See fingerprint.h.
#include "bench/case/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace precbench {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kBlocks = 16;

void add_file(std::uint64_t& state, const std::string& name, const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return;  // opening a FIFO would block until it has a writer
  std::ifstream file(path, std::ios::binary);
  const auto size = static_cast<std::int64_t>(fs::file_size(path, error));
  if (!file || error) return;
  add_to_fingerprint(state, fmt::format("{}:{}\n", name, size));
  const std::int64_t blocks = size > kSampledBytes ? kBlocks : 1;
  std::string block(static_cast<std::size_t>(std::min(size, kSampledBytes) / blocks), '\0');
  const std::int64_t last = size - static_cast<std::int64_t>(block.size());
  for (std::int64_t i = 0; i < blocks; ++i) {
    file.seekg(blocks > 1 ? last * i / (blocks - 1) : 0);  // the last block ends at the end of the file
    file.read(block.data(), static_cast<std::streamsize>(block.size()));
    add_to_fingerprint(state, {block.data(), static_cast<std::size_t>(file.gcount())});
  }
}

}  // namespace

std::uint64_t fingerprint_of(const std::string& path, const std::string& glob, Below below) {
  std::uint64_t state = kFingerprintStart;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    add_file(state, "", path);
  } else {
    for (const std::string& file : find_files(path, glob, below).paths)
      add_file(state, fs::path(file).lexically_relative(path).string(), file);
  }
  return state;
}

}  // namespace precbench
