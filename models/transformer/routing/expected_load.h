// Load of experts as far as it is known before a step: rows under a capacity, tokens per rank if all experts
// are chosen equally often, and forced routing. Pure arithmetic on a RoutingRule.
#pragma once

#include <cstdint>
#include <vector>

#include "models/config/config.h"

namespace precbench {

/// Returns forced experts, i32 [tokens, top_k], distinct within a token, the same on every machine; empty for
/// Routing::learned.
std::vector<std::int32_t> forced_experts(Routing routing, double exponent, const RoutingRule& rule,
                                         std::int64_t tokens);

/// Returns the maximum rows of one expert: ceil(capacity * tokens * top_k / experts), at most `tokens`;
/// capacity 0: no limit.
std::int64_t most_rows_of_expert(const RoutingRule& rule, std::int64_t tokens, double capacity);

/// Returns the expected number of this rank's `tokens` that go to a rank with `own` experts, if all experts
/// are chosen equally often. A capacity below 1 is then filled by the first tokens.
std::int64_t tokens_to_rank(const RoutingRule& rule, std::int64_t own, std::int64_t tokens, double capacity);

/// Returns the expected number of slots that are not dropped, of `tokens` tokens on each of `ranks`
/// expert-parallel ranks, if all experts are chosen equally often. `slots`: rows per rank pair, 0: no limit.
std::int64_t rows_at_even_load(const RoutingRule& rule, std::int64_t tokens, double capacity,
                               std::int64_t ranks, std::int64_t slots);

}  // namespace precbench
