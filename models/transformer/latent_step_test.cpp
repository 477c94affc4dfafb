// The training step of models with latent attention, against itself where two settings must agree and in every kind of
// recipe. Its comparison with Hugging Face is in moe_step_test.cpp.
#include "kernels/base/errors.h"
#include "models/transformer/flops.h"
#include "models/transformer/step_compare.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// Returns tiny with latents, in sizes that every recipe takes. `q_rank` 0: queries come from the block's input.
ModelConfig tiny_with_latents(std::int64_t q_rank) {
  ModelConfig model = find_model("tiny");
  model.layers = 2;
  model.kv_heads = model.heads;
  model.head_dim = 96;
  model.latent = {.q_rank = q_rank, .kv_rank = 96, .rope_dim = 32, .v_dim = 64};
  model.block.rope_pairs = RopePairs::interleaved;
  model.block.attention_scale = 0.15;
  return model;
}

}  // namespace

TEST_CASE("latent step: recomputation and accumulation give the same bits in every kind of recipe",
          "[transformer]") {
  for (const std::int64_t q_rank : {0, 128})
    for (const char* recipe :
         {"bf16", "tensorwise", "tensorwise_delayed", "blockwise", "mxfp8", "nvfp4_sr_fwd", "quartet"})
      for (const bool flow : {false, true}) {
        INFO(recipe << " q_rank " << q_rank << (flow ? " flow" : ""));
        StepSetup setup{.model = tiny_with_latents(q_rank), .B = 2, .T = 64, .recipe = find_recipe(recipe)};
        if (flow && (!setup.recipe.quantized() || flow_unsupported_reason(setup.recipe))) continue;
        setup.recipe.flow = flow;
        setup.delayed_scales = setup.recipe.delayed();
        setup.accumulation = 2;
        // All kinds in two recipes, and in the others what depends on their formats.
        const bool all = q_rank > 0 && (recipe == std::string("bf16") || recipe == std::string("tensorwise"));
        check_recomputed(setup, random_step(setup),
                         all ? std::span<const RecomputeKind>(kRecomputeKinds) : kFullRecomputeKinds);
      }
}

TEST_CASE("latent step: FP8 is close to BF16 and every latent layer is quantized", "[transformer]") {
  for (const std::int64_t q_rank : {0, 128})
    for (const char* recipe : {"tensorwise", "rowwise", "blockwise", "mxfp8"}) {
      INFO(recipe << " q_rank " << q_rank);
      StepSetup setup{.model = tiny_with_latents(q_rank), .B = 2, .T = 64};
      const Result reference = random_step(setup);
      setup.recipe = find_recipe(recipe);
      const Result result = random_step(setup);
      CHECK(std::fabs(result.loss / reference.loss - 1) <= 1e-3);
      for (const auto& [name, expected] : reference.gradients) {
        INFO(name);
        CHECK(1 - compare(result.gradients.at(name), expected).cosine <= 0.05);
        // A layer that stayed in BF16 would differ by what comes from other layers alone, which is not nothing, so
        // that equality alone shows it.
        if (name.find("_b_proj") != name.npos || name.find("_a_proj") != name.npos)
          CHECK(result.gradients.at(name) != expected);
      }
    }
}

TEST_CASE("flops: attention with values narrower than keys", "[flops]") {
  const ModelConfig model = tiny_with_latents(128);
  const FlopCount count = flops_per_token(model, 256);
  CHECK(count.attention == 6 * model.layers * 256 * model.heads * (96 + 64) / 2);
  const std::int64_t attention_weights = model.width * (128 + 96 + 32) + 128 * model.heads * 96 +
                                         96 * model.heads * (64 + 64) + model.heads * 64 * model.width;
  CHECK(count.gemm == 6 * model.layers * (attention_weights + 3 * model.width * model.ffn));
}
