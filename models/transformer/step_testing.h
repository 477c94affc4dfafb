// Helpers for tests of a whole training step. The step itself is models/checks/trial_step.h.
#pragma once

#include <span>

#include "kernels/testing/catch.h"
#include "models/checks/trial_step.h"

namespace precbench::testing {

using TestStep = checks::TrialStep;
using checks::distance, checks::Farthest, checks::farthest, checks::first_difference, checks::Named;
using checks::NanBlock, checks::random_tokens, checks::saved, checks::StepSetup;

inline constexpr double kRoundoff = 0x1p-24;  // of FP32

/// Variants of QK-norm.
struct QkNorms {
  const char* name;
  bool any;
  QkNormOver over;

  void set(ModelConfig& model) const { model.qk_norm = any, model.qk_norm_over = over; }
};
inline constexpr QkNorms kQkNorms[] = {{"", false, QkNormOver::head},
                                       {" with QK-norm", true, QkNormOver::head},
                                       {" with QK-norm over all heads", true, QkNormOver::heads}};

/// Returns tiny-moe with what gpt-oss adds to an MoE model: attention sinks, biases of router and experts, and a limit that
/// values of these tests exceed. Its windows are tested with other models.
inline ModelConfig like_gpt_oss(std::int64_t layers = 2) {
  ModelConfig model = find_model("tiny-moe");
  model.name = "like gpt-oss";
  model.layers = layers;
  model.block.attention_sinks = true;
  model.moe.logit_bias = model.moe.expert_bias = true;
  model.moe.swiglu_limit = 0.25;
  return model;
}

/// Returns tiny with dimensions that end within a block of 128: a width of 2.5 blocks, fused q, k and v of 3.5, and a
/// feed-forward layer of 3.375, so that the gradient of its up projection also begins within one.
inline ModelConfig with_partial_blocks() {
  ModelConfig model = find_model("tiny");
  model.name = "partial blocks";
  model.layers = 2;
  model.width = 320;
  model.heads = 5;
  model.kv_heads = 1;
  model.head_dim = 64;
  model.ffn = 432;
  model.vocab = 336;
  return model;
}

/// Returns experts that end within a block of 128 in both directions, beside a shared one.
inline ModelConfig experts_with_partial_blocks() {
  ModelConfig model = find_model("tiny-moe-shared");
  model.name = "experts with partial blocks";
  model.layers = 2;
  model.width = 192;
  model.moe.rule.experts = 4;
  model.moe.expert_ffn = 320;
  model.moe.shared_ffn = 208;
  return model;
}

/// Kinds of recomputation. Models of these tests have at least two blocks.
struct RecomputeKind {
  const char* name;
  Recompute what;
};
inline constexpr RecomputeKind kRecomputeKinds[] = {
    {"block", kRecomputeBlocks},
    {"block:1", {.blocks = 1}},
    {"norm", {.norm = true}},
    {"ffn", {.ffn = true}},
    {"attention", {.attention = true}},
    {"ffn+norm", {.norm = true, .ffn = true}},
    {"attention+ffn+norm", {.norm = true, .ffn = true, .attention = true}}};
/// Kind that dense models take, without adapters.
inline constexpr RecomputeKind kSelective[] = {{"selective", kRecomputeSelective}};
/// Kinds that repeat most: whole blocks, and all parts of every block.
inline constexpr RecomputeKind kFullRecomputeKinds[] = {std::span(kRecomputeKinds).front(),
                                                        std::span(kRecomputeKinds).back()};

/// Calls check() with each kind of recomputation set in `setup`, which is without any afterwards.
template <class Check>
void for_each_recompute(checks::StepSetup& setup, std::span<const RecomputeKind> kinds, Check&& check) {
  for (const RecomputeKind& kind : kinds) {
    INFO("recompute " << kind.name);
    setup.recompute = kind.what;
    check();
  }
  setup.recompute = {};
}

}  // namespace precbench::testing
