// Interpretation of ids in schema 1, whose records have no definition.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "results/record/record.h"

namespace precbench {

/// Returns in one line why `old` has another model than the definition's `model`. An id of schema 1 hashes
/// the case fields, the content of named files, and the model's RoPE scaling and biases, which presets
/// initially lacked. Null if the model matches, or if files are named and the id proves nothing.
std::optional<std::string> other_model_reason(const Record& old, const nlohmann::ordered_json& model);

}  // namespace precbench
