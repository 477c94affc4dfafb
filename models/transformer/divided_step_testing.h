// For tests of ranks that divide sequences or matrices: trains the same sequences on one rank and on several, on CPU devices
// in which a fault may be planted, and compares.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/comm/comm_testing.h"
#include "models/transformer/step_compare.h"

namespace precbench::testing {

/// Changes no op; a fault overloads plant() for the ops that it changes.
struct NoFault {
  template <class Op>
  const Op& plant(const Op& op) const {
    return op;
  }
};

/// The CPU device, which runs every op as fault.plant() returns it.
template <class Fault>
class PlantedDevice final : public Device {
 public:
  explicit PlantedDevice(Fault fault) : inner_(make_cpu_device(1)), fault_(std::move(fault)) {}

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
  void do_##op_name(const ops::Op& op) override { inner_->op_name(fault_.plant(op)); }
  PRECBENCH_OPS(PRECBENCH_PLANTED)
#undef PRECBENCH_PLANTED

  std::unique_ptr<Device> inner_;
  Fault fault_;
};

inline constexpr int kDividedSteps = 3;

/// Results of all ranks together; gradients, norms and weights are the same on each.
struct DividedRun {
  std::array<double, kDividedSteps> losses{}, norms{};
  std::vector<float> token_losses;  ///< of a run without steps, by token of all sequences
  Named first_gradients, gradients, weights;
};

struct DividedRunOptions {
  int steps = kDividedSteps;    ///< 0: only the forward pass
  bool swapped_halves = false;  ///< each rank reads the halves of its rows in the wrong order
};

/// Trains B sequences on every group of ranks that share some.
template <class Fault = NoFault>
DividedRun run_divided(const StepSetup& setup, Fault fault = {}, const DividedRunOptions& options = {}) {
  const int ranks = setup.parallel.ranks();
  const std::int64_t all = setup.B * setup.T * setup.parallel.batch_ranks();
  std::vector<DividedRun> results(ranks);
  std::vector<float> token_losses(options.steps == 0 ? all : 0);
  on_cpu_ranks(ranks, [&](Device&, Comm& comm) {
    TestStep step(setup, std::make_unique<PlantedDevice<Fault>>(fault), &comm);
    DividedRun& mine = results[comm.rank()];
    step.parameters().initialize(1, 0.05f);
    OptimizerOptions optimizer;
    optimizer.optimizer = setup.optimizer;
    optimizer.lr = 1e-3f;
    const std::int64_t M = step.M();
    const auto tokens_of = [&](std::uint64_t seed) {
      const std::vector<std::int32_t> tokens =
          random_tokens(seed, all * setup.accumulation, setup.model.vocab);
      std::vector<std::int32_t> own;
      for (int micro = 0; micro < setup.accumulation; ++micro)
        for (std::int64_t row = 0; row < M; ++row)
          own.push_back(
              tokens[micro * all + step.rows().of(options.swapped_halves ? (row + M / 2) % M : row)]);
      return own;
    };
    if (options.steps == 0) {
      const std::vector<float> own = step.token_losses(tokens_of(10), tokens_of(20));
      for (std::int64_t row = 0; row < M; ++row) token_losses[step.rows().of(row)] = own[row];
    }
    for (int i = 0; i < options.steps; ++i) {
      mine.losses[i] =
          step.forward_backward(tokens_of(10 + i), tokens_of(20 + i)) * setup.parallel.tensor / ranks;
      step.parameters().complete_all();
      mine.gradients = step.gradients();
      if (i == 0) mine.first_gradients = mine.gradients;
      mine.norms[i] = step.update(optimizer, i);
    }
    mine.weights = step.weights();
  });
  DividedRun together = results[0];
  for (int rank = 1; rank < ranks; ++rank) {
    for (int i = 0; i < kDividedSteps; ++i) together.losses[i] += results[rank].losses[i];
    CHECK(results[rank].norms == results[0].norms);
    CHECK(first_difference(results[rank].gradients, results[0].gradients) == "");
    CHECK(first_difference(results[rank].weights, results[0].weights) == "");
  }
  together.token_losses = token_losses;
  return together;
}

/// The same sequences on one rank.
inline StepSetup undivided(StepSetup setup) {
  setup.B *= setup.parallel.batch_ranks();
  setup.parallel = {};
  setup.expert_ranks = 1;
  return setup;
}

/// Bounds of relative differences. Those of the first step come from rounding alone; later ones grow with the
/// steps, because AdamW divides small gradients by their own size.
struct DividedBounds {
  double loss, first_gradients, gradients, weights;  ///< gradients: and their norm
};
/// Sums of FP32 in another order.
inline constexpr DividedBounds kFp32{1e-6, 2e-6, 5e-5, 5e-5};

/// Returns the largest relative difference of the losses.
inline double loss_difference(const DividedRun& x, const DividedRun& reference) {
  double most = 0;
  for (int i = 0; i < kDividedSteps; ++i)
    most = std::max(most, std::fabs(x.losses[i] / reference.losses[i] - 1));
  return most;
}

/// Returns the largest relative differences in units of their bounds: 1 or less passes.
inline double excess(const DividedRun& x, const DividedRun& reference, const DividedBounds& bounds) {
  double most = loss_difference(x, reference) / bounds.loss;
  for (int i = 0; i < kDividedSteps; ++i)
    most = std::max(most, std::fabs(x.norms[i] / reference.norms[i] - 1) / bounds.gradients);
  most = std::max(most,
                  farthest(x.first_gradients, reference.first_gradients).distance / bounds.first_gradients);
  most = std::max(most, farthest(x.gradients, reference.gradients).distance / bounds.gradients);
  return std::max(most, farthest(x.weights, reference.weights).distance / bounds.weights);
}

inline std::string text_of(const ParallelDims& dims) {
  return fmt::format("data {} shard {} context {}{} tensor {}", dims.data, dims.shard, dims.context,
                     dims.context_shards ? " sharded" : "", dims.tensor);
}

}  // namespace precbench::testing
