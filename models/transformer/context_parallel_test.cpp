// Context parallelism: ranks that share sequences train like one rank with whole ones. Planted faults show
// that the comparison would notice wrong positions, unsorted keys, wrongly merged parts of a ring, and tokens that are
// counted on every rank.
#include <fmt/format.h>

#include <string>
#include <tuple>
#include <vector>

#include "models/transformer/divided_step_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

enum class Planted : std::uint8_t { query_offset, late_rope, unsorted_keys, even_merge };

/// Plants one fault into the ops of context parallelism.
struct ContextFault : NoFault {
  explicit ContextFault(Planted fault) : planted(fault) {}
  using NoFault::plant;
  ops::Attention plant(ops::Attention op) const {
    if (planted == Planted::query_offset) op.shape.offset += op.shape.T;
    return op;
  }
  ops::Rope plant(ops::Rope op) const {
    if (planted == Planted::late_rope) *op.options.late_offset += op.options.shape.T;
    return op;
  }
  ops::PlaceRows plant(ops::PlaceRows op) const {
    if (planted == Planted::unsorted_keys) op.parts = 1;
    return op;
  }
  ops::MergeAttention plant(ops::MergeAttention op) const {
    if (planted == Planted::even_merge) op.part_lse = op.lse;  // half of each part
    return op;
  }

  Planted planted;
};

ModelConfig small_model() {
  ModelConfig model = find_model("tiny");
  model.layers = 2;
  return model;
}

StepSetup reference_setup(const ParallelDims& parallel, std::int64_t B = 1, bool ring = false) {
  StepSetup setup{.model = small_model(), .B = B, .T = 32};
  setup.reference = true;
  setup.ring = ring;
  setup.parallel = parallel;
  return setup;
}

/// Two ranks with two chunks of one block of the recipe's scales each.
StepSetup recipe_setup(const char* recipe, bool fp32) {
  StepSetup setup{.model = small_model(), .B = 1, .T = 128, .recipe = find_recipe(recipe)};
  if (std::string(recipe) == "blockwise") setup.T = 512;
  setup.reference = fp32;
  setup.parallel = {.context = 2, .context_shards = true};
  setup.reduce_amax = true;
  setup.delayed_scales = setup.recipe.delayed();
  return setup;
}

const std::vector<ParallelDims>& layouts() {
  static const std::vector<ParallelDims> kLayouts = {
      {.context = 2},
      {.context = 4},
      {.context = 2, .context_shards = true},
      {.context = 4, .context_shards = true},
      {.data = 2, .context = 2},
      {.shard = 2, .context = 2, .context_shards = true},
      {.data = 2, .shard = 2, .context = 2, .context_shards = true}};
  return kLayouts;
}

}  // namespace

TEST_CASE("context: an FP32 model trains like on one rank in every layout", "[context]") {
  for (const ParallelDims& parallel : layouts())
    for (const std::int64_t B : {1, 3}) {
      const DividedRun one = run_divided(undivided(reference_setup(parallel, B)));
      for (const bool ring : {false, true}) {
        INFO(text_of(parallel) << ", batch " << B << (ring ? ", ring" : ""));
        CHECK(excess(run_divided(reference_setup(parallel, B, ring)), one, kFp32) <= 1);
      }
    }
}

TEST_CASE("context: model variants train like on one rank", "[context]") {
  StepSetup setup = reference_setup({.context = 2, .context_shards = true}, 2);
  const auto check = [&](const char* what) {
    const DividedRun one = run_divided(undivided(setup));
    for (const bool ring : {false, true}) {
      INFO(what << (ring ? ", ring" : ""));
      setup.ring = ring;
      CHECK(excess(run_divided(setup), one, kFp32) <= (ring ? 2 : 1));  // more sums in another order
    }
    setup.ring = false;
  };
  for (const bool tied : {true, false}) {
    setup.model = small_model();
    setup.model.tied = tied;
    check(tied ? "tied" : "untied");
  }
  for (const QkNorms& norms : kQkNorms) {
    setup.model = small_model();
    norms.set(setup.model);
    check(norms.name);
  }
  setup.model = small_model();
  setup.model.rope_scaling = {.kind = RopeScaling::Kind::yarn, .factor = 4, .original_context = 8};
  check("YaRN");
  setup.model = small_model();
  setup.model.sliding_window = 11;  // over the edges of chunks of 8
  setup.model.block.local_layers = {0};
  check("window");
  setup.model.sliding_window = 3;  // in chunks of 4: nothing sees the keys of some ranks
  setup.parallel.context = 4;
  check("narrow window");
  setup.model = small_model();
  setup.model.kv_heads = setup.model.heads / 4;
  check("grouped queries");
  setup.model.kv_heads = setup.model.heads;
  check("as many key heads as query heads");
}

