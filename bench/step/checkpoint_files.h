// What reader and writer of checkpoints must agree on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>

namespace precbench {

inline constexpr const char* kStateFile = "state.json";
/// Of tensors, a file each: what stands before the slash in a StateTensor's name.
inline constexpr const char* kKinds[] = {"m", "v", "weights"};
/// Where a recipe of the run has delayed scaling.
inline constexpr const char* kScales = "scales";

inline std::string file_of_kind(const std::string& folder, const std::string& kind) {
  return (std::filesystem::path(folder) / (kind + ".safetensors")).string();
}

/// "m/model.norm.weight" to "m" and "model.norm.weight".
std::pair<std::string, std::string> kind_and_name(const std::string& tensor);

/// Folders of finished checkpoints by step; none where there is no such folder.
std::map<std::int64_t, std::string> checkpoints_in(const std::string& folder);

}  // namespace precbench
