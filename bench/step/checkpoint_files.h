// What reader and writer of checkpoints must agree on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bench/case/plan.h"
#include "models/transformer/state.h"

namespace precbench {

inline constexpr const char* kStateFile = "state.json";
/// Of state.json and of every tensor (block_sums.h).
inline constexpr const char* kChecksumsFile = "checksums.txt";
/// Of tensors, a file each: what stands before the slash in a StateTensor's name. What delayed scaling keeps is of the
/// run alone; forks begin without it.
inline constexpr const char* kKinds[] = {"m",   "v",       "m_scale",       "v_scale", "row",
                                         "col", "weights", "weights_scale", "scales",  "routing"};
inline constexpr const char* kScales = "scales";
/// Behind the kind of what is stored with scales: "m_scale".
inline constexpr const char* kScaleSuffix = "_scale";

inline std::string file_of_kind(const std::string& folder, const std::string& kind) {
  return (std::filesystem::path(folder) / (kind + ".safetensors")).string();
}

/// "m/model.norm.weight" to "m" and "model.norm.weight".
std::pair<std::string, std::string> kind_and_name(const std::string& tensor);

/// "BF16", "F32", ...: the name of a dtype of the state in these files.
const char* safetensors_name(DType dtype);

/// The tensors of a state of this plan, without their values.
std::vector<StateTensor> state_of(const Plan& plan);

/// Folders of finished checkpoints by step; none where there is no such folder.
std::map<std::int64_t, std::string> checkpoints_in(const std::string& folder);

}  // namespace precbench
