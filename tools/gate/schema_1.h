// What the id of a record of schema 1 tells, which has no definition.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "results/record.h"

namespace precbench {

/// An id of schema 1 hashes the fields of the case, the content of files that they name, and the model's RoPE scaling
/// and biases, which presets had not from the start. Where no files are named, this is how it shows that `old` is not of
/// `model`, a definition's: in one line. Null where it is, or where nobody can tell.
std::optional<std::string> why_other_model(const Record& old, const nlohmann::ordered_json& model);

}  // namespace precbench
