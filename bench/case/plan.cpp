// Derives from a plan the transformer's options and the reason why the case cannot run.
#include "bench/case/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/plural.h"
#include "kernels/gpu/device_info.h"

namespace precbench {
namespace {

/// Returns all linear layers of a block that a recipe can convert: q, k and v separately, then qkv and the
/// others.
std::vector<LinearSpec> linears_of(const ModelConfig& model, std::int64_t layer) {
  std::vector<LinearSpec> linears = block_of(model, layer).linears;
  const auto qkv = std::find_if(linears.begin(), linears.end(),
                                [](const LinearSpec& linear) { return linear.role == LinearRole::qkv; });
  std::vector<LinearSpec> parts;
  for (const LinearRole part : kQkvParts)
    parts.push_back({part, qkv->in, {qkv->parts[static_cast<std::size_t>(place_in_qkv(part))]}});
  linears.insert(linears.begin(), parts.begin(), parts.end());
  return linears;
}

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
    for (const LinearSpec& linear : linears_of(model, layer))
      if (layers.converts(layer, linear.role)) roles.emplace_back(name_of(linear.role));
    if (!roles.empty())
      names.push_back(fmt::format("layers.{}-{}.{{{}}}", first, last, fmt::join(roles, ",")));
  }
  if (layers.head_converted) names.emplace_back(name_of(LinearRole::head));
  return names;
}

/// True if a recipe with delayed scaling can continue with the other's amax history.
bool same_scales(const Recipe& a, const Recipe& b) {
  return a.fprop.a == b.fprop.a && a.fprop.b == b.fprop.b && a.dgrad.a == b.dgrad.a;
}

/// Returns why a converted layer's shape does not fit its recipe; empty if all do.
std::string why_shapes_unsupported(const ConvertedLayers& layers, const ModelConfig& model,
                                   std::int64_t tokens) {
  const auto why_unsupported = [&](const LinearSpec& linear, bool experts) {
    // An expert's rows are padded to a multiple that its recipe supports.
    const std::int64_t rows = experts ? group_padding(layers.recipe) : tokens;
    const std::string why = why_shape_unsupported(layers.recipe, rows, linear.expert_out(), linear.in);
    return why.empty() ? why : fmt::format("{}: {}", name_of(linear.role), why);
  };
  const std::int64_t last = model.layers - 1;
  for (const std::int64_t example : model.has_experts(0) == model.has_experts(last)
                                        ? std::vector<std::int64_t>{last}
                                        : std::vector<std::int64_t>{0, last})
    for (const LinearSpec& linear : linears_of(model, example)) {
      bool converted = false;
      for (std::int64_t layer = 0; layer < model.layers; ++layer)
        if (model.has_experts(layer) == model.has_experts(example))
          converted = converted || layers.converts(layer, linear.role);
      if (!converted) continue;
      const bool experts = is_stack(model, example, linear.role);
      if (experts)
        if (const std::string why = why_no_experts(layers.recipe); !why.empty()) return why;
      if (const std::string why = why_unsupported(linear, experts); !why.empty()) return why;
    }
  return layers.head_converted ? why_unsupported(head_linear(model), false) : "";
}

}  // namespace

TransformerOptions Plan::transformer() const {
  TransformerOptions options;
  options.B = B;
  options.T = T;
  options.recipe_of = [this](std::int64_t layer, LinearRole role) -> const Recipe& {
    return recipe_of(*this, layer, role);
  };
  options.recompute = recompute;
  // Ranks shard because memory is short, and recomputing a norm costs two passes over the residual stream.
  options.recompute_norms = parameters.parallel.shard > 1;
  options.reduce_amax = reduce_amax && ranks > 1;
  options.capacity = capacity;
  options.exchange = exchange;
  if (on_gpu) options.group_rows = kGpuGroupRows;
  options.balance = balance;
  options.z_loss = z_loss;
  return options;
}

