// Edit distance for "did you mean".
#include "kernels/base/errors.h"

#include <algorithm>
#include <cctype>
#include <numeric>

namespace precbench {
namespace {

/// Levenshtein distance, case-insensitive.
int edit_distance(const std::string& a, const std::string& b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = std::tolower(static_cast<unsigned char>(a[i - 1])) ==
                        std::tolower(static_cast<unsigned char>(b[j - 1]));
      const int substitute = diagonal + (same ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  constexpr std::size_t kLeastBeginning = 4;
  std::string best, begun;
  int best_distance = static_cast<int>(std::max<std::size_t>(2, word.size() / 2)) + 1;
  for (const std::string& candidate : candidates) {
    if (word.size() >= kLeastBeginning && candidate.starts_with(word) &&
        (begun.empty() || candidate.size() < begun.size()))
      begun = candidate;
    const auto lengths = std::minmax({word.size(), candidate.size()});
    // The length difference is a lower bound on the distance, and a word of a file may be very long.
    if (lengths.second - lengths.first >= static_cast<std::size_t>(best_distance)) continue;
    const int distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return begun.empty() || best_distance == 1 ? best : begun;
}

}  // namespace precbench