TEST_CASE("context: recomputation changes no bit", "[context][moe][ep]") {
  const auto check = [](StepSetup setup) {
    const DividedRun kept = run_divided(setup);
    const auto same = [&] {
      const DividedRun again = run_divided(setup);
      CHECK(again.losses == kept.losses);
      CHECK(first_difference(again.weights, kept.weights) == "");
    };
    for_each_recompute(setup, kFullRecomputeKinds, same);
    if (!setup.model.moe) for_each_recompute(setup, kSelective, same);
  };
  for (const char* recipe : {"bf16", "tensorwise"})
    for (const QkNorms& norms : kQkNorms) {
      INFO(recipe << norms.name);
      StepSetup setup = recipe_setup(recipe, false);
      norms.set(setup.model);
      check(setup);
    }
  StepSetup ring = recipe_setup("tensorwise", false);
  ring.ring = true;
  check(ring);
  for (const int expert_ranks : {1, 2}) {
    INFO("experts, ep " << expert_ranks);
    StepSetup setup = recipe_setup("tensorwise", false);
    setup.model = find_model("tiny-moe-shared");
    setup.model.layers = 2;
    setup.expert_ranks = expert_ranks;
    check(setup);
  }
}

TEST_CASE("context: biases of attention get one rank's gradients", "[context]") {
  StepSetup setup = reference_setup({.context = 2}, 2);
  setup.model.qkv_bias = true;
  setup.model.block.o_bias = true;
  const DividedRun two = run_divided(setup), one = run_divided(undivided(setup));
  // The gradient of a key's bias is 0 but for rounding, because a softmax does not see what is added to all
  // scores.
  Named gradients = two.first_gradients, expected = one.first_gradients;
  for (const char* layer : {"0", "1"}) {
    const std::string name = fmt::format("model.layers.{}.self_attn.k_proj.bias", layer);
    REQUIRE(expected.contains(name));
    gradients.erase(name), expected.erase(name);
  }
  CHECK(farthest(gradients, expected).distance <= kFp32.first_gradients);
  for (int i = 0; i < kDividedSteps; ++i) CHECK(std::fabs(two.losses[i] / one.losses[i] - 1) <= kFp32.loss);
}

TEST_CASE("context: learned positions and parallel residuals get one rank's gradients", "[context]") {
  for (const int context : {2, 4}) {
    INFO(context << " ranks");
    StepSetup setup = reference_setup({.context = context}, 2);
    setup.model.learned_positions = setup.T;
    setup.model.block = {.activation = Activation::gelu,
                         .norm = NormKind::layer,
                         .norm_bias = true,
                         .residual = Residual::parallel,
                         .gated = false,
                         .ffn_bias = true};
    CHECK(excess(run_divided(setup), run_divided(undivided(setup)), kFp32) <= 1);
  }
}

TEST_CASE("context: planted faults are noticed", "[context]") {
  for (const int context : {2, 4}) {
    const StepSetup setup = reference_setup({.context = context}, 2);
    const DividedRun one = run_divided(undivided(setup));
    CHECK(excess(run_divided(setup), one, kFp32) <= 1);
    for (const Planted fault : {Planted::query_offset, Planted::late_rope, Planted::unsorted_keys}) {
      INFO("fault " << static_cast<int>(fault) << ", context " << context);
      CHECK(excess(run_divided(setup, ContextFault(fault)), one, kFp32) > 10);
    }
    for (const Planted fault : {Planted::query_offset, Planted::even_merge}) {
      INFO("fault " << static_cast<int>(fault) << " in a ring, context " << context);
      const StepSetup ring = reference_setup({.context = context}, 2, true);
      CHECK(excess(run_divided(ring, ContextFault(fault)), one, kFp32) > 10);
    }
    CHECK(excess(run_divided(setup, NoFault{}, {.swapped_halves = true}), one, kFp32) > 10);
    // Tokens counted on every rank: the gradient shrinks, and with it its norm.
    DividedRun counted = run_divided(setup);
    for (auto& [name, values] : counted.first_gradients)
      for (float& value : values) value /= static_cast<float>(context);
    CHECK(excess(counted, one, kFp32) > 10);
  }
}

