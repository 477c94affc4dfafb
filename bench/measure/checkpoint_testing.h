// For tests: small cases on the CPU that write checkpoints into a directory of the test.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "bench/measure/session_testing.h"
#include "bench/step/checkpoint.h"
#include "kernels/testing/temp_directory.h"

namespace precbench {

/// Returns a few steps of a model with no dimension divisible into two shards without padding.
inline Case small_case(const TempDirectory& directory) {
  Case c = tiny_case();
  c.model = directory.write("small.json", R"({"layers": 2, "width": 32, "ffn": 96, "heads": 2, "kv_heads": 1,
                                             "head_dim": 16, "vocab": 256, "qk_norm": true})");
  c.recipe = "tensorwise";
  c.batch = 1;
  c.steps = 6;
  return c;
}

inline Case with_checkpoints(Case c, const std::string& folder, std::int64_t every) {
  c.checkpoint_every = every;
  c.checkpoint_dir = folder;
  return c;
}

/// Returns the folder of a case's checkpoint after `step` steps.
inline std::string checkpoint_at(const Case& c, int step) {
  return checkpoint_folder(validate(c)) + "/step-00000" + std::to_string(step);
}

/// Returns the concatenated files of a checkpoint's weights and moments.
inline std::string tensors_of(const std::string& checkpoint) {
  std::string bytes;
  for (const char* kind : {"weights", "m", "v"}) {
    const std::string file = file_text(checkpoint + "/" + kind + ".safetensors");
    REQUIRE(!file.empty());
    bytes += file;
  }
  return bytes;
}

/// Returns the text of a state.json as written by programs that knew no checksums.
inline std::string without_checksums(std::string state) {
  const std::string key = R"("checksums":"checksums.txt",)";
  const std::size_t at = state.find(key);
  REQUIRE(at != std::string::npos);
  return state.erase(at, key.size());
}

/// Flips one bit of a file, `before_end` bytes before its end.
inline void damage(const std::string& path, std::size_t before_end = 1) {
  std::string bytes = file_text(path);
  REQUIRE(before_end <= bytes.size());
  char& byte = bytes[bytes.size() - before_end];
  byte = static_cast<char>(byte ^ 0x10);
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace precbench
