// Names and layout shared by the reader and the writer of checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bench/case/plan.h"
#include "models/transformer/state/state.h"

namespace precbench {

inline constexpr const char* kStateFile = "state.json";
/// Checksums of state.json and of every tensor (block_sums.h).
inline constexpr const char* kChecksumsFile = "checksums.txt";
/// Kinds of tensors, one file each: the prefix before the slash in a StateTensor's name. The state of delayed
/// scaling ("scales") belongs to one run; forks start without it.
inline constexpr const char* kKinds[] = {
    "m", "v", "m_scale", "v_scale", "row", "col", "weights", "weights_scale", "scales", "routing", "frozen"};
inline constexpr const char* kScales = "scales";
/// Suffix of the kind that holds the scales of another kind: "m_scale".
inline constexpr const char* kScaleSuffix = "_scale";

inline std::string file_of_kind(const std::string& folder, const std::string& kind) {
  return (std::filesystem::path(folder) / (kind + ".safetensors")).string();
}

/// Splits "m/model.norm.weight" into "m" and "model.norm.weight".
std::pair<std::string, std::string> kind_and_name(const std::string& tensor);

/// Returns the safetensors name of a dtype of the state: "BF16", "F32", ...
const char* safetensors_name(DType dtype);

/// Returns the tensors of a state of this plan, without their values.
std::vector<StateTensor> state_of(const Plan& plan);

/// Returns the folders of finished checkpoints by step; empty if `folder` does not exist.
std::map<std::int64_t, std::string> checkpoints_in(const std::string& folder);

}  // namespace precbench
