// What follows from a plan: the transformer's options, and why the case cannot run.
#include "bench/case/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/gpu/device_info.h"

namespace precbench {

TransformerOptions Plan::transformer() const {
  TransformerOptions options;
  options.B = B;
  options.T = T;
  options.recipe_of = [this](std::int64_t layer, LinearRole role) -> const Recipe& {
    return (role == LinearRole::head ? head_converted : converted[layer]) ? recipe : bf16;
  };
  options.recompute = recompute;
  // Sharding is chosen for want of memory, and remaking a norm costs two passes over the residual stream.
  options.recompute_norms = parameters.parallel.shard > 1;
  options.reduce_amax = reduce_amax && ranks > 1;
  return options;
}

TransformerOptions Plan::bf16_transformer() const {
  TransformerOptions options = transformer();
  options.recipe_of = [this](std::int64_t, LinearRole) -> const Recipe& { return bf16; };
  options.recompute_norms = true;  // the same bits, and none is kept
  return options;
}

std::vector<std::string> Plan::converted_layers() const {
  std::vector<std::string> layers;
  std::int64_t first = 0, last = model.layers - 1;
  while (first <= last && !converted[first]) ++first;
  while (last >= first && !converted[last]) --last;
  std::vector<std::string> roles;
  for (const LinearSpec& linear : dense_block(model).linears) roles.emplace_back(name_of(linear.role));
  if (first <= last) layers.push_back(fmt::format("layers.{}-{}.{{{}}}", first, last, fmt::join(roles, ",")));
  if (head_converted) layers.emplace_back(name_of(LinearRole::head));
  return layers;
}

std::vector<std::string> Plan::warnings() const {
  std::vector<std::string> lines;
  for (const std::string& what : model.not_modelled) lines.push_back(fmt::format("{}: {}", model.name, what));
  const RopeScaling& scaling = model.rope_scaling;
  const double stretched = scaling.original_context * scaling.factor;
  if (model.max_positions > 0 && T > model.max_positions && static_cast<double>(T) > stretched)
    lines.push_back(fmt::format("{}: seq {} is beyond the {} positions that the model is made for",
                                model.name, T, model.max_positions));
  return lines;
}

std::string Plan::why_unsupported() const {
  if (const int shards = parameters.parallel.shard; ranks % shards != 0)
    return fmt::format("--shard-group: {} does not divide {} ranks", shards, ranks);
  if (fp8_gather) {
    const int shards = parameters.parallel.shard;
    if (shards == 1) return "FP8 gather: only sharded ranks (fsdp, hsdp) gather weights";
    if (const std::string why = why_not_fp8_weights(recipe, model, recompute); !why.empty()) return why;
    const Layout layout(model, shards, parameters.whole_blocks());
    const int unit = layout.block_unit(0);
    const double padded = static_cast<double>(layout.shard_size(unit) * shards) /
                          static_cast<double>(layout.units()[unit].size);
    // Padding is gathered, reduced and kept like weights: much more of it, and FP8 saves nothing.
    if (constexpr double kMostPadded = 1.25; parameters.whole_blocks() && padded > kMostPadded)
      return fmt::format(
          "FP8 gather: for {} shards to end where 128 rows of a matrix end, a block would be padded to "
          "{:.2f} times its size, more than the {} that pay",
          shards, padded, kMostPadded);
  }
  if (fp8_gather && fields.fidelity_batches > 0)
    return "fidelity: ranks that exchange weights in FP8 have none in BF16 to compare with";
  const ModelConfig& m = model;
  if (m.sliding_window > 0 && T > m.sliding_window)
    return fmt::format(
        "seq: {} is beyond the model's sliding window of {}, and only full attention is modelled", T,
        m.sliding_window);
  if (const std::string why = why_gpu_refuses(fields.device, m.width, m.head_dim, m.qk_norm); !why.empty())
    return why;
  std::vector<LinearSpec> linears;
  if (std::find(converted.begin(), converted.end(), true) != converted.end())
    linears = dense_block(m).linears;
  if (head_converted) linears.push_back(head_linear(m));
  for (const LinearSpec& linear : linears) {
    const std::string why = why_shape_unsupported(recipe, tokens_per_micro_step(), linear.out(), linear.in);
    if (!why.empty()) return fmt::format("{}: {}", name_of(linear.role), why);
  }
  return "";
}

}  // namespace precbench
