// Candidates for a mistyped word, where one guess does not do.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace precbench {

/// Returns the number of edits between two words: letters inserted, deleted, replaced, or swapped with their
/// neighbour. Upper and lower case are equal.
int edit_distance(const std::string& a, const std::string& b);

/// Returns the candidate of which `word` is probably a typo, as nearest() does (errors.h), but only if at most a
/// third of its letters are wrong: among short names, half would match anything.
std::string nearest_strictly(const std::string& word, const std::vector<std::string>& candidates);

/// Returns the `count` candidates with the fewest edits, nearest first.
std::vector<std::string> nearest_few(const std::string& word, const std::vector<std::string>& candidates,
                                     std::size_t count);

/// Returns "a", "a or b", "a, b or c".
std::string joined_with_or(const std::vector<std::string>& words);

/// Returns true if the words are equal but for upper and lower case.
bool equal_but_for_case(const std::string& a, const std::string& b);

}  // namespace precbench
