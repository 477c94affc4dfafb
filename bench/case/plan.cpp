// Derives from a plan the transformer's options, the names of its converted layers and its warnings.
#include "bench/case/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/case/choose_layers.h"
#include "models/transformer/flops.h"

namespace precbench {
namespace {

/// Returns the converted layers; consecutive blocks with the same layers share an entry.
std::vector<std::string> names_of(const ConvertedLayers& layers, const ModelConfig& model) {
  std::vector<std::string> names;
  const std::vector<ConvertedLayers::Roles>& converted = layers.converted;
  for (std::size_t first = 0, last = 0; first < converted.size(); first = last + 1) {
    const auto layer = static_cast<std::int64_t>(first);
    const auto alike = [&](std::size_t next) {
      return next < converted.size() && converted[next] == converted[first] &&
             model.has_experts(static_cast<std::int64_t>(next)) == model.has_experts(layer);
    };
    for (last = first; alike(last + 1);) ++last;
    std::vector<std::string> roles;
    for (const LinearSpec& linear : convertible_linears(model, layer))
      if (layers.converts(layer, linear.role)) roles.emplace_back(name_of(linear.role));
    if (!roles.empty())
      names.push_back(fmt::format("layers.{}-{}.{{{}}}", first, last, fmt::join(roles, ",")));
  }
  if (layers.head_converted) names.emplace_back(name_of(LinearRole::head));
  return names;
}

}  // namespace

std::int64_t Plan::flops_per_token() const {
  return precbench::flops_per_token(model, T, FlopConvention::causal, parameters.lora.rank, packed.get())
      .total();
}

TransformerOptions Plan::transformer(int rank) const {
  TransformerOptions options;
  options.B = B;
  options.T = T;
  const ParallelDims& dims = parameters.parallel;
  options.context_ranks = dims.context;
  options.context_rank = dims.place_of(rank).context;
  options.ring = fields.context_exchange == "ring";
  options.first_sequence = dims.batch_rank(rank) * B;
  options.recipe_of = [this](std::int64_t layer, LinearRole role) -> const Recipe& {
    return recipe_of(*this, layer, role);
  };
  options.kept = recipe.kept;
  options.recompute = recompute;
  // Ranks shard because memory is short, and recomputing a norm costs two passes over the residual stream.
  options.recompute_norms = parameters.parallel.weight_shards() > 1;
  if (reduce_amax == ReduceAmax::on && ranks > 1) options.reduce_amax = AmaxGroup::all;
  if (reduce_amax == ReduceAmax::group) options.reduce_amax = AmaxGroup::context;
  options.tensor_fp8 = fields.tensor_gather != "bf16";
  options.capacity = capacity;
  options.exchange = exchange;
  if (on_gpu) options.group_rows = kGpuGroupRows;
  options.balance = balance;
  options.z_loss = z_loss;
  options.packed = packed;
  return options;
}

TransformerOptions Plan::bf16_transformer(int rank) const {
  TransformerOptions options = transformer(rank);
  options.recipe_of = [this](std::int64_t, LinearRole) -> const Recipe& { return bf16; };
  options.kept = {};
  options.recompute_norms = true;  // the same bits without keeping norms
  options.exchange.codes = false;
  return options;
}

std::vector<std::string> Plan::converted_layers() const {
  std::vector<std::string> names = names_of(*this, model);
  for (const LaterLayers& next : later) {
    const std::vector<std::string> then = names_of(next, model);
    names.push_back(fmt::format("from step {} {}: {}", next.from, next.recipe.name,
                                then.empty() ? "none" : fmt::format("{}", fmt::join(then, ", "))));
  }
  return names;
}

std::vector<std::string> Plan::model_warnings() const {
  std::vector<std::string> lines;
  for (const std::string& what : model.not_modelled) lines.push_back(fmt::format("{}: {}", model.name, what));
  return lines;
}

std::optional<std::string> Plan::position_warning() const {
  const RopeScaling& scaling = model.rope_scaling;
  const double stretched = scaling.original_context * scaling.factor;
  if (model.max_positions == 0 || T <= model.max_positions || static_cast<double>(T) <= stretched)
    return std::nullopt;
  return fmt::format("{}: seq {} is beyond the {} positions that the model is made for", model.name, T,
                     model.max_positions);
}

std::vector<std::string> Plan::warnings() const {
  std::vector<std::string> lines = model_warnings();
  if (auto line = position_warning()) lines.push_back(*std::move(line));
  for (const QuantFormat& f : {recipe.fprop.a, recipe.fprop.b})
    if (f.element_rounding == ElementRounding::stochastic) {
      lines.push_back(
          fmt::format("{}: fprop rounds stochastically, whose noise biases the gradient", recipe.name));
      break;
    }
  for (const LaterLayers& next : later)
    lines.push_back(
        fmt::format("{} from step {} on: step times include both recipes", next.recipe.name, next.from));
  return lines;
}

}  // namespace precbench
