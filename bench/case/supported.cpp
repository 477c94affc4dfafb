// Checks that the ranks, shapes and formats of a plan are supported. See supported.h.
#include "bench/case/supported.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "bench/case/choose_layers.h"
#include "bench/case/layout_support.h"
#include "bench/case/lora_support.h"
#include "bench/case/parallel_support.h"
#include "kernels/base/plural.h"
#include "kernels/gpu/device_info.h"

namespace precbench {
namespace {

/// True if a recipe with delayed scaling can continue with the other's amax history.
bool same_scales(const Recipe& a, const Recipe& b) {
  return a.fprop.a == b.fprop.a && a.fprop.b == b.fprop.b && a.dgrad.a == b.dgrad.a;
}

/// Returns the first converted layer whose shape does not fit its recipe, with the reason; null if all do.
std::optional<std::string> shapes_unsupported_reason(const ConvertedLayers& layers, const ModelConfig& model,
                                                     std::int64_t tokens) {
  const auto linear_unsupported_reason = [&](const LinearSpec& linear,
                                             bool experts) -> std::optional<std::string> {
    // An expert's rows are padded to a multiple that its recipe supports.
    const std::int64_t rows = experts ? group_padding(layers.recipe) : tokens;
    const auto why = shape_unsupported_reason(layers.recipe, rows, linear.expert_out(), linear.in);
    if (!why) return std::nullopt;
    return fmt::format("{}: {}", name_of(linear.role), *why);
  };
  for (const std::int64_t example : model.layer_of_each_kind())
    for (const LinearSpec& linear : convertible_linears(model, example)) {
      bool converted = false;
      for (std::int64_t layer = 0; layer < model.layers; ++layer)
        if (model.has_experts(layer) == model.has_experts(example))
          converted = converted || layers.converts(layer, linear.role);
      if (!converted) continue;
      const bool experts = is_stack(model, example, linear.role);
      if (experts)
        if (auto why = experts_unsupported_reason(layers.recipe)) return why;
      if (auto why = linear_unsupported_reason(linear, experts)) return why;
    }
  if (!layers.head_converted) return std::nullopt;
  return linear_unsupported_reason(head_linear(model), false);
}

/// Checks FP8 dispatch to experts on other ranks.
std::optional<std::string> dispatch_unsupported_reason(const Plan& plan) {
  const QuantFormat& format = plan.recipe.fprop.a;
  if (!format.quantized() || bits_of(format.dtype) != 8)
    return fmt::format("--dispatch fp8: {} does not quantize activations to 8 bits", plan.recipe.name);
  if (format.delayed() && !format.history.reduce)
    return "--dispatch fp8: history.reduce is false, but tokens of several ranks need a common scale";
  if (!plan.later.empty())
    return "--dispatch fp8: the recipe changes during the run, and the format of tokens with it";
  if (plan.exchange.mode == ExchangeOptions::Mode::sync)
    return "--dispatch fp8: GEMM scale layouts need a fixed number of rows; use --exchange gather or slots";
  const bool slots = plan.exchange.mode == ExchangeOptions::Mode::slots;
  const std::int64_t rows = slots ? plan.exchange.slots : plan.tokens_per_micro_step();
  for (const QuantFormat& sent : {plan.recipe.fprop.a, plan.recipe.dgrad.a}) {
    const std::int64_t multiple = sent.granularity == Granularity::block_1x128  ? 4
                                  : sent.granularity == Granularity::block_1x32 ? 128
                                                                                : 1;
    if (rows % multiple != 0)
      return fmt::format("--dispatch fp8: {} {} per rank; the scale layout needs a multiple of {}", rows,
                         slots ? "slots" : "tokens", multiple);
  }
  return std::nullopt;
}

/// Checks expert parallelism.
std::optional<std::string> expert_parallel_unsupported_reason(const Plan& plan) {
  const int ep = plan.parameters.expert_ranks;
  const bool gather = plan.exchange.mode == ExchangeOptions::Mode::gather;
  if (ep == 1 && (!gather || plan.exchange.codes || plan.fields.slots > 0))
    return "--exchange, --slots and --dispatch need expert parallelism: add --ep N";
  if (ep == 1) return std::nullopt;
  if (plan.fields.slots > 0 && plan.exchange.mode != ExchangeOptions::Mode::slots)
    return fmt::format("--slots: --exchange {} has no slots", plan.fields.exchange);
  if (plan.fields.slots > plan.tokens_per_micro_step())
    return fmt::format("--slots: {} exceeds the {} of a rank", plan.fields.slots,
                       plural(plan.tokens_per_micro_step(), "token"));
  if (plan.ranks % ep != 0) return fmt::format("--ep: {} does not divide {}", ep, plural(plan.ranks, "rank"));
  if (const std::int64_t experts = plan.model.moe.rule.experts; experts % ep != 0)
    return fmt::format("--ep: {} does not divide {}", ep, plural(experts, "expert"));
  const MomentFormats& moments = plan.parameters.moments;
  if (const std::string name = plan.optimizer.optimizer->name; name != "adamw" && name != "lion")
    return fmt::format("--ep: {} does not support expert parallelism; adamw and lion do", name);
  if (scaled(moments.m) || scaled(moments.v))
    return "--ep: expert parallelism supports optimizer state in fp32 or bf16 only";
  if (plan.fp8_weights) return "--ep: --weights e4m3 does not support expert parallelism";
  if (plan.exchange.codes)
    if (auto why = dispatch_unsupported_reason(plan)) return why;
  if (plan.fields.fidelity_batches > 0) return "--ep: --fidelity-batches does not support expert parallelism";
  if (!plan.readings.empty()) return "--ep: --eval-recipes does not support expert parallelism";
  return std::nullopt;
}

/// Checks the formats of the optimizer's state.
std::optional<std::string> state_unsupported_reason(const Plan& plan) {
  const MomentFormats& formats = plan.parameters.moments;
  if (formats.m != StateFormat::coat && formats.v != StateFormat::coat) return std::nullopt;
  const Layout layout(plan.model, plan.parameters.parallel.weight_shards(), plan.parameters.whole_blocks());
  for (int unit = 0; unit < layout.unit_count(); ++unit)
    for (int shard = 0; shard < layout.shards(); ++shard)
      for (const Piece& piece : layout.pieces(unit, shard))
        if (piece.first % kCoatGroup != 0)
          return fmt::format("--moments coat: {} shards would split a group of {} elements of {}",
                             layout.shards(), kCoatGroup, piece.parameter->name);
  return std::nullopt;
}

/// Checks weights and gradients stored in FP8.
std::optional<std::string> fp8_storage_unsupported_reason(const Plan& plan) {
  if (plan.parameters.gradients == DType::e4m3 && plan.data_parallel == DataParallel::hsdp)
    return "--grads e4m3: hsdp reduces gradients twice and would round in between; use ddp or fsdp";
  if (plan.parameters.gradients == DType::e4m3 && plan.parameters.sync_last)
    return "--grad-sync last: gradients in e4m3 are summed over ranks in every micro-step; use --grads bf16 or "
           "fp32";
  if (!plan.fp8_weights) return std::nullopt;
  if (plan.model.moe) return "--weights e4m3: does not support blocks with experts";
  const QuantFormat& format = plan.recipe.fprop.b;
  if (!format.quantized()) return "--weights e4m3: the recipe has BF16 weights";
  if (always_emulated(format))
    return fmt::format("--weights e4m3: the recipe's weights are {}, not an 8-bit floating-point format",
                       element_name(format));
  if (format.granularity != Granularity::tensor || !(format == plan.recipe.dgrad.b))
    return "--weights e4m3: the recipe has more than one scale per weight";
  if (!plan.later.empty())
    return "--weights e4m3: the recipe changes during the run, and the weight format with it";
  if (std::count(plan.parameters.gather_fp8.begin(), plan.parameters.gather_fp8.end(), true) == 0)
    return "--weights e4m3: no block has all of its linear layers in the recipe";
  return std::nullopt;
}

/// Checks latent attention on a GPU.
std::optional<std::string> latent_unsupported_reason(const Plan& plan) {
  const ModelConfig& m = plan.model;
  if (!m.latent || !plan.on_gpu) return std::nullopt;
  if (plan.fields.attention == "own")
    return fmt::format(
        "--attention own: our kernels take values as wide as keys, not {} and {} (latent attention); use auto or cudnn",
        m.v_dim(), m.head_dim);
  // A vector of 8 elements is moved at once, and RoPE takes two.
  const std::tuple<const char*, std::int64_t, int> widths[] = {
      {"qk_nope_head_dim", m.head_dim - m.latent.rope_dim, 8},
      {"qk_rope_head_dim", m.latent.rope_dim, 16},
      {"v_head_dim", m.latent.v_dim, 8},
      {"q_lora_rank", m.latent.q_rank, 8},
      {"kv_lora_rank", m.latent.kv_rank, 8}};
  for (const auto& [key, width, multiple] : widths)
    if (width % multiple != 0)
      return fmt::format("{}: {} is not a multiple of {}, which latent attention needs on the {} device", key,
                         width, multiple, plan.fields.device);
  return std::nullopt;
}

/// Limits of our attention kernels (kernels/cuda/attention/flash.h).
constexpr std::int64_t kWidestOwnHead = 256;
constexpr double kLargestOwnSoftcap = 1024;

/// Checks attention within packed documents on a GPU, which only our kernels for any GPU have.
std::optional<std::string> packing_unsupported_reason(const Plan& plan) {
  if (!plan.packs() || !plan.on_gpu) return std::nullopt;
  const ModelConfig& m = plan.model;
  const std::string& device = plan.fields.device;
  if (plan.fields.attention == "cudnn")
    return "--packing on: cuDNN attention has no documents that share sequences; use auto or own";
  if (m.latent)
    return fmt::format(
        "--packing on: the {} device has no kernel for latent attention (MLA) within documents", device);
  if (plan.parameters.parallel.context > 1)
    return fmt::format(
        "--packing on: the {} device has no kernel for documents in sequences that ranks share (--context)",
        device);
  if (m.head_dim > kWidestOwnHead)
    return fmt::format(
        "--packing on: head_dim is {}; attention within documents takes at most {} on the {} device",
        m.head_dim, kWidestOwnHead, device);
  return std::nullopt;
}

/// Checks soft-capped scores on a GPU, which only our kernels have.
std::optional<std::string> softcap_unsupported_reason(const Plan& plan) {
  const ModelConfig& m = plan.model;
  const double cap = m.block.attention_softcap;
  if (cap == 0 || !plan.on_gpu) return std::nullopt;
  const std::string& device = plan.fields.device;
  if (plan.fields.attention == "cudnn")
    return fmt::format(
        "--attention cudnn: cuDNN does not soft-cap the scores of attention (at {}); use auto or own", cap);
  if (m.latent)
    return fmt::format("the {} device has no kernel for latent attention (MLA) with soft-capped scores",
                       device);
  if (m.head_dim > kWidestOwnHead)
    return fmt::format("head_dim: {} with soft-capped scores; the {} device has kernels for them up to {}",
                       m.head_dim, device, kWidestOwnHead);
  if (cap < 1 / kLargestOwnSoftcap || cap > kLargestOwnSoftcap)
    return fmt::format(
        "the model soft-caps the scores of attention at {}, which the {} device does at 1/{} to {}", cap,
        device, kLargestOwnSoftcap, kLargestOwnSoftcap);
  return std::nullopt;
}

/// Checks transposition of FP8 data.
std::optional<std::string> transposed_unsupported_reason(const Plan& plan) {
  std::vector<const Recipe*> recipes = {&plan.recipe};
  for (const LaterLayers& next : plan.later) recipes.push_back(&next.recipe);
  for (const Recipe* recipe : recipes)
    if (recipe->flow)
      if (const auto why = flow_unsupported_reason(*recipe)) return fmt::format("--flow on: {}", *why);
  return std::nullopt;
}

}  // namespace

std::optional<std::string> layers_unsupported_reason(const Plan& plan, const ConvertedLayers& layers) {
  return shapes_unsupported_reason(layers, plan.model, plan.tokens_per_micro_step());
}

std::optional<std::string> reading_unsupported_reason(const Plan& plan, const ConvertedLayers& reading) {
  const char* kept = plan.fp8_gather ? "gathered" : plan.fp8_weights ? "stored" : nullptr;
  if (kept)
    return fmt::format("--eval-recipes: weights {} in FP8 leave no BF16 weights to read in another recipe",
                       kept);
  if (auto why = layers_unsupported_reason(plan, reading))
    return fmt::format("--eval-recipes: {}: {}", reading.recipe.name, *why);
  return std::nullopt;
}

std::optional<std::string> fidelity_unsupported_reason(const Plan& plan) {
  if (plan.fp8_gather) return "fidelity: weights gathered in FP8 leave no BF16 weights to compare with";
  if (plan.fp8_weights) return "fidelity: weights stored in FP8 leave no BF16 weights to compare with";
  // Gradients are summed over ranks and micro-steps in FP8, so the BF16 sum does not exist.
  if (plan.parameters.gradients == DType::e4m3 && (plan.ranks > 1 || plan.accumulation > 1))
    return "fidelity: gradients in e4m3 need one rank and one micro-batch; use --grads bf16 or fp32";
  return std::nullopt;
}

std::optional<std::string> unsupported_reason(const Plan& plan) {
  if (plan.refusal) return plan.refusal;
  if (auto why = predicted_only_reason(plan.fields)) return why;
  for (const auto& check :
       {lora_unsupported_reason, parallel_unsupported_reason, expert_parallel_unsupported_reason,
        state_unsupported_reason, fp8_storage_unsupported_reason, transposed_unsupported_reason,
        latent_unsupported_reason, packing_unsupported_reason, softcap_unsupported_reason})
    if (auto why = check(plan)) return why;
  for (const LaterLayers& next : plan.later)
    if (next.recipe.delayed() && !same_scales(next.recipe, plan.parameters.delayed))
      return fmt::format("{} and {}: one run has one kind of delayed scaling", plan.parameters.delayed.name,
                         next.recipe.name);
  if (plan.recompute != kRecomputeBlocks && plan.recompute.blocks > plan.model.layers)
    return fmt::format("--recompute {}: {} has {}; to recompute all, use block", plan.fields.recompute,
                       plan.model.name, plural(plan.model.layers, "block"));
  if (plan.fp8_gather) {
    const int shards = plan.parameters.parallel.weight_shards();
    if (shards == 1) return "FP8 gather: only sharded ranks (fsdp, hsdp) gather weights";
    if (auto why = fp8_gather_unsupported_reason(plan.recipe, plan.model, plan.recompute.repeats_fprop()))
      return why;
    if (!plan.later.empty())
      return "FP8 gather: the recipe changes during the run, and the weight format with it";
    if (std::count(plan.parameters.gather_fp8.begin(), plan.parameters.gather_fp8.end(), true) == 0)
      return "FP8 gather: no block has all of its linear layers in the recipe";
    const Layout layout(plan.model, shards, plan.parameters.whole_blocks());
    const int unit = layout.block_unit(0);
    const double padded = static_cast<double>(layout.shard_size(unit) * shards) /
                          static_cast<double>(layout.units()[unit].size);
    // Padding is gathered, reduced and kept like weights: with much more of it FP8 saves nothing.
    if (constexpr double kMostPadded = 1.25; plan.parameters.whole_blocks() && padded > kMostPadded)
      return fmt::format(
          "FP8 gather: for {} shards to end where 128 rows of a matrix end, a block would be padded to "
          "{:.2f} times its size, more than the {} that pay",
          shards, padded, kMostPadded);
  }
  if (plan.fields.fidelity_batches > 0)
    if (auto why = fidelity_unsupported_reason(plan)) return why;
  for (const ConvertedLayers& reading : plan.readings)
    if (auto why = reading_unsupported_reason(plan, reading)) return why;
  const ModelConfig& m = plan.model;
  if (m.moe && (plan.parameters.master == Master::fp16 || bits_of(plan.parameters.gradients) == 8))
    return "experts: FP16 master weights and FP8 gradients are not supported";
  if (m.moe.expert_bias && plan.capacity > 0)
    return "--capacity: a dropped slot would keep the bias of its expert's down layer; experts with biases drop none";
  if (m.moe.expert_bias && plan.exchange.mode == ExchangeOptions::Mode::slots)
    return "--exchange slots: a dropped token would keep the biases of its experts; use gather or sync";
  if (m.learned_positions > 0 && plan.T > m.learned_positions)
    return fmt::format("seq: {} is beyond the {} positions that the model has learned", plan.T,
                       m.learned_positions);
  if (m.dynamic_rope && plan.T > m.max_positions)
    return fmt::format(
        "seq: {} is beyond {} positions, where the model's dynamic RoPE is no longer plain RoPE", plan.T,
        m.max_positions);
  if (m.original_context_only && static_cast<double>(plan.T) > m.rope_scaling.original_context)
    return fmt::format(
        "seq: {} is beyond the model's original context of {:.0f} positions, where its attention changes "
        "(rope_scaling), which is not supported",
        plan.T, m.rope_scaling.original_context);
  if (m.unchunked_positions > 0 && plan.T > m.unchunked_positions)
    return fmt::format(
        "seq: {} is beyond the model's chunks of {} positions; chunked attention is not supported", plan.T,
        m.unchunked_positions);
  if (const std::int64_t most = m.block.temperature_positions; most > 0 && plan.T >= most) {
    if (plan.T > most)
      return fmt::format(
          "seq: {} is beyond {} positions, after which the model scales each query, which is not supported",
          plan.T, most);
    if (plan.packs() || plan.fields.context > 1)
      return fmt::format(
          "seq: with {} the model scales the last query of a sequence, which is not supported with {}",
          plan.T, plan.packs() ? "packing" : "context ranks");
  }
  if (plan.fields.device != "cpu")
    for (const auto& [key, size, biased] :
         {std::tuple("ffn", m.ffn, m.block.ffn_bias), std::tuple("vocab", m.vocab, m.head_bias),
          std::tuple("expert_ffn", m.moe.expert_ffn, m.moe.expert_bias)})
      if (biased && size % 8 != 0)
        return fmt::format("{}: {} is not a multiple of 8, which its bias needs on the {} device", key, size,
                           plan.fields.device);
  const std::int64_t unit_norm = m.block.unit_queries_and_keys ? m.head_dim : 0;
  if (auto why = gpu_unsupported_reason(
          plan.fields.device, m.width,
          {m.head_dim, std::max(m.q_normed(), unit_norm), std::max(m.k_normed(), unit_norm)}))
    return why;
  if (auto why = layers_unsupported_reason(plan, plan)) return why;
  for (const LaterLayers& next : plan.later)
    if (auto why = layers_unsupported_reason(plan, next)) return why;
  return std::nullopt;
}

}  // namespace precbench
