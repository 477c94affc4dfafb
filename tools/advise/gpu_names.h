// Finds a GPU model by the words that people type: "h100", "H200", "rtx 4090".
#pragma once

#include <string>
#include <vector>

namespace precbench {

/// Returns the name among `names` that is `text`, or whose words contain all words of `text` ("NVIDIA H100 80GB
/// HBM3" for "h100"; case does not matter); of several, the first. Throws InvalidInput, which lists the names,
/// if none does.
std::string find_gpu_name(const std::string& text, const std::vector<std::string>& names);

}  // namespace precbench
