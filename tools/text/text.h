// Small texts that several outputs need.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace precbench {

/// Indented, with a last newline. ASCII, whatever the names in it are: a terminal may be what reads it.
std::string json_text(const nlohmann::ordered_json& json);

/// "speed-nvidia-h200-llama3.1-8b": letters, digits, '-' and '.', 120 at most; for files and for places in a page. Of a
/// longer one the end is a hash of the text, so that texts that begin alike keep names of their own.
std::string file_name(const std::string& text);

}  // namespace precbench