TransformerOptions Plan::bf16_transformer() const {
  TransformerOptions options = transformer();
  options.recipe_of = [this](std::int64_t, LinearRole) -> const Recipe& { return bf16; };
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

std::string Plan::position_warning() const {
  const RopeScaling& scaling = model.rope_scaling;
  const double stretched = scaling.original_context * scaling.factor;
  if (model.max_positions == 0 || T <= model.max_positions || static_cast<double>(T) <= stretched) return {};
  return fmt::format("{}: seq {} is beyond the {} positions that the model is made for", model.name, T,
                     model.max_positions);
}

std::vector<std::string> Plan::warnings() const {
  std::vector<std::string> lines = model_warnings();
  if (std::string line = position_warning(); !line.empty()) lines.push_back(std::move(line));
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

/// Checks FP8 dispatch to experts on other ranks.
std::string Plan::why_codes_unsupported() const {
  const QuantFormat& format = recipe.fprop.a;
  if (!format.quantized() || bits_of(format.dtype) != 8)
    return fmt::format("--dispatch fp8: {} does not quantize activations to 8 bits", recipe.name);
  if (format.delayed() && !format.history.reduce)
    return "--dispatch fp8: history.reduce is false, but tokens of several ranks need a common scale";
  if (!later.empty())
    return "--dispatch fp8: the recipe changes during the run, and the format of tokens with it";
  if (exchange.mode == ExchangeOptions::Mode::sync)
    return "--dispatch fp8: GEMM scale layouts need a fixed number of rows; use --exchange gather or slots";
  const bool slots = exchange.mode == ExchangeOptions::Mode::slots;
  const std::int64_t rows = slots ? exchange.slots : tokens_per_micro_step();
  for (const QuantFormat& sent : {recipe.fprop.a, recipe.dgrad.a}) {
    const std::int64_t multiple = sent.granularity == Granularity::block_1x128  ? 4
                                  : sent.granularity == Granularity::block_1x32 ? 128
                                                                                : 1;
    if (rows % multiple != 0)
      return fmt::format("--dispatch fp8: {} {} per rank; the scale layout needs a multiple of {}", rows,
                         slots ? "slots" : "tokens", multiple);
  }
  return "";
}

std::string Plan::why_experts_unsupported() const {
  const int ep = parameters.expert_ranks;
  const bool gather = exchange.mode == ExchangeOptions::Mode::gather;
  if (ep == 1 && (!gather || exchange.codes || fields.slots > 0))
    return "--exchange, --slots and --dispatch need expert parallelism: add --ep N";
  if (ep == 1) return "";
  if (fields.slots > 0 && exchange.mode != ExchangeOptions::Mode::slots)
    return fmt::format("--slots: --exchange {} has no slots", fields.exchange);
  if (fields.slots > tokens_per_micro_step())
    return fmt::format("--slots: {} exceeds the {} of a rank", fields.slots,
                       plural(tokens_per_micro_step(), "token"));
  if (ranks % ep != 0) return fmt::format("--ep: {} does not divide {}", ep, plural(ranks, "rank"));
  if (const std::int64_t experts = model.moe.rule.experts; experts % ep != 0)
    return fmt::format("--ep: {} does not divide {}", ep, plural(experts, "expert"));
  const MomentFormats& moments = parameters.moments;
  if (const std::string name = optimizer.optimizer->name; name != "adamw" && name != "lion")
    return fmt::format("--ep: {} does not support expert parallelism; adamw and lion do", name);
  if (scaled(moments.m) || scaled(moments.v))
    return "--ep: expert parallelism supports optimizer state in fp32 or bf16 only";
  if (fp8_weights) return "--ep: --weights e4m3 does not support expert parallelism";
  if (exchange.codes)
    if (const std::string why = why_codes_unsupported(); !why.empty()) return why;
  if (fields.fidelity_batches > 0) return "--ep: --fidelity-batches does not support expert parallelism";
  return "";
}

std::string Plan::why_state_unsupported() const {
  const MomentFormats& formats = parameters.moments;
  if (formats.m != StateFormat::coat && formats.v != StateFormat::coat) return "";
  const Layout layout(model, parameters.parallel.shard, parameters.whole_blocks());
  for (int unit = 0; unit < layout.unit_count(); ++unit)
    for (int shard = 0; shard < layout.shards(); ++shard)
      for (const Piece& piece : layout.pieces(unit, shard))
        if (piece.first % kCoatGroup != 0)
          return fmt::format("--moments coat: {} shards would split a group of {} elements of {}",
                             layout.shards(), kCoatGroup, piece.parameter->name);
  return "";
}

std::string Plan::why_fp8_unsupported() const {
  if (parameters.gradients == DType::e4m3 && fields.parallel == "hsdp")
    return "--grads e4m3: hsdp reduces gradients twice and would round in between; use ddp or fsdp";
  if (!fp8_weights) return "";
  if (model.moe) return "--weights e4m3: does not support blocks with experts";
  const QuantFormat& format = recipe.fprop.b;
  if (!format.quantized()) return "--weights e4m3: the recipe has BF16 weights";
  if (held_in_bf16(format.dtype))
    return fmt::format("--weights e4m3: the recipe's weights are {}, not an 8-bit format",
                       name_of(format.dtype));
  if (format.granularity != Granularity::tensor || !(format == recipe.dgrad.b))
    return "--weights e4m3: the recipe has more than one scale per weight";
  if (!later.empty())
    return "--weights e4m3: the recipe changes during the run, and the weight format with it";
  if (std::count(parameters.gather_fp8.begin(), parameters.gather_fp8.end(), true) == 0)
    return "--weights e4m3: no block has all of its linear layers in the recipe";
  return "";
}

std::string Plan::why_flow_unsupported() const {
  std::string why = recipe.flow ? why_no_flow(recipe) : "";
  for (const LaterLayers& next : later)
    if (why.empty() && next.recipe.flow) why = why_no_flow(next.recipe);
  return why.empty() ? why : fmt::format("--flow on: {}", why);
}

std::string Plan::why_layers_unsupported(const ConvertedLayers& layers) const {
  return why_shapes_unsupported(layers, model, tokens_per_micro_step());
}

std::string Plan::why_no_fidelity() const {
  if (fp8_gather) return "fidelity: weights gathered in FP8 leave no BF16 weights to compare with";
  if (fp8_weights) return "fidelity: weights stored in FP8 leave no BF16 weights to compare with";
  // Gradients are summed over ranks and micro-steps in FP8, so the BF16 sum does not exist.
  if (parameters.gradients == DType::e4m3 && (ranks > 1 || accumulation > 1))
    return "fidelity: gradients in e4m3 need one rank and one micro-batch; use --grads bf16 or fp32";
  return "";
}

std::string Plan::why_unsupported() const {
  if (!refusal.empty()) return refusal;
  for (const std::string& why :
       {why_experts_unsupported(), why_state_unsupported(), why_fp8_unsupported(), why_flow_unsupported()})
    if (!why.empty()) return why;
  for (const LaterLayers& next : later)
    if (next.recipe.delayed() && !same_scales(next.recipe, parameters.delayed))
      return fmt::format("{} and {}: one run has one kind of delayed scaling", parameters.delayed.name,
                         next.recipe.name);
  if (const int shards = parameters.parallel.shard; ranks % shards != 0)
    return fmt::format("--shard-group: {} does not divide {}", shards, plural(ranks, "rank"));
  if (fp8_gather) {
    const int shards = parameters.parallel.shard;
    if (shards == 1) return "FP8 gather: only sharded ranks (fsdp, hsdp) gather weights";
    if (const std::string why = why_not_fp8_weights(recipe, model, recompute); !why.empty()) return why;
    if (!later.empty()) return "FP8 gather: the recipe changes during the run, and the weight format with it";
    if (std::count(parameters.gather_fp8.begin(), parameters.gather_fp8.end(), true) == 0)
      return "FP8 gather: no block has all of its linear layers in the recipe";
    const Layout layout(model, shards, parameters.whole_blocks());
    const int unit = layout.block_unit(0);
    const double padded = static_cast<double>(layout.shard_size(unit) * shards) /
                          static_cast<double>(layout.units()[unit].size);
    // Padding is gathered, reduced and kept like weights: with much more of it FP8 saves nothing.
    if (constexpr double kMostPadded = 1.25; parameters.whole_blocks() && padded > kMostPadded)
      return fmt::format(
          "FP8 gather: for {} shards to end where 128 rows of a matrix end, a block would be padded to "
          "{:.2f} times its size, more than the {} that pay",
          shards, padded, kMostPadded);
  }
  if (const std::string why = why_no_fidelity(); fields.fidelity_batches > 0 && !why.empty()) return why;
  const ModelConfig& m = model;
  if (m.moe && (parameters.master == Master::fp16 || bits_of(parameters.gradients) == 8))
    return "experts: FP16 master weights and FP8 gradients are not supported";
  if (m.sliding_window > 0 && T > m.sliding_window)
    return fmt::format(
        "seq: {} is beyond the model's sliding window of {}, and only full attention is supported", T,
        m.sliding_window);
  if (m.dynamic_rope && T > m.max_positions)
    return fmt::format(
        "seq: {} is beyond {} positions, where the model's dynamic RoPE is no longer plain RoPE", T,
        m.max_positions);
  std::string why = why_gpu_refuses(fields.device, m.width, {m.head_dim, m.q_normed(), m.k_normed()});
  if (why.empty()) why = why_layers_unsupported(*this);
  for (const LaterLayers& next : later)
    if (why.empty()) why = why_layers_unsupported(next);
  return why;
}

}  // namespace precbench
