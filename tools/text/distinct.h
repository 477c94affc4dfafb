// Texts in the order met, each once.
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

  /// An empty text is no text.
  void add(const std::string& text) {
    if (text.empty() || knows(text)) return;
    texts.push_back(text);
    if (texts.size() == kFew) known_.insert(texts.begin(), texts.end());
    if (texts.size() > kFew) known_.insert(text);
  }
  std::string joined() const { return fmt::format("{}", fmt::join(texts, ", ")); }

 private:
  /// So few are found fastest by looking at all.
  static constexpr std::size_t kFew = 16;

  bool knows(const std::string& text) const {
    return texts.size() < kFew ? std::find(texts.begin(), texts.end(), text) != texts.end()
                               : known_.contains(text);
  }

  std::unordered_set<std::string> known_;  ///< all of them, from kFew on
};

}  // namespace precbench