TEST_CASE("context: the forward pass has one rank's bits where chunks are multiples of 64 tokens",
          "[context]") {
  for (const char* recipe : {"bf16", "tensorwise", "rowwise", "blockwise", "mxfp8"})
    for (const int context : {2, 4}) {
      StepSetup setup{.model = small_model(), .B = 1, .T = 128 * context, .recipe = find_recipe(recipe)};
      setup.parallel = {.context = context};
      setup.reduce_amax = true;
      INFO(recipe << ", context " << context);
      const DividedRunOptions forward{.steps = 0};
      CHECK((run_divided(setup, NoFault{}, forward).token_losses ==
             run_divided(undivided(setup), NoFault{}, forward).token_losses));
    }
}

TEST_CASE("context: recipes train like on one rank", "[context]") {
  // FP32 activations: the ranks quantize one rank's values with its scales. The gradients of keys and values
  // are summed in another order, and where a scale in FP32 differs in its last place, a value half way
  // between two codes may get the other one.
  const DividedBounds same{5e-4, 2e-6, 0.3, 1e-2}, last_place{5e-4, 1e-2, 0.3, 1e-2};
  // BF16: they are also rounded on each rank. Those of queries and keys are small beside those of values, and
  // coarse.
  const DividedBounds bf16{2e-4, 1.5e-2, 5e-2, 5e-3}, fp8{4e-3, 0.2, 0.6, 3e-2};
  for (const auto& [recipe, in_fp32, in_bf16] : {std::tuple{"bf16", kFp32, bf16},
                                                 {"tensorwise", same, fp8},
                                                 {"rowwise", same, fp8},
                                                 {"blockwise", last_place, fp8},
                                                 {"mxfp8", same, fp8},
                                                 {"tensorwise_delayed", same, fp8}})
    for (const bool fp32 : {true, false}) {
      StepSetup setup = recipe_setup(recipe, fp32);
      const DividedRun one = run_divided(undivided(setup));
      for (const bool ring : {false, true}) {
        setup.ring = ring;
        // Outputs of attention that are merged differ from one rank's in their last place, and so do some codes.
        const bool same_codes = !ring || std::string(recipe) == "bf16";
        const double most = excess(run_divided(setup), one, !fp32 ? in_bf16 : same_codes ? in_fp32 : fp8);
        INFO(recipe << (ring ? ", ring," : "") << (fp32 ? " of FP32: " : " of BF16: ") << most
                    << " of its bounds");
        CHECK(most <= 1);
      }
    }
}

TEST_CASE("context: stochastic rounding draws one rank's numbers", "[context]") {
  // MXFP4 has no scale of a whole tensor, so codes differ only by the numbers drawn, or where a value differs
  // in its last place.
  const StepSetup setup = recipe_setup("mxfp4_bwd_norht", true);
  const DividedRun one = run_divided(undivided(setup));
  CHECK(farthest(run_divided(setup).first_gradients, one.first_gradients).distance <= 1e-2);
  const StepSetup nearest = recipe_setup("mxfp4_bwd_plain", true);  // control: other codes are seen
  CHECK(farthest(run_divided(undivided(nearest)).first_gradients, one.first_gradients).distance > 0.1);
}

TEST_CASE("context: NVFP4 differs from one rank as between data ranks", "[context]") {
  // A tensor's scale is that of a rank's own tokens.
  const StepSetup context = recipe_setup("nvfp4", true);
  StepSetup data = context;
  data.parallel = {.data = 2};
  const auto from_one = [](const StepSetup& setup) {
    return farthest(run_divided(setup).first_gradients, run_divided(undivided(setup)).first_gradients)
        .distance;
  };
  CHECK(from_one(context) <= 2 * from_one(data));
}

TEST_CASE("context: experts train like on one rank, divided or not", "[context][moe][ep]") {
  for (const int expert_ranks : {1, 2, 4})
    for (const bool sharded : {false, true}) {
      StepSetup setup = reference_setup(
          {.data = sharded ? 1 : 2, .shard = sharded ? 2 : 1, .context = 2, .context_shards = sharded});
      setup.model = find_model("tiny-moe");
      setup.model.layers = 2;
      setup.expert_ranks = expert_ranks;
      INFO("ep " << expert_ranks << (sharded ? ", fsdp" : ", ddp"));
      CHECK(excess(run_divided(setup), run_divided(undivided(setup)), kFp32) <= 1);
      // AdamW moves biases that start at 0 by lr, whatever the size of their gradients.
      setup.model = like_gpt_oss();
      const DividedRun many = run_divided(setup), one = run_divided(undivided(setup));
      CHECK(farthest(many.first_gradients, one.first_gradients).distance <= kFp32.first_gradients);
      for (int i = 0; i < kDividedSteps; ++i)
        CHECK(std::fabs(many.losses[i] / one.losses[i] - 1) <= kFp32.loss);
    }
}
