// Stresses and perturbs the first weights. See change_weights.h.
#include "bench/step/change_weights.h"

#include <cmath>
#include <string_view>
#include <vector>

#include "kernels/numerics/formats.h"

namespace precbench {
namespace {

/// Selects channels evenly: the middle of each of `channels` equal parts, so that they do not share one block
/// of scales.
std::vector<bool> spread(std::int64_t channels, std::int64_t all) {
  std::vector<bool> grows(all);
  for (std::int64_t i = 0; i < channels; ++i) grows[(2 * i + 1) * all / (2 * channels)] = true;
  return grows;
}

/// Expands channels of V to columns of O, which reads the heads side by side; the heads of a group share V's
/// channels.
std::vector<bool> columns_of_o(const std::vector<bool>& v_channels, const ModelConfig& model) {
  std::vector<bool> grows;
  for (std::int64_t head = 0; head < model.heads; ++head)
    for (std::int64_t d = 0; d < model.head_dim; ++d)
      grows.push_back(v_channels[head / (model.heads / model.kv_heads) * model.head_dim + d]);
  return grows;
}

enum class Side : std::uint8_t { none, makes, reads };

/// Returns the parameter's side: `makes` if its rows (elements of a vector) produce the channels, `reads` if
/// its columns consume them. In Mixtral's names an expert's w1, w2 and w3 are gate, down and up.
Side side_of(StressKind kind, const Parameter& p) {
  struct Ends {
    StressKind kind;
    Side side;
    std::string_view name;
  };
  constexpr Ends kEnds[] = {
      {StressKind::ffn, Side::makes, ".up_proj.weight"},
      {StressKind::ffn, Side::makes, ".w3.weight"},
      {StressKind::ffn, Side::reads, ".down_proj.weight"},
      {StressKind::ffn, Side::reads, ".w2.weight"},
      {StressKind::norm, Side::makes, "input_layernorm.weight"},
      {StressKind::norm, Side::makes, "input_layernorm.bias"},
      {StressKind::norm, Side::reads, "self_attn.q_proj.weight"},
      {StressKind::norm, Side::reads, "self_attn.k_proj.weight"},
      {StressKind::norm, Side::reads, "self_attn.q_a_proj.weight"},
      {StressKind::norm, Side::reads, "self_attn.kv_a_proj_with_mqa.weight"},
      {StressKind::norm, Side::reads, "self_attn.v_proj.weight"},
      {StressKind::norm, Side::makes, "post_attention_layernorm.weight"},
      {StressKind::norm, Side::makes, "post_attention_layernorm.bias"},
      {StressKind::norm, Side::reads, ".gate_proj.weight"},
      {StressKind::norm, Side::reads, ".w1.weight"},
      {StressKind::norm, Side::reads, ".up_proj.weight"},
      {StressKind::norm, Side::reads, ".w3.weight"},
      {StressKind::norm, Side::reads, ".gate.weight"},
      {StressKind::norm, Side::reads, ".router.weight"},
      {StressKind::norm, Side::reads, ".shared_expert_gate.weight"},
      {StressKind::vo, Side::makes, "self_attn.v_proj.weight"},
      {StressKind::vo, Side::makes, "self_attn.v_proj.bias"},
      {StressKind::vo, Side::reads, "self_attn.o_proj.weight"},
  };
  for (const Ends& ends : kEnds)
    if (ends.kind == kind && p.name.ends_with(ends.name)) return ends.side;
  return Side::none;
}

void stress_weights(Parameters& parameters, const ModelConfig& model, const Stress& stress,
                    Parameters::Replaced* replaced = nullptr) {
  const float larger = std::ldexp(1.0f, stress.exponent), smaller = std::ldexp(1.0f, -stress.exponent);
  // The number of channels may differ between experts, the shared expert and dense blocks.
  const auto stressed = [&](const Parameter& p) -> Parameters::ElementChange {
    const Side side = side_of(stress.kind, p);
    if (side == Side::none) return nullptr;
    const std::int64_t cols = p.cols, length = p.kind == ParameterKind::matrix ? cols : 1;
    if (side == Side::makes)
      return [=, made = spread(stress.channels, p.size() / length)](std::int64_t i, float x) {
        return made[i / length] ? x * larger : x;
      };
    const bool of_o = stress.kind == StressKind::vo;
    const std::vector<bool> channels = spread(stress.channels, of_o ? model.kv_width() : cols);
    return [=, read = of_o ? columns_of_o(channels, model) : channels](std::int64_t i, float x) {
      return read[i % cols] ? x * smaller : x;
    };
  };
  parameters.change(stressed, replaced);
}

/// Adds one BF16 unit, away from zero, to one weight. A unit of an FP32 master would vanish in the BF16
/// weights that GEMMs read, and the measured noise floor would be zero. The weight belongs to the head, which
/// recipes leave in BF16.
void perturb_weights(Parameters& parameters, const ModelConfig& model) {
  const std::string_view name = model.tied ? "model.embed_tokens.weight" : "lm_head.weight";
  parameters.change([&](const Parameter& p) -> Parameters::ElementChange {
    if (p.name != name) return nullptr;
    return [middle = p.size() / 2](std::int64_t i, float x) {
      constexpr std::uint32_t kUnit = 1u << 16;
      return i == middle ? bits_to_float(float_to_bits(x) + kUnit) : x;
    };
  });
}

}  // namespace

void change_weights(Parameters& parameters, const ModelConfig& model, const InitDefinition& init) {
  if (init.stress) stress_weights(parameters, model, *init.stress);
  if (init.perturbed) perturb_weights(parameters, model);
}

void under_stress(Parameters& parameters, const ModelConfig& model, const Stress& stress,
                  const std::function<void()>& body) {
  Parameters::Replaced replaced;
  stress_weights(parameters, model, stress, &replaced);
  body();
  parameters.restore(replaced);
}

}  // namespace precbench
