// What follows from a plan: the transformer's options, and why the case cannot run.
#include "bench/case/plan.h"

#include <fmt/format.h>

#include "kernels/gpu/shape_limits.h"

namespace precbench {
namespace {

/// Weights of a linear layer, [N, K], with the field's name for it.
struct LinearShape {
  const char* name;
  std::int64_t N, K;
};

}  // namespace

TransformerOptions Plan::transformer() const {
  TransformerOptions options;
  options.B = B;
  options.T = T;
  for (const bool in_recipe : converted) options.recipes.push_back(in_recipe ? &recipe : &bf16);
  options.head = head_converted ? &recipe : &bf16;
  options.recompute = recompute;
  // Sharding is chosen for want of memory, and remaking a norm costs two passes over the residual stream.
  options.recompute_norms = parameters.shards > 1;
  options.reduce_amax = reduce_amax && ranks > 1;
  return options;
}

std::vector<std::string> Plan::converted_layers() const {
  std::vector<std::string> layers;
  std::int64_t first = 0, last = model.layers - 1;
  while (first <= last && !converted[first]) ++first;
  while (last >= first && !converted[last]) --last;
  if (first <= last) layers.push_back(fmt::format("layers.{}-{}.{{qkv,o,gate_up,down}}", first, last));
  if (head_converted) layers.push_back("lm_head");
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
  if (const int shards = parameters.shards; ranks % shards != 0)
    return fmt::format("--shard-group: {} does not divide {} ranks", shards, ranks);
  if (fp8_gather) {
    if (parameters.shards == 1) return "FP8 gather: only sharded ranks (fsdp, hsdp) gather weights";
    if (const std::string why = why_not_fp8_weights(recipe, model, recompute); !why.empty()) return why;
    const Layout layout(model, parameters.shards, parameters.whole_blocks());
    const int unit = layout.block_unit(0);
    const double padded = static_cast<double>(layout.shard_size(unit) * parameters.shards) /
                          static_cast<double>(layout.units()[unit].size);
    // Padding is gathered, reduced and kept like weights: much more of it, and FP8 saves nothing.
    if (constexpr double kMostPadded = 1.25; parameters.whole_blocks() && padded > kMostPadded)
      return fmt::format(
          "FP8 gather: for {} shards to end where 128 rows of a matrix end, a block would be padded to "
          "{:.2f} times its size, more than the {} that pay",
          parameters.shards, padded, kMostPadded);
  }
  const ModelConfig& m = model;
  if (m.sliding_window > 0 && T > m.sliding_window)
    return fmt::format(
        "seq: {} is beyond the model's sliding window of {}, and only full attention is modelled", T,
        m.sliding_window);
  if (on_cuda) {
    for (const std::string& why : {cuda::why_no_width(m.width), cuda::why_no_head_dim(m.head_dim, m.qk_norm)})
      if (!why.empty()) return why;
  }
  std::vector<LinearShape> shapes;
  for (const bool in_recipe : converted)
    if (in_recipe) {
      shapes = {{"qkv", m.q_width() + 2 * m.kv_width(), m.width},
                {"o", m.width, m.q_width()},
                {"gate_up", 2 * m.ffn, m.width},
                {"down", m.width, m.ffn}};
      break;
    }
  if (head_converted) shapes.push_back({"lm_head", m.vocab, m.width});
  for (const LinearShape& s : shapes) {
    const std::string why = why_shape_unsupported(recipe, tokens_per_micro_step(), s.N, s.K);
    if (!why.empty()) return fmt::format("{}: {}", s.name, why);
  }
  return "";
}

}  // namespace precbench
