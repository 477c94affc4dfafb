// Axes of a sweep: the values a user writes for one field, and the grid that several axes span.
//
//   --recipe bf16,mxfp8          a list; repeating the flag appends to it
//   --seq 1024-8192*2            geometric: 1024, 2048, 4096, 8192
//   --seq 128-512+128            arithmetic: 128, 256, 384, 512
//   --seed 1-3                   arithmetic with a step of 1, for at most 16 values
//
//   --recipe bf16,fp8            a set of recipes (recipe_sets.h)
//   --seq 1e3                    1000; 8k is refused, because it may mean 8192 or 8000
//
// Only whole numbers have ranges, so names and paths may contain '-'.
#pragma once

#include <string>
#include <vector>

#include "bench/case/case.h"

namespace precbench {

/// Returns the parts between separators. N separators give N + 1 parts.
std::vector<std::string> split(const std::string& text, char separator);

/// Returns the values of one axis in the order written. Throws InvalidInput, naming the flag, for an empty
/// axis or value and for a range that never ends, starts above its end, has more than kMaxRange values, or
/// has more than kMaxWithoutStep values and names no step.
std::vector<std::string> expand_axis(const Field& field, const std::vector<std::string>& words);
inline constexpr int kMaxRange = 10000;
inline constexpr int kMaxWithoutStep = 16;

/// Returns a hint if a word looks like one number with a comma: a decimal comma ("1,5e-4 is two values, 1 and
/// 5e-4; with a decimal point it is 1.5e-4") or, in whole numbers, a thousands separator ("1,024"). Empty
/// otherwise.
std::string comma_hint(const Field& field, const std::vector<std::string>& words);

/// Throws InvalidInput for a bad list or range and for a value that check_value refuses.
void check_words(const Field& field, const std::vector<std::string>& words);

/// Throws InvalidInput if `cases` exceeds kMaxCases.
void check_count(std::size_t cases);
inline constexpr std::size_t kMaxCases = 100'000;

/// Returns every combination of the axes on top of `base`, without duplicates. Fields vary in the order of
/// the field table with recipes innermost, so that cases to be compared are neighbours. Throws like
/// check_count.
std::vector<Case> expand_grid(const Case& base, const Axes& axes);

}  // namespace precbench
