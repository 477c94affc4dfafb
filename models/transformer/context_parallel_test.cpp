// Context parallelism: ranks that share sequences train like one rank with whole ones. Planted faults show
// that the comparison would notice wrong positions, unsorted keys and tokens that are counted on every rank.
#include <fmt/format.h>

#include <array>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/comm/comm_testing.h"
#include "models/transformer/step_compare.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr int kSteps = 3;

/// A fault in a step; `none` is the step itself.
enum class Planted : std::uint8_t { none, query_offset, late_rope, unsorted_keys, swapped_halves };

/// The CPU device with a planted fault.
class PlantedDevice final : public Device {
 public:
  explicit PlantedDevice(Planted fault) : inner_(make_cpu_device(1)), fault_(fault) {}

  std::string name() const override { return "cpu"; }
  GemmSupport support(const GemmRecipe& gemm, GemmRole role) const override {
    return inner_->support(gemm, role);
  }
  void* allocate(std::int64_t bytes) override { return inner_->allocate(bytes); }
  void deallocate(void* block) override { inner_->deallocate(block); }
  void upload(const Tensor& dst, const void* src) override { inner_->upload(dst, src); }
  void download(void* dst, const Tensor& src) override { inner_->download(dst, src); }
  void synchronize() override { inner_->synchronize(); }
  std::string attention_name() const override { return inner_->attention_name(); }
  OpSet supported_ops() const override { return inner_->supported_ops(); }

 private:
#define PRECBENCH_PLANTED(Op, op_name) \
  void do_##op_name(const ops::Op& op) override { inner_->op_name(with_fault(op)); }
  PRECBENCH_OPS(PRECBENCH_PLANTED)
#undef PRECBENCH_PLANTED

  ops::Attention with_fault(ops::Attention op) const {
    if (fault_ == Planted::query_offset) op.shape.offset += op.shape.T;
    return op;
  }
  ops::Rope with_fault(ops::Rope op) const {
    if (fault_ == Planted::late_rope) *op.options.late_offset += op.options.shape.T;
    return op;
  }
  ops::PlaceRows with_fault(ops::PlaceRows op) const {
    if (fault_ == Planted::unsorted_keys) op.parts = 1;
    return op;
  }
  template <class Op>
  const Op& with_fault(const Op& op) const {
    return op;
  }

  std::unique_ptr<Device> inner_;
  Planted fault_;
};

struct Trained {
  std::array<double, kSteps> losses{};
  std::vector<float> token_losses;  ///< before the first step, by token of all sequences
  Named first_gradients, gradients, weights;
};

/// Returns a rank's rows of [sequences of all ranks][T].
std::vector<std::int32_t> rows_of(const std::vector<std::int32_t>& all, const RowMap& map, std::int64_t count,
                                  bool swapped) {
  std::vector<std::int32_t> rows(count);
  for (std::int64_t row = 0; row < count; ++row)
    rows[row] = all[map.of(swapped ? (row + count / 2) % count : row)];
  return rows;
}

/// Trains B sequences on every group of ranks that share some; without steps only runs forward.
Trained train(const StepSetup& setup, Planted fault = Planted::none, int steps = kSteps) {
  const int ranks = setup.parallel.ranks();
  const std::int64_t all = setup.B * setup.T * setup.parallel.batch_ranks();
  std::vector<Trained> results(ranks);
  std::vector<float> token_losses(all);
  on_cpu_ranks(ranks, [&](Device&, Comm& comm) {
    TestStep step(setup, std::make_unique<PlantedDevice>(fault), &comm);
    Trained& mine = results[comm.rank()];
    step.parameters().initialize(1, 0.05f);
    OptimizerOptions optimizer;
    optimizer.optimizer = setup.optimizer;
    optimizer.lr = 1e-3f;
    const auto tokens_of = [&](std::uint64_t seed) {
      return rows_of(random_tokens(seed, all, setup.model.vocab), step.rows(), step.M(),
                     fault == Planted::swapped_halves);
    };
    const std::vector<float> own = step.token_losses(tokens_of(10), tokens_of(20));
    for (std::int64_t row = 0; row < step.M(); ++row) token_losses[step.rows().of(row)] = own[row];
    for (int i = 0; i < steps; ++i) {
      mine.losses[i] = step.forward_backward(tokens_of(10 + i), tokens_of(20 + i)) / ranks;
      step.parameters().complete_all();
      mine.gradients = step.gradients();
      if (i == 0) mine.first_gradients = mine.gradients;
      step.update(optimizer, i);
    }
    mine.weights = step.weights();
  });
  Trained together = results[0];
  for (int rank = 1; rank < ranks; ++rank) {
    for (int i = 0; i < kSteps; ++i) together.losses[i] += results[rank].losses[i];
    CHECK(first_difference(results[rank].gradients, results[0].gradients) == "");
    CHECK(first_difference(results[rank].weights, results[0].weights) == "");
  }
  together.token_losses = token_losses;
  return together;
}

