// Limits and validation of cases, based on their own fields and their model, without opening files.
#pragma once

#include <cstdint>
#include <string>

#include "bench/case/case.h"
#include "kernels/numerics/recipe.h"
#include "kernels/numerics/routing_rule.h"
#include "models/config/config.h"

namespace precbench {

/// Largest number of tokens of one optimizer step, and of its forward and backward passes.
inline constexpr std::int64_t kMaxTokensPerStep = (std::int64_t{1} << 31) - 1;
inline constexpr std::int64_t kMaxAccumulation = 16384;
/// Larger ranks train more elements than the layers of small models have, which is a typing error.
inline constexpr std::int64_t kMaxLoraRank = 4096;
/// Largest number of steps of a run and of held-out losses. A row lists each, and longer rows are not read
/// (kRecordLimits of results/record/record_line.h). With --steps auto the stop rules end a run long before.
inline constexpr std::int64_t kMaxSteps = 1'000'000;
inline constexpr std::int64_t kMaxEvaluations = 100'000;

/// Names of the dtypes of the training state: the case's, or the recipe's for fields that the case leaves at
/// their defaults. If the case sets one moment, it decides both. How gradients are summed is decided by the
/// recipe only.
struct KeptWords {
  std::string m, v, master, weights, gradients;
  std::string gradient_sum;  ///< "e4m3", or empty for FP32; only with e4m3 gradients

  bool operator==(const KeptWords&) const = default;
};
KeptWords kept_words(const Case& c, const Recipe& recipe);

// Each of these throws InvalidInput that names the flag.

/// Rejects a value that is invalid whatever the other fields are.
void check_word(const Field& field, const std::string& text);
/// Rejects steps of absurd size and more steps than a record holds.
void check_size(const Case& c);
/// Rejects constants and state dtypes that the optimizer does not have.
void check_optimizer(const Case& c, const Recipe& recipe);
/// Rejects other invalid combinations of fields.
void check_combinations(const Case& c);
/// Rejects MoE fields for a model without experts.
void check_experts(const Case& c, const ModelConfig& model);

/// Parsed --routing: the kind and the exponent of zipf. parse_routing() throws InvalidInput.
struct RoutingChoice {
  Routing routing = Routing::learned;
  double exponent = 0;
};
RoutingChoice parse_routing(const std::string& text);

}  // namespace precbench
