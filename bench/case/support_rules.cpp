// Rules of what runs: ranks, shapes and formats that the program supports together. A case that breaks one becomes a row
// "unsupported". See rules.h.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "bench/case/choose_layers.h"
#include "bench/case/rules.h"
#include "kernels/base/plural.h"
#include "kernels/gpu/device_info.h"
#include "models/transformer/state/shared_layout.h"

namespace precbench {
namespace {

using Why = std::optional<std::string>;
using Exchange = ExchangeOptions::Mode;

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

/// Checks that the parts of a sequence hold whole blocks of each recipe.
Why undivided_blocks(const Plan& plan) {
  const SequencePart part = plan.transformer(0).sequence();
  const auto check = [&](const Recipe& recipe) -> Why {
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

/// True if a recipe with delayed scaling can continue with the other's amax history.
bool same_scales(const Recipe& a, const Recipe& b) {
  return a.fprop.a == b.fprop.a && a.fprop.b == b.fprop.b && a.dgrad.a == b.dgrad.a;
}

/// Checks the number of rows that are sent to experts in FP8.
Why dispatched_rows(const Plan& plan) {
  const bool slots = plan.exchange.mode == Exchange::slots;
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

/// Checks that no shard divides a group of moments with a scale.
Why divided_group(const Plan& plan) {
  const MomentFormats& formats = plan.parameters.moments;
  if (formats.m != StateFormat::coat && formats.v != StateFormat::coat) return std::nullopt;
  const auto shared =
      shared_layout(plan.model, plan.parameters.parallel.weight_shards(), plan.parameters.whole_blocks());
  const Layout& layout = *shared;
  for (int unit = 0; unit < layout.unit_count(); ++unit)
    for (int shard = 0; shard < layout.shards(); ++shard)
      for (const Piece& piece : layout.pieces(unit, shard))
        if (piece.first % kCoatGroup != 0)
          return fmt::format("--moments coat: {} shards would split a group of {} elements of {}",
                             layout.shards(), kCoatGroup, piece.parameter->name);
  return std::nullopt;
}

/// Checks the widths of latent attention on a GPU.
Why odd_latent(const Plan& plan) {
  const ModelConfig& m = plan.model;
  if (!m.latent || !plan.on_gpu) return std::nullopt;
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

/// Checks soft-capped scores on a GPU, which only our kernels have.
Why odd_softcap(const Plan& plan) {
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
Why untransposable(const Plan& plan) {
  std::vector<const Recipe*> recipes = {&plan.recipe};
  for (const LaterLayers& next : plan.later) recipes.push_back(&next.recipe);
  for (const Recipe* recipe : recipes)
    if (recipe->flow)
      if (const auto why = flow_unsupported_reason(*recipe)) return fmt::format("--flow on: {}", *why);
  return std::nullopt;
}

/// Checks activations that are kept otherwise than by default.
Why unkeepable(const Plan& plan) {
  const KeptActivations& kept = plan.recipe.kept;
  if (kept == KeptActivations{}) return std::nullopt;
  const std::string name =
      plan.fields.kept == Case{}.kept ? plan.recipe.name + ": kept" : "--kept " + plan.fields.kept;
  if (plan.recipe.flow)
    return fmt::format("{}: --flow on keeps the rowwise data, which wgrad transposes", name);
  if (plan.model.moe)
    return fmt::format("{}: the rows of experts, which {} has, are gathered again in backward; use precbench",
                       name, plan.model.name);
  const QuantFormat &stream = kept.norm_input, &gate_up = kept.activation_input;
  if (!stream.quantized() && !gate_up.quantized()) return std::nullopt;
  const BlockForm& block = plan.model.block;
  if (block.residual != Residual::sequential || block.norms != NormPlace::before)
    return fmt::format(
        "{}: norm_input and activation_input need blocks with one norm before each half, unlike {}", name,
        plan.model.name);
  if (plan.recompute.blocks > 0 || plan.recompute.ffn)
    return fmt::format(
        "{}: norm_input and activation_input are kept instead of being recomputed: --recompute {} "
        "would drop them",
        name, plan.fields.recompute);
  for (const auto& [key, format, width] :
       {std::tuple("norm_input", stream, plan.model.width),
        std::tuple("activation_input", gate_up, (block.gated ? 2 : 1) * plan.model.ffn)})
    if (const std::int64_t part = block_length(format.granularity); part > 0 && width % part != 0)
      return fmt::format("{}: {}: {} features are not a multiple of {} ({})", name, key, width, part,
                         name_of(format.granularity));
  return std::nullopt;
}

/// Checks what selective recomputation keeps and repeats.
Why unselectable(const Plan& plan) {
  if (!plan.recompute.selective) return std::nullopt;
  const ModelConfig& m = plan.model;
  const auto refuse = [](const std::string& why) {
    return Why("--recompute selective: " + why + "; use block or parts of blocks");
  };
  if (m.moe || m.latent) return refuse(m.name + " has GEMMs of experts or latents, of which it keeps none");
  if (plan.parameters.lora) return refuse("adapters of LoRA add to the outputs of GEMMs that it keeps");
  if (plan.fields.tensor > 1)
    return refuse(fmt::format("--tensor {}: tensor ranks would repeat half a sum", plan.fields.tensor));
  std::vector<const ConvertedLayers*> all = {&plan};
  for (const LaterLayers& next : plan.later) all.push_back(&next);
  for (const ConvertedLayers* layers : all) {
    if (layers->recipe.flow) return refuse("--flow on: wgrad transposes a copy of attention's output");
    for (std::int64_t layer = 0; layer < m.layers; ++layer)
      for (const LinearRole part : kQkvParts)
        if (layers->converts(layer, part)) return refuse("q, k and v have formats of their own");
    if (layers->recipe.kept.gemm_output != KeptAs::value || !layers->recipe.quantized()) continue;
    if (plan.parameters.gather_format.quantized())
      return refuse("parts of FP8 weights are not multiplied, as gemm_output: value asks");
    const std::int64_t up = m.block.gated ? m.ffn : 0;
    for (const auto& [first, count] : {std::pair(m.q_width(), m.kv_width()), std::pair(m.ffn, up)})
      if (const auto why = weight_slice_unsupported_reason(layers->recipe, first, count))
        return refuse(fmt::format("{}, as gemm_output: value asks", *why));
  }
  return std::nullopt;
}

/// Checks that one run has one kind of delayed scaling.
Why several_scalings(const Plan& plan) {
  for (const LaterLayers& next : plan.later)
    if (next.recipe.delayed() && !same_scales(next.recipe, plan.parameters.delayed))
      return fmt::format("{} and {}: one run has one kind of delayed scaling", plan.parameters.delayed.name,
                         next.recipe.name);
  return std::nullopt;
}

/// Checks the padding of shards that end where 128 rows of a matrix end.
Why padded_gather(const Plan& plan) {
  if (!plan.parameters.whole_blocks()) return std::nullopt;
  const int shards = plan.parameters.parallel.weight_shards();
  const auto shared = shared_layout(plan.model, shards, true);
  const Layout& layout = *shared;
  const int unit = layout.block_unit(0);
  const double padded =
      static_cast<double>(layout.shard_size(unit) * shards) / static_cast<double>(layout.units()[unit].size);
  // Padding is gathered, reduced and kept like weights: with much more of it FP8 saves nothing.
  constexpr double kMostPadded = 1.25;
  if (padded <= kMostPadded) return std::nullopt;
  return fmt::format(
      "FP8 gather: for {} shards to end where 128 rows of a matrix end, a block would be padded to {:.2f} times its "
      "size, more than the {} that pay",
      shards, padded, kMostPadded);
}

/// Checks that the model's attention over so many positions is what is computed.
Why beyond_positions(const Plan& plan) {
  const ModelConfig& m = plan.model;
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
  const std::int64_t most = m.block.temperature_positions;
  if (most > 0 && plan.T > most)
    return fmt::format(
        "seq: {} is beyond {} positions, after which the model scales each query, which is not supported",
        plan.T, most);
  if (most > 0 && plan.T == most && (plan.packs() || plan.fields.context > 1))
    return fmt::format(
        "seq: with {} the model scales the last query of a sequence, which is not supported with {}", plan.T,
        plan.packs() ? "packing" : "context ranks");
  return std::nullopt;
}

/// Checks the shapes of a GPU's kernels.
Why odd_shapes(const Plan& plan) {
  const ModelConfig& m = plan.model;
  const std::string& device = plan.fields.device;
  if (device != "cpu")
    for (const auto& [key, size, biased] :
         {std::tuple("ffn", m.ffn, m.block.ffn_bias), std::tuple("vocab", m.vocab, m.head_bias),
          std::tuple("expert_ffn", m.moe.expert_ffn, m.moe.expert_bias)})
      if (biased && size % 8 != 0)
        return fmt::format("{}: {} is not a multiple of 8, which its bias needs on the {} device", key, size,
                           device);
  const std::int64_t unit_norm = m.block.unit_queries_and_keys ? m.head_dim : 0;
  return gpu_unsupported_reason(
      device, m.width, {m.head_dim, std::max(m.q_normed(), unit_norm), std::max(m.k_normed(), unit_norm)});
}

bool gathers_no_block(const Plan& plan) {
  return std::count(plan.parameters.gather_fp8.begin(), plan.parameters.gather_fp8.end(), true) == 0;
}

/// Checks the format of weights that are stored in FP8.
Why unstorable_weights(const Plan& plan) {
  const QuantFormat& format = plan.recipe.fprop.b;
  if (!plan.fp8_weights) return std::nullopt;
  if (plan.model.moe) return "--weights e4m3: does not support blocks with experts";
  if (!format.quantized()) return "--weights e4m3: the recipe has BF16 weights";
  if (always_emulated(format))
    return fmt::format("--weights e4m3: the recipe's weights are {}, not an 8-bit floating-point format",
                       element_name(format));
  if (format.granularity != Granularity::tensor || !(format == plan.recipe.dgrad.b))
    return "--weights e4m3: the recipe has more than one scale per weight";
  if (!plan.later.empty())
    return "--weights e4m3: the recipe changes during the run, and the weight format with it";
  if (gathers_no_block(plan)) return "--weights e4m3: no block has all of its linear layers in the recipe";
  return std::nullopt;
}

/// Checks the recipes that the final weights are read in.
Why unreadable(const Plan& plan) {
  for (const ConvertedLayers& reading : plan.readings)
    if (auto why = reading_unsupported_reason(plan, reading)) return why;
  return std::nullopt;
}

/// Checks the shapes of the layers that any recipe of the run converts.
Why unsupported_layers(const Plan& plan) {
  if (auto why = layers_unsupported_reason(plan, plan)) return why;
  for (const LaterLayers& next : plan.later)
    if (auto why = layers_unsupported_reason(plan, next)) return why;
  return std::nullopt;
}

/// Returns true if a model has norms, biases, sinks or positions that tensor ranks do not divide.
bool has_undivided_parts(const Plan& plan) {
  const ModelConfig& m = plan.model;
  const BlockForm& block = m.block;
  return block.norm != NormKind::rms || m.qkv_bias || block.o_bias || block.ffn_bias || m.head_bias ||
         m.learned_positions > 0 || block.attention_sinks;
}

/// Returns true if the run's recipe or a later one is as `holds` says.
bool any_recipe(const Plan& plan, bool (*holds)(const Recipe&)) {
  return holds(plan.recipe) || std::any_of(plan.later.begin(), plan.later.end(),
                                           [&](const LaterLayers& next) { return holds(next.recipe); });
}

/// Returns true if some recipe casts what tensor ranks are to gather in FP8 otherwise than once for both directions.
bool casts_twice(const Plan& plan) {
  return plan.fields.tensor_gather == "fp8" && any_recipe(plan, [](const Recipe& recipe) {
           return !is_one_cast(recipe.fprop.a, recipe.wgrad.b) ||
                  !is_one_cast(recipe.dgrad.a, recipe.wgrad.a);
         });
}

/// Returns true if the state has scales of whole tensors, of which tensor ranks have slices.
bool has_state_of_whole_tensors(const Plan& plan) {
  const ParameterOptions& p = plan.parameters;
  return p.moments.scaled() || p.master == Master::fp16 || bits_of(p.gradients) == 8 || plan.fp8_gather ||
         plan.fp8_weights;
}

/// Returns true if wgrad repeats fprop's cast of X, with one scale per tensor that ranks share in fprop.
bool repeats_cast_of_tensor(const Plan& plan) {
  return plan.reduce_amax != ReduceAmax::off && plan.ranks > 1 && any_recipe(plan, [](const Recipe& recipe) {
           return recipe.wgrad.b.from_fprop && has_tensor_scale(recipe.fprop.a);
         });
}

bool on_latent(const Plan& plan) { return static_cast<bool>(plan.model.latent); }
bool changes_recipe(const Plan& plan) { return !plan.later.empty(); }
bool divides_experts(const Plan& plan) { return plan.parameters.expert_ranks > 1; }
bool has_fp8_weights(const Plan& plan) { return plan.fp8_weights; }
bool has_fp8_grads(const Plan& plan) { return plan.parameters.gradients == DType::e4m3; }
bool on_cudnn(const Plan& plan) { return plan.on_gpu && plan.fields.attention == "cudnn"; }

constexpr Rule kSupportRules[] = {
    // Adapters.
    {&Case::lora_rank, "--lora-rank: frozen experts are not divided among ranks (--ep); use --parallel fsdp",
     divides_experts},
    {&Case::lora_rank, "--lora-rank: adapters of latent attention (MLA) are not supported", on_latent},
    {&Case::lora_rank, "--lora-rank: frozen attention sinks are not supported",
     [](const Plan& p) { return p.model.block.attention_sinks; }},
    {&Case::lora_rank,
     "--lora-rank: checkpoints of {model} have several of its matrices in one tensor or under other names, whose "
     "adapters are not supported",
     [](const Plan& p) { return p.model.block.tensors != "none"; }},
    {&Case::lora_rank, "--lora-rank: --gather fp8 is not supported with frozen weights; use --gather bf16",
     [](const Plan& p) { return p.fp8_gather; }},
    {&Case::lora_rank, "--lora-rank: adapters have no FP16 master with scales",
     [](const Plan& p) { return p.parameters.master == Master::fp16; }},
    {&Case::lora_rank, "--lora-rank: --weights e4m3 is not supported with frozen weights", has_fp8_weights},
    {&Case::lora_rank, "--lora-rank: adapters' gradients in e4m3 are not supported; use --grads fp32 or bf16",
     has_fp8_grads},
    {&Case::lora_rank,
     "--lora-rank: muon orthogonalizes the model's matrices, which are frozen; use adamw, lion or adafactor",
     [](const Plan& p) { return p.fields.optimizer == "muon"; }},
    {&Case::lora_rank, "--lora-rank: --sensitivity is not supported with adapters",
     [](const Plan& p) { return !p.sensitivity.empty(); }},
    {&Case::lora_rank,
     "--lora-rank: {lora_rank} is not a multiple of 8, which the GEMMs of adapters need on the {device} device",
     [](const Plan& p) { return p.on_gpu && p.fields.lora_rank % 8 != 0; }},
    // Ranks.
    {&Case::context, "--context: {context} does not divide {ranks}",
     [](const Plan& p) { return p.ranks % p.fields.context != 0; }},
    {&Case::tensor, undivided_ranks},
    {&Case::tensor,
     "--tensor {tensor}: latent attention (MLA) on tensor ranks is not supported; use --tensor 1", on_latent},
    {&Case::tensor,
     "--tensor {tensor}: a block with parallel residuals on tensor ranks is not supported; use --tensor 1",
     [](const Plan& p) { return p.model.block.residual != Residual::sequential; }},
    {&Case::tensor,
     "--tensor {tensor}: a norm on the output of a half, or on all heads together, on tensor ranks is not supported; "
     "use --tensor 1",
     [](const Plan& p) { return p.model.block.norms != NormPlace::before || p.model.norms_all_heads(); }},
    {&Case::tensor,
     "--tensor {tensor}: LayerNorm, biases, attention sinks and learned positions ({model}) on tensor ranks are not "
     "supported; use --tensor 1",
     has_undivided_parts},
    {&Case::tensor,
     "--tensor {tensor}: experts ({model}) on tensor ranks are not supported; use --ep with --tensor 1",
     [](const Plan& p) { return static_cast<bool>(p.model.moe); }},
    {&Case::tensor, "--tensor {tensor}: LoRA on tensor ranks is not supported; use --tensor 1",
     [](const Plan& p) { return static_cast<bool>(p.parameters.lora); }},
    {&Case::tensor, [](const Plan& p) { return undivided_model(p, false); }},
    {&Case::tensor, "--tensor {tensor}: {optimizer} on tensor ranks is not supported; use adamw or lion",
     [](const Plan& p) { return p.fields.optimizer != "adamw" && p.fields.optimizer != "lion"; }},
    {&Case::tensor,
     "--tensor {tensor}: weights, gradients and moments of tensor ranks are FP32 or BF16; use --gather bf16, --weights "
     "bf16, --master fp32 or bf16, --grads and --moments fp32 or bf16",
     has_state_of_whole_tensors},
    {&Case::tensor,
     "--tensor {tensor}: tensor ranks gather activations again in backward instead of keeping more of them; use --kept "
     "precbench",
     [](const Plan& p) { return p.recipe.kept != KeptActivations{}; }},
    {&Case::tensor,
     "--tensor {tensor}: --fidelity-batches, --eval-recipes and --sensitivity compare whole tensors; use --tensor 1",
     [](const Plan& p) {
       return p.fields.fidelity_batches > 0 || !p.readings.empty() || !p.sensitivity.empty();
     }},
    {&Case::tensor_gather, "--tensor-gather {tensor_gather}: no ranks divide matrices; add --tensor N",
     [](const Plan& p) { return p.fields.tensor == 1; }},
    {&Case::tensor_gather,
     "--tensor-gather {tensor_gather}: all recipes of the run must cast activations and gradients with one scale of "
     "their own for both directions, as tensorwise does; use --tensor-gather bf16",
     casts_twice},
    {&Case::shard_group, "--shard-group: {shard_group} does not divide {data_ranks}",
     [](const Plan& p) { return p.ranks / p.fields.tensor % p.fields.shard_group != 0; }},
    {&Case::shard_group,
     "--shard-group: {shard_group} is not a multiple of --context {context}, whose ranks share a shard group",
     [](const Plan& p) { return p.fields.shard_group % p.fields.context != 0; }},
    {&Case::reduce_amax, "--reduce-amax group: no ranks share a sequence; add --context N or --tensor N",
     [](const Plan& p) {
       return p.reduce_amax == ReduceAmax::group && p.fields.context == 1 && p.fields.tensor == 1;
     }},
    {&Case::reduce_amax,
     "--reduce-amax group: an expert's rows are tokens of all of --ep's ranks; use on or off",
     [](const Plan& p) { return p.reduce_amax == ReduceAmax::group && divides_experts(p); }},
    {&Case::reduce_amax,
     "--reduce-amax {reduce_amax}: wgrad from the data of fprop ({recipe}) repeats fprop's cast of X with the amax of "
     "one rank; use off",
     repeats_cast_of_tensor},
    {&Case::context_exchange,
     "--context-exchange {context_exchange}: no ranks share a sequence; add --context N",
     [](const Plan& p) { return p.fields.context == 1; }},
    {&Case::context, undivided_chunks},
    {&Case::context, undivided_blocks},
    {&Case::context,
     "--context: the cuda device has no kernel for latent attention (MLA) in shared sequences",
     [](const Plan& p) { return p.on_gpu && on_latent(p); }},
    {kEveryCase, "--exchange, --slots and --dispatch need expert parallelism: add --ep N",
     [](const Plan& p) {
       return !divides_experts(p) &&
              (p.exchange.mode != Exchange::gather || p.exchange.codes || p.fields.slots > 0);
     }},
    {&Case::slots, "--slots: --exchange {exchange} has no slots",
     [](const Plan& p) { return p.exchange.mode != Exchange::slots; }},
    {&Case::slots, "--slots: {slots} exceeds the {tokens} of a rank",
     [](const Plan& p) { return p.fields.slots > p.tokens_per_micro_step(); }},
    {&Case::ep, "--ep: {ep} does not divide {ranks}",
     [](const Plan& p) { return p.ranks % p.fields.ep != 0; }},
    {&Case::ep, "--ep: {ep} does not divide {experts}",
     [](const Plan& p) { return p.model.moe.rule.experts % p.fields.ep != 0; }},
    {&Case::ep, "--ep: {optimizer} does not support expert parallelism; adamw and lion do",
     [](const Plan& p) { return p.fields.optimizer != "adamw" && p.fields.optimizer != "lion"; }},
    {&Case::ep, "--ep: expert parallelism supports optimizer state in fp32 or bf16 only",
     [](const Plan& p) { return scaled(p.parameters.moments.m) || scaled(p.parameters.moments.v); }},
    {&Case::ep, "--ep: --weights e4m3 does not support expert parallelism", has_fp8_weights},
    {&Case::dispatch, "--dispatch fp8: {recipe} does not quantize activations to 8 bits",
     [](const Plan& p) { return !p.recipe.fprop.a.quantized() || bits_of(p.recipe.fprop.a.dtype) != 8; }},
    {&Case::dispatch,
     "--dispatch fp8: history.reduce is false, but tokens of several ranks need a common scale",
     [](const Plan& p) { return p.recipe.fprop.a.delayed() && !p.recipe.fprop.a.history.reduce; }},
    {&Case::dispatch, "--dispatch fp8: the recipe changes during the run, and the format of tokens with it",
     changes_recipe},
    {&Case::dispatch,
     "--dispatch fp8: GEMM scale layouts need a fixed number of rows; use --exchange gather or slots",
     [](const Plan& p) { return p.exchange.mode == Exchange::sync; }},
    {&Case::dispatch, dispatched_rows},
    {&Case::ep, "--ep: --fidelity-batches does not support expert parallelism",
     [](const Plan& p) { return p.fields.fidelity_batches > 0; }},
    {&Case::ep, "--ep: --eval-recipes does not support expert parallelism",
     [](const Plan& p) { return !p.readings.empty(); }},
    // Formats of state, weights and gathers, and what reads them.
    {kEveryCase, divided_group},
    {kEveryCase, "--grads e4m3: hsdp reduces gradients twice and would round in between; use ddp or fsdp",
     [](const Plan& p) { return has_fp8_grads(p) && p.data_parallel == DataParallel::hsdp; }},
    {kEveryCase,
     "--grad-sync last: gradients in e4m3 are summed over ranks in every micro-step; use --grads bf16 or fp32",
     [](const Plan& p) { return has_fp8_grads(p) && p.parameters.sync_last; }},
    {kEveryCase, unstorable_weights},
    {kEveryCase, untransposable},
    {kEveryCase, unkeepable},
    {&Case::attention,
     "--attention own: our kernels take values as wide as keys, not {v_dim} and {head_dim} (latent attention); use "
     "auto or cudnn",
     [](const Plan& p) { return on_latent(p) && p.on_gpu && p.fields.attention == "own"; }},
    {kEveryCase, odd_latent},
    {&Case::packing, "--packing on: cuDNN attention has no documents that share sequences; use auto or own",
     on_cudnn},
    {&Case::packing,
     "--packing on: the {device} device has no kernel for latent attention (MLA) within documents",
     [](const Plan& p) { return p.on_gpu && on_latent(p); }},
    {&Case::packing,
     "--packing on: head_dim is {head_dim}; attention within documents takes at most 256 on the {device} device",
     [](const Plan& p) { return p.on_gpu && p.model.head_dim > kWidestOwnHead; }},
    {kEveryCase, odd_softcap},
    {kEveryCase, several_scalings},
    {&Case::recompute, "--recompute {recompute}: {model} has {blocks}; to recompute all, use block",
     [](const Plan& p) { return !p.recompute.all_blocks() && p.recompute.blocks > p.model.layers; }},
    {&Case::recompute, unselectable},
    {&Case::gather, "FP8 gather: only sharded ranks (fsdp, hsdp) gather weights",
     [](const Plan& p) { return p.parameters.parallel.weight_shards() == 1; }},
    {&Case::gather,
     [](const Plan& p) {
       return fp8_gather_unsupported_reason(p.recipe, p.model, p.recompute.repeats_fprop());
     }},
    {&Case::gather, "FP8 gather: the recipe changes during the run, and the weight format with it",
     changes_recipe},
    {&Case::gather, "FP8 gather: no block has all of its linear layers in the recipe", gathers_no_block},
    {&Case::gather, padded_gather},
    {&Case::fidelity_batches, fidelity_unsupported_reason},
    {&Case::eval_recipes, unreadable},
    // The model.
    {kEveryCase, "experts: FP16 master weights and FP8 gradients are not supported",
     [](const Plan& p) {
       return p.model.moe && (p.parameters.master == Master::fp16 || bits_of(p.parameters.gradients) == 8);
     }},
    {&Case::capacity,
     "--capacity: a dropped slot would keep the bias of its expert's down layer; experts with biases drop none",
     [](const Plan& p) { return p.model.moe.expert_bias; }},
    {&Case::exchange,
     "--exchange slots: a dropped token would keep the biases of its experts; use gather or sync",
     [](const Plan& p) { return p.model.moe.expert_bias && p.exchange.mode == Exchange::slots; }},
    {kEveryCase, beyond_positions},
    {kEveryCase, odd_shapes},
    {kEveryCase, unsupported_layers},
};

}  // namespace

std::optional<std::string> layers_unsupported_reason(const Plan& plan, const ConvertedLayers& layers) {
  const ModelConfig model = tensor_share(plan.model, plan.parameters.parallel.tensor);
  const auto linear_unsupported_reason = [&](const LinearSpec& linear, bool experts) -> Why {
    // An expert's rows are padded to a multiple that its recipe supports.
    const std::int64_t rows = experts ? group_padding(layers.recipe) : plan.tokens_per_micro_step();
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

std::span<const Rule> support_rules() { return kSupportRules; }

}  // namespace precbench
