// The axes of a sweep: what a user writes for one field, and the grid that several of them span.
//
//   --recipe bf16,mxfp8          a list; repeating the flag appends to it
//   --seq 1024-8192*2            geometric: 1024, 2048, 4096, 8192
//   --seq 128-512+128            arithmetic: 128, 256, 384, 512
//   --seed 1-3                   the same with a step of 1
//
// Ranges are of whole numbers only, so names and paths may contain '-'.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bench/case/case.h"

namespace precbench {

/// Field name (snake_case) to the words a user gave for it, each still a list or a range.
using Axes = std::map<std::string, std::vector<std::string>>;

/// The parts between separators: one more than there are of these.
std::vector<std::string> split(const std::string& text, char separator);

/// The values of one axis in the order written. Throws InvalidInput that names the flag: an empty axis or
/// value, a range that never ends, that starts above its end, or that has more than kMaxRange values.
std::vector<std::string> expand_axis(const Field& field, const std::vector<std::string>& words);
inline constexpr int kMaxRange = 10000;

/// Returns a hint where a word looks like one number with a comma in it: a decimal comma ("1,5e-4 is two values, 1 and
/// 5e-4; with a decimal point it is 1.5e-4") or, of whole numbers, one between thousands ("1,024"). Empty where no word
/// does.
std::string comma_hint(const Field& field, const std::vector<std::string>& words);

/// Throws InvalidInput for words that no case can have: a bad list or range, or what check_value refuses.
void check_words(const Field& field, const std::vector<std::string>& words);

/// Throws InvalidInput for more cases than one sweep takes.
void check_count(std::size_t cases);
inline constexpr std::size_t kMaxCases = 100'000;

/// Every combination over `base`, in the order of the field table with recipes innermost, so that what is
/// compared lies together. A combination that comes up twice is kept once. Throws like check_count.
std::vector<Case> expand_grid(const Case& base, const Axes& axes);

}  // namespace precbench
