// Tensor parallelism: ranks that divide all matrices train like one rank. Planted faults show that the comparison would
// notice targets of another rank's vocabulary, unsummed partial outputs, and gains that are not summed.
#include <fmt/format.h>

#include <array>
#include <string>
#include <vector>

#include "kernels/comm/comm_testing.h"
#include "models/transformer/step_compare.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr int kTensorSteps = 3;

/// A fault in a step; `none` is the step itself.
enum class TensorFault : std::uint8_t { none, target_off, foreign_tokens };

/// The CPU device with a planted fault.
class TensorFaultDevice final : public Device {
 public:
  explicit TensorFaultDevice(TensorFault fault) : inner_(make_cpu_device(1)), fault_(fault) {}

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
#define PRECBENCH_TENSOR_FAULT(Op, op_name) \
  void do_##op_name(const ops::Op& op) override { inner_->op_name(with_fault(op)); }
  PRECBENCH_OPS(PRECBENCH_TENSOR_FAULT)
#undef PRECBENCH_TENSOR_FAULT

  ops::LogitStats with_fault(ops::LogitStats op) const {
    if (fault_ == TensorFault::target_off) op.first = 0;
    return op;
  }
  ops::Embedding with_fault(ops::Embedding op) const {
    if (fault_ == TensorFault::foreign_tokens) op.first = 0;
    return op;
  }
  template <class Op>
  const Op& with_fault(const Op& op) const {
    return op;
  }

  std::unique_ptr<Device> inner_;
  TensorFault fault_;
};

struct TensorTrained {
  std::array<double, kTensorSteps> losses{}, norms{};
  Named first_gradients, gradients, weights;
};

/// Trains B sequences on every group of ranks that share some.
TensorTrained train_tensor(const StepSetup& setup, TensorFault fault = TensorFault::none) {
  const int ranks = setup.parallel.ranks();
  const std::int64_t all = setup.B * setup.T * setup.parallel.batch_ranks();
  std::vector<TensorTrained> results(ranks);
  on_cpu_ranks(ranks, [&](Device&, Comm& comm) {
    TestStep step(setup, std::make_unique<TensorFaultDevice>(fault), &comm);
    TensorTrained& mine = results[comm.rank()];
    step.parameters().initialize(1, 0.05f);
    OptimizerOptions optimizer;
    optimizer.optimizer = setup.optimizer;
    optimizer.lr = 1e-3f;
    const auto tokens_of = [&](std::uint64_t seed) {
      const std::vector<std::int32_t> tokens =
          random_tokens(seed, all * setup.accumulation, setup.model.vocab);
      std::vector<std::int32_t> own;
      for (int micro = 0; micro < setup.accumulation; ++micro)
        for (std::int64_t row = 0; row < step.M(); ++row)
          own.push_back(tokens[micro * all + step.rows().of(row)]);
      return own;
    };
    for (int i = 0; i < kTensorSteps; ++i) {
      mine.losses[i] =
          step.forward_backward(tokens_of(10 + i), tokens_of(20 + i)) * setup.parallel.tensor / ranks;
      step.parameters().complete_all();
      mine.gradients = step.gradients();
      if (i == 0) mine.first_gradients = mine.gradients;
      mine.norms[i] = step.update(optimizer, i);
    }
    mine.weights = step.weights();
  });
  TensorTrained together = results[0];
  for (int rank = 1; rank < ranks; ++rank) {
    for (int i = 0; i < kTensorSteps; ++i) together.losses[i] += results[rank].losses[i];
    CHECK(results[rank].norms == results[0].norms);
    CHECK(first_difference(results[rank].gradients, results[0].gradients) == "");
    CHECK(first_difference(results[rank].weights, results[0].weights) == "");
  }
  return together;
}

/// The same sequences on one rank.
StepSetup undivided(StepSetup setup) {
  setup.B *= setup.parallel.batch_ranks();
  setup.parallel = {};
  return setup;
}

