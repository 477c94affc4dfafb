// Edit distances, for "did you mean". See near_words.h and errors.h.
#include "kernels/base/near_words.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <utility>

#include "kernels/base/errors.h"

namespace precbench {
namespace {

int in_lower_case(char c) { return std::tolower(static_cast<unsigned char>(c)); }

/// Returns the nearest candidate of fewer than `limit` edits, or what begins with `word`.
std::string nearest_within(const std::string& word, const std::vector<std::string>& candidates, int limit) {
  constexpr std::size_t kLeastBeginning = 4;
  std::string best, begun;
  int best_distance = limit;
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

}  // namespace

int edit_distance(const std::string& a, const std::string& b) {
  std::vector<int> row(b.size() + 1), before, last;
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = in_lower_case(a[i - 1]) == in_lower_case(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && in_lower_case(a[i - 1]) == in_lower_case(b[j - 2]) &&
                           in_lower_case(a[i - 2]) == in_lower_case(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  return nearest_within(word, candidates, static_cast<int>(std::max<std::size_t>(2, word.size() / 2)) + 1);
}

std::string nearest_strictly(const std::string& word, const std::vector<std::string>& candidates) {
  return nearest_within(word, candidates, static_cast<int>(std::max<std::size_t>(1, word.size() / 3)) + 1);
}

std::vector<std::string> nearest_few(const std::string& word, const std::vector<std::string>& candidates,
                                     std::size_t count) {
  constexpr std::size_t kLongest = 100;  // a word of a file may be very long
  const std::string beginning = word.substr(0, kLongest);
  std::vector<std::pair<int, std::string>> by_distance;
  for (const std::string& candidate : candidates)
    by_distance.emplace_back(edit_distance(beginning, candidate), candidate);
  std::stable_sort(by_distance.begin(), by_distance.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> words;
  for (std::size_t i = 0; i < std::min(count, by_distance.size()); ++i)
    words.push_back(by_distance[i].second);
  return words;
}

std::string joined_with_or(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return text;
}

bool equal_but_for_case(const std::string& a, const std::string& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char one, char other) { return in_lower_case(one) == in_lower_case(other); });
}

}  // namespace precbench
