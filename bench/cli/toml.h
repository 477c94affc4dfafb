// Reader for the subset of TOML in sweep and study files: sections, and keys with a word or a list of words.
// CLI11's own reader reports no line numbers, joins repeated keys and accepts unclosed quotes.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace precbench {

/// Callbacks for a file's items. An InvalidInput that one throws is prefixed with "FILE:LINE: ".
struct TomlHandler {
  std::function<void(const std::string& section)> section;
  /// Returns the canonical name of a key. Throws InvalidInput for an unknown key.
  std::function<std::string(const std::string& section, const std::string& key)> known;
  /// Handles one key. `section`: empty before the first one. `words`: one word if the value is no list.
  /// `place`: "FILE:LINE", for errors found later.
  std::function<void(const std::string& section, const std::string& key,
                     const std::vector<std::string>& words, const std::string& place)>
      key;
};

/// Calls `handler` for each item. Throws InvalidInput, "NAME:LINE: why", for a line that is neither [section]
/// nor key = value, an unclosed quote or list, a repeated key or section, and errors of the handler.
void read_toml(const std::string& name, const std::string& text, const TomlHandler& handler);

}  // namespace precbench
