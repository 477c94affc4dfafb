// Text helpers shared by several outputs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace precbench {

/// Returns indented JSON with a final newline. Always ASCII, since the output may go to a terminal.
std::string json_text(const nlohmann::ordered_json& json);

/// Returns a name for files and page anchors: "speed-nvidia-h200-llama3.1-8b". Consists of letters, digits,
/// '-' and '.', at most 120. A longer name ends with a hash of the text, so that texts with equal
/// beginnings stay distinct.
std::string file_name(const std::string& text);

}  // namespace precbench
