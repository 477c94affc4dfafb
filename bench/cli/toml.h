// A reader for the part of TOML that sweep files and study files need: sections, and keys with a word or a list of words.
// CLI11's own knows no lines, joins what is given twice, and ends an open quote wherever the line ends.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace precbench {

/// What a file's items mean. InvalidInput that one of them throws gets "FILE:LINE: " in front.
struct TomlHandler {
  std::function<void(const std::string& section)> section;
  /// The name that a key goes by, of several that it may have; throws for an unknown one.
  std::function<std::string(const std::string& section, const std::string& key)> known;
  /// `section`: empty before the first one. A word alone is a list of one. `place`: "FILE:LINE", for what can be judged
  /// only once more is known.
  std::function<void(const std::string& section, const std::string& key,
                     const std::vector<std::string>& words, const std::string& place)>
      key;
};

/// Throws InvalidInput, "NAME:LINE: why": a line that is neither [section] nor key = value, a quote or a list that does
/// not end, a key or section that is given twice, and what the handler throws.
void read_toml(const std::string& name, const std::string& text, const TomlHandler& handler);

}  // namespace precbench
