// Checks that ranks, axes and shapes fit each other. See parallel_support.h.
#include "bench/case/parallel_support.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "kernels/base/plural.h"
#include "kernels/gpu/device_info.h"

namespace precbench {
namespace {

/// Number of consecutive tokens that share a scale or a transform in a recipe's GEMMs: a part of a sequence
/// must hold whole ones.
std::int64_t tokens_of_block(const Recipe& recipe) {
  std::int64_t tokens = 1;
  for (const QuantFormat* contracted : {&recipe.wgrad.a, &recipe.wgrad.b}) {
    if (!contracted->quantized()) continue;
    if (const std::int64_t block = block_length(contracted->granularity)) tokens = std::lcm(tokens, block);
    if (contracted->transform) tokens = std::lcm(tokens, contracted->transform.length);
  }
  for (const QuantFormat* rowwise : {&recipe.fprop.a, &recipe.dgrad.a})
    if (rowwise->quantized()) tokens = std::lcm(tokens, block_rows(rowwise->granularity));
  return tokens;
}

std::optional<std::string> ranks_unsupported_reason(const Plan& plan) {
  const std::int64_t context = plan.fields.context, group = plan.fields.shard_group;
  if (plan.ranks % context != 0)
    return fmt::format("--context: {} does not divide {}", context, plural(plan.ranks, "rank"));
  if (plan.data_parallel != DataParallel::hsdp) return std::nullopt;
  if (plan.ranks % group != 0)
    return fmt::format("--shard-group: {} does not divide {}", group, plural(plan.ranks, "rank"));
  if (group % context != 0)
    return fmt::format("--shard-group: {} is not a multiple of --context {}, whose ranks share a shard group",
                       group, context);
  return std::nullopt;
}

/// Checks the parts of a sequence.
std::optional<std::string> parts_unsupported_reason(const Plan& plan) {
  const SequencePart part = plan.transformer(0).sequence();
  if (plan.T % (2 * part.parts) != 0)
    return fmt::format("--context {}: seq {} is not a multiple of {}, two chunks per rank", part.parts,
                       plan.T, 2 * part.parts);
  const auto check = [&](const Recipe& recipe) -> std::optional<std::string> {
    const std::int64_t block = tokens_of_block(recipe);
    if (part.chunk() % block == 0) return std::nullopt;
    return fmt::format("--context {}: {} needs chunks of a multiple of {} tokens, but seq / {} is {}",
                       part.parts, recipe.name, block, 2 * part.parts, part.chunk());
  };
  if (auto why = check(plan.recipe)) return why;
  for (const LaterLayers& later : plan.later)
    if (auto why = check(later.recipe)) return why;
  return std::nullopt;
}

std::optional<std::string> attention_unsupported_reason(const Plan& plan) {
  if (!plan.on_gpu) return std::nullopt;
  if (plan.fields.attention == "cudnn")
    return "--context: cuDNN attention takes whole sequences; use auto or own";
  if (plan.model.latent)
    return "--context: the cuda device has no kernel for latent attention (MLA) in shared sequences";
  if (auto why = shared_sequences_unsupported_reason(plan.fields.device, plan.model.head_dim))
    return fmt::format("--context: {}", *why);
  if (const std::int64_t window = plan.model.sliding_window; window > 0 && window < plan.T)
    return fmt::format(
        "--context: the cuda device has no kernel for a window ({} tokens) in shared sequences", window);
  return std::nullopt;
}

}  // namespace

std::optional<std::string> parallel_unsupported_reason(const Plan& plan) {
  if (auto why = ranks_unsupported_reason(plan)) return why;
  const bool shares = plan.fields.context > 1;
  if (plan.reduce_amax == ReduceAmax::group) {
    if (!shares) return "--reduce-amax group: no ranks share a sequence; add --context N";
    if (plan.parameters.expert_ranks > 1)
      return "--reduce-amax group: an expert's rows are tokens of all of --ep's ranks; use on or off";
  }
  if (!shares) return std::nullopt;
  if (auto why = parts_unsupported_reason(plan)) return why;
  return attention_unsupported_reason(plan);
}

}  // namespace precbench
