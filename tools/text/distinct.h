// Collects distinct texts in order of appearance.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

namespace precbench {

class Distinct {
 public:
  std::vector<std::string> texts;

  /// Adds a text unless it is empty or already present.
  void add(const std::string& text) {
    if (text.empty() || knows(text)) return;
    texts.push_back(text);
    if (texts.size() == kFew) known_.insert(texts.begin(), texts.end());
    if (texts.size() > kFew) known_.insert(text);
  }
  std::string joined() const { return fmt::format("{}", fmt::join(texts, ", ")); }

 private:
  /// Up to this many texts, a linear search is fastest.
  static constexpr std::size_t kFew = 16;

  bool knows(const std::string& text) const {
    return texts.size() < kFew ? std::find(texts.begin(), texts.end(), text) != texts.end()
                               : known_.contains(text);
  }

  std::unordered_set<std::string> known_;  ///< all texts; used from kFew texts on
};

}  // namespace precbench