/// Largest relative differences of losses, the first step's gradients, and those of the last step, norms and weights.
struct Apart {
  double loss = 0, first_gradients = 0, rest = 0;
};
Apart apart(const TensorTrained& x, const TensorTrained& reference) {
  Apart most{.first_gradients = farthest(x.first_gradients, reference.first_gradients).distance,
             .rest = std::max(farthest(x.gradients, reference.gradients).distance,
                              farthest(x.weights, reference.weights).distance)};
  for (int i = 0; i < kTensorSteps; ++i) {
    most.loss = std::max(most.loss, std::fabs(x.losses[i] / reference.losses[i] - 1));
    most.rest = std::max(most.rest, std::fabs(x.norms[i] / reference.norms[i] - 1));
  }
  return most;
}

ModelConfig divisible_model() {
  ModelConfig model = find_model("tiny");
  model.layers = 2, model.heads = 8, model.kv_heads = 4, model.head_dim = 16;
  return model;
}

StepSetup fp32_setup(const ParallelDims& parallel, std::int64_t B = 1) {
  StepSetup setup{.model = divisible_model(), .B = B, .T = 32};
  setup.reference = true;
  setup.parallel = parallel;
  return setup;
}

std::string layout_text(const ParallelDims& dims) {
  return fmt::format("data {} shard {} context {}{} tensor {}", dims.data, dims.shard, dims.context,
                     dims.context_shards ? " sharded" : "", dims.tensor);
}

void check_fp32(const StepSetup& setup) {
  INFO(layout_text(setup.parallel));
  const Apart most = apart(train_tensor(setup), train_tensor(undivided(setup)));
  INFO(most.loss << " " << most.first_gradients << " " << most.rest);
  // Sums of FP32 in another order. AdamW divides small gradients by their own size, so later steps differ more.
  CHECK(most.loss <= 1e-6);
  CHECK(most.first_gradients <= 2e-6);
  CHECK(most.rest <= 5e-5);
}

}  // namespace

TEST_CASE("tensor: an FP32 model trains like on one rank in every layout", "[tensor]") {
  for (const ParallelDims& parallel : {ParallelDims{.tensor = 2},
                                       {.tensor = 4},
                                       {.data = 2, .tensor = 2},
                                       {.shard = 2, .tensor = 2},
                                       {.data = 2, .shard = 2, .tensor = 2},
                                       {.context = 2, .tensor = 2},
                                       {.shard = 2, .context = 2, .tensor = 2, .context_shards = true}})
    check_fp32(fp32_setup(parallel));
}

TEST_CASE("tensor: model variants train like on one rank", "[tensor]") {
  StepSetup setup = fp32_setup({.tensor = 2}, 3);
  setup.model.tied = !setup.model.tied;
  check_fp32(setup);
  setup.model.qk_norm = true;
  setup.model.kv_heads = setup.model.heads;
  check_fp32(setup);
  setup.accumulation = 2;
  check_fp32(setup);
  setup.parallel = {.shard = 2, .tensor = 2};
  check_fp32(setup);
  setup.recompute = kRecomputeBlocks;
  check_fp32(setup);
}

TEST_CASE("tensor: with shared amaxes or whole blocks an FP32 model has one rank's scales", "[tensor]") {
  // With the same scales, rounding of sums may change a code here and there: measured 5e-7, and 0.16 without.
  constexpr double kFewCodes = 2e-2;
  for (const char* recipe : {"tensorwise", "mxfp8"}) {
    StepSetup setup = fp32_setup({.tensor = 2});
    setup.T = 128, setup.recipe = find_recipe(recipe), setup.model.layers = 1;
    setup.reduce_amax = true;
    const TensorTrained one = train_tensor(undivided(setup));
    const auto first_apart = [&] {
      return farthest(train_tensor(setup).first_gradients, one.first_gradients).distance;
    };
    const double shared = first_apart();
    setup.reduce_amax = false;  // slices of inputs and weights have scales of their own
    const double own = first_apart();
    INFO(recipe << ": " << shared << ", without shared amaxes " << own);
    CHECK(shared <= kFewCodes);
    CHECK((own > 5 * kFewCodes) == (recipe == std::string("tensorwise")));
  }
}

TEST_CASE("tensor: a fault in one rank's part of the vocabulary would be noticed", "[tensor]") {
  const StepSetup setup = fp32_setup({.tensor = 2});
  const TensorTrained one = train_tensor(undivided(setup));
  CHECK(apart(train_tensor(setup, TensorFault::target_off), one).loss > 1e-3);
  CHECK(apart(train_tensor(setup, TensorFault::foreign_tokens), one).loss > 1e-4);
}
