// What no case may be, as far as its own fields tell, without a look at models, recipes and files.
#pragma once

#include <cstdint>
#include <string>

#include "bench/case/case.h"
#include "kernels/numerics/recipe.h"

namespace precbench {

/// The most tokens of one optimizer step, and the most passes that it may have.
inline constexpr std::int64_t kMaxTokensPerStep = (std::int64_t{1} << 31) - 1;
inline constexpr std::int64_t kMaxAccumulation = 16384;

/// The words for the formats of both moments: the case's, or where it leaves them at their defaults, the recipe's.
struct MomentWords {
  std::string m, v;
};
MomentWords moment_words(const Case& c, const Recipe& recipe);

// Each throws InvalidInput that names the flag.

/// A word that the field cannot have, whatever the others say.
void check_word(const Field& field, const std::string& text);
/// A step of absurd size.
void check_size(const Case& c);
/// Constants and formats of state that the optimizer does not have.
void check_optimizer(const Case& c, const Recipe& recipe);
/// Other fields that do not go together.
void check_combinations(const Case& c);

}  // namespace precbench