/// The same sequences on one rank.
StepSetup on_one(StepSetup setup) {
  setup.B *= setup.parallel.batch_ranks();
  setup.parallel = {};
  setup.expert_ranks = 1;
  return setup;
}

/// Bounds of relative differences. Those of the first step come from rounding alone; later ones grow with the
/// steps, because AdamW divides small gradients by their own size.
struct Bounds {
  double loss, first_gradients, gradients, weights;
};

/// Returns the largest relative differences in units of their bounds: 1 or less passes.
double excess(const Trained& x, const Trained& reference, const Bounds& bounds) {
  double most = 0;
  for (int i = 0; i < kSteps; ++i)
    most = std::max(most, std::fabs(x.losses[i] / reference.losses[i] - 1) / bounds.loss);
  most = std::max(most,
                  farthest(x.first_gradients, reference.first_gradients).distance / bounds.first_gradients);
  most = std::max(most, farthest(x.gradients, reference.gradients).distance / bounds.gradients);
  return std::max(most, farthest(x.weights, reference.weights).distance / bounds.weights);
}

/// Sums of FP32 in another order.
constexpr Bounds kFp32{1e-6, 2e-6, 5e-5, 5e-5};

ModelConfig small_model() {
  ModelConfig model = find_model("tiny");
  model.layers = 2;
  return model;
}

StepSetup reference_setup(const ParallelDims& parallel, std::int64_t B = 1) {
  StepSetup setup{.model = small_model(), .B = B, .T = 32};
  setup.reference = true;
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

std::string text_of(const ParallelDims& dims) {
  return fmt::format("data {} shard {} context {}{}", dims.data, dims.shard, dims.context,
                     dims.context_shards ? " sharded" : "");
}

}  // namespace

TEST_CASE("context: an FP32 model trains like on one rank in every layout", "[context]") {
  for (const ParallelDims& parallel : layouts())
    for (const std::int64_t B : {1, 3}) {
      const StepSetup setup = reference_setup(parallel, B);
      INFO(text_of(parallel) << ", batch " << B);
      CHECK(excess(train(setup), train(on_one(setup)), kFp32) <= 1);
    }
}

TEST_CASE("context: model variants train like on one rank", "[context]") {
  StepSetup setup = reference_setup({.context = 2, .context_shards = true}, 2);
  const auto check = [&](const char* what) {
    INFO(what);
    CHECK(excess(train(setup), train(on_one(setup)), kFp32) <= 1);
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
}

TEST_CASE("context: recomputation changes no bit", "[context][moe][ep]") {
  const auto check = [](StepSetup setup) {
    const Trained kept = train(setup);
    for_each_recompute(setup, kFullRecomputeKinds, [&] {
      const Trained again = train(setup);
      CHECK(again.losses == kept.losses);
      CHECK(first_difference(again.weights, kept.weights) == "");
    });
  };
  for (const char* recipe : {"bf16", "tensorwise"})
    for (const QkNorms& norms : kQkNorms) {
      INFO(recipe << norms.name);
      StepSetup setup = recipe_setup(recipe, false);
      norms.set(setup.model);
      check(setup);
    }
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
  const Trained two = train(setup), one = train(on_one(setup));
  // The gradient of a key's bias is 0 but for rounding, because a softmax does not see what is added to all
  // scores.
  Named gradients = two.first_gradients, expected = one.first_gradients;
  for (const char* layer : {"0", "1"}) {
    const std::string name = fmt::format("model.layers.{}.self_attn.k_proj.bias", layer);
    REQUIRE(expected.contains(name));
    gradients.erase(name), expected.erase(name);
  }
  CHECK(farthest(gradients, expected).distance <= kFp32.first_gradients);
  for (int i = 0; i < kSteps; ++i) CHECK(std::fabs(two.losses[i] / one.losses[i] - 1) <= kFp32.loss);
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
    CHECK(excess(train(setup), train(on_one(setup)), kFp32) <= 1);
  }
}

