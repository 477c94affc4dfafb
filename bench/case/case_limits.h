// What no case may be, as far as its own fields and its model tell, without a look at files.
#pragma once

#include <cstdint>
#include <string>

#include "bench/case/case.h"
#include "kernels/numerics/recipe.h"
#include "kernels/numerics/routing_rule.h"
#include "models/config/config.h"

namespace precbench {

/// The most tokens of one optimizer step, and the most passes that it may have.
inline constexpr std::int64_t kMaxTokensPerStep = (std::int64_t{1} << 31) - 1;
inline constexpr std::int64_t kMaxAccumulation = 16384;
/// The most steps of a run and the most held-out losses: its row names each, and no longer row is read (kRecordLimits of
/// results/record_line.h). By its rules --steps auto ends long before.
inline constexpr std::int64_t kMaxSteps = 1'000'000;
inline constexpr std::int64_t kMaxEvaluations = 100'000;

/// The words for the formats of what a run keeps: the case's, or where it leaves them at their defaults, the recipe's. Both
/// moments are the case's where it names one. How gradients are summed is the recipe's alone.
struct KeptWords {
  std::string m, v, master, weights, gradients;
  std::string gradient_sum;  ///< "e4m3", or empty: FP32; of e4m3 gradients alone

  bool operator==(const KeptWords&) const = default;
};
KeptWords kept_words(const Case& c, const Recipe& recipe);

// Each throws InvalidInput that names the flag.

/// A word that the field cannot have, whatever the others say.
void check_word(const Field& field, const std::string& text);
/// A step of absurd size, or more steps than a record holds.
void check_size(const Case& c);
/// Constants and formats of state that the optimizer does not have.
void check_optimizer(const Case& c, const Recipe& recipe);
/// Other fields that do not go together.
void check_combinations(const Case& c);
/// What only a mixture of experts has, of a model without; and what that does not do.
void check_experts(const Case& c, const ModelConfig& model);

/// --routing: what, and the exponent behind zipf. Throws InvalidInput.
struct RoutingChoice {
  Routing routing = Routing::learned;
  double exponent = 0;
};
RoutingChoice parse_routing(const std::string& text);

}  // namespace precbench
