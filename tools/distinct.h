// Texts in the order met, each once.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace precbench {

struct Distinct {
  std::vector<std::string> texts;

  /// An empty text is no text.
  void add(const std::string& text) {
    if (!text.empty() && std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(text);
  }
  std::string joined() const { return fmt::format("{}", fmt::join(texts, ", ")); }
};

}  // namespace precbench