TEST_CASE("context: planted faults are noticed", "[context]") {
  for (const int context : {2, 4}) {
    const StepSetup setup = reference_setup({.context = context}, 2);
    const Trained one = train(on_one(setup));
    CHECK(excess(train(setup), one, kFp32) <= 1);
    for (const Planted fault :
         {Planted::query_offset, Planted::late_rope, Planted::unsorted_keys, Planted::swapped_halves}) {
      INFO("fault " << static_cast<int>(fault) << ", context " << context);
      CHECK(excess(train(setup, fault), one, kFp32) > 10);
    }
    // Tokens counted on every rank: the gradient shrinks, and with it its norm.
    Trained counted = train(setup);
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
      CHECK((train(setup, Planted::none, 0).token_losses ==
             train(on_one(setup), Planted::none, 0).token_losses));
    }
}

TEST_CASE("context: recipes train like on one rank", "[context]") {
  // FP32 activations: the ranks quantize one rank's values with its scales. The gradients of keys and values
  // are summed in another order, and where a scale in FP32 differs in its last place, a value half way
  // between two codes may get the other one.
  const Bounds same{5e-4, 2e-6, 0.3, 1e-2}, last_place{5e-4, 1e-2, 0.3, 1e-2};
  // BF16: they are also rounded on each rank. Those of queries and keys are small beside those of values, and
  // coarse.
  const Bounds bf16{2e-4, 1.5e-2, 5e-2, 5e-3}, fp8{4e-3, 0.2, 0.6, 3e-2};
  for (const auto& [recipe, in_fp32, in_bf16] : {std::tuple{"bf16", kFp32, bf16},
                                                 {"tensorwise", same, fp8},
                                                 {"rowwise", same, fp8},
                                                 {"blockwise", last_place, fp8},
                                                 {"mxfp8", same, fp8},
                                                 {"tensorwise_delayed", same, fp8}})
    for (const bool fp32 : {true, false}) {
      const StepSetup setup = recipe_setup(recipe, fp32);
      const double most = excess(train(setup), train(on_one(setup)), fp32 ? in_fp32 : in_bf16);
      INFO(recipe << (fp32 ? " of FP32: " : " of BF16: ") << most << " of its bounds");
      CHECK(most <= 1);
    }
}

TEST_CASE("context: stochastic rounding draws one rank's numbers", "[context]") {
  // MXFP4 has no scale of a whole tensor, so codes differ only by the numbers drawn, or where a value differs
  // in its last place.
  const StepSetup setup = recipe_setup("mxfp4_bwd_norht", true);
  const Trained one = train(on_one(setup));
  CHECK(farthest(train(setup).first_gradients, one.first_gradients).distance <= 1e-2);
  const StepSetup nearest = recipe_setup("mxfp4_bwd_plain", true);  // control: other codes are seen
  CHECK(farthest(train(on_one(nearest)).first_gradients, one.first_gradients).distance > 0.1);
}

TEST_CASE("context: NVFP4 differs from one rank as between data ranks", "[context]") {
  // A tensor's scale is that of a rank's own tokens.
  const StepSetup context = recipe_setup("nvfp4", true);
  StepSetup data = context;
  data.parallel = {.data = 2};
  const auto from_one = [](const StepSetup& setup) {
    return farthest(train(setup).first_gradients, train(on_one(setup)).first_gradients).distance;
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
      CHECK(excess(train(setup), train(on_one(setup)), kFp32) <= 1);
      // AdamW moves biases that start at 0 by lr, whatever the size of their gradients.
      setup.model = like_gpt_oss();
      const Trained many = train(setup), one = train(on_one(setup));
      CHECK(farthest(many.first_gradients, one.first_gradients).distance <= kFp32.first_gradients);
      for (int i = 0; i < kSteps; ++i) CHECK(std::fabs(many.losses[i] / one.losses[i] - 1) <= kFp32.loss);
    }
}
