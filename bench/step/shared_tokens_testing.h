// For tests of ranks that share tokens (context, tensor): comparisons with one rank, predicted memory, and ranks that fail in
// an exchange.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/step/rank_setup_testing.h"

namespace precbench::testing {

/// Returns the largest relative difference of the losses.
inline double loss_difference(const Trained& x, const Trained& y) {
  double most = 0;
  for (int i = 0; i < kSteps; ++i) most = std::max(most, std::fabs(x.losses[i] / y.losses[i] - 1));
  return most;
}

/// Returns the largest relative difference of losses, gradients and weights.
inline double largest_difference(const Trained& x, const Trained& y) {
  return std::max({loss_difference(x, y), farthest(x.gradients, y.gradients).distance,
                   farthest(x.weights, y.weights).distance});
}

/// The same sequences on one rank.
inline Setup on_one_rank(Setup setup) {
  setup.batch *= setup.ranks / (setup.context * setup.tensor);
  setup.ranks = setup.context = setup.tensor = setup.shard_group = setup.ep = 1;
  setup.parallel = "ddp";
  return setup;
}

/// Checks that every rank's peak of memory is the predicted one.
inline void check_predicted_memory(const Plan& plan) {
  const DryRun accounts = dry_run(plan, nullptr);
  std::vector<std::int64_t> peaks(plan.ranks);
  with_ranks(plan, [&](Rank& rank, const DataSource& data) {
    rank.parameters().initialize(plan.seed, kInitialDeviation);
    step(rank, data, 0);
    peaks[rank.comm().rank()] = rank.arena().peak().total();
  });
  for (const std::int64_t peak : peaks) CHECK(peak == accounts.peak.total());
}

/// Checks that the ranks divide the FLOPs of the same step on one rank.
inline void check_divided_flops(const Setup& setup) {
  const Plan many = plan_of(setup), one = plan_of(on_one_rank(setup));
  CHECK(dry_run(many, nullptr).model_flops() * setup.ranks ==
        Approx(dry_run(one, nullptr).model_flops()).epsilon(1e-9));
  CHECK(many.tokens_per_step() == one.tokens_per_step());
}

/// Throws when a step's communication begins for the n-th time; never if n is negative.
class BreakingComm final : public OpObserver {
 public:
  explicit BreakingComm(int at) : at_(at) {}
  void begin(const OpCost&) override {
    if (number_++ == at_) throw std::runtime_error("the cable is out");
  }
  void end(const OpCost&) override {}
  int number() const { return number_; }

 private:
  int at_, number_ = 0;
};

/// Checks that a rank that fails in any exchange of a step, of which there are more than `fewest`, releases the others.
inline void check_failures_release(const Plan& plan, int fewest) {
  int exchanges = 1;
  for (int at = 0; at < exchanges; ++at) {
    std::string error;
    std::atomic<int> finished = 0, seen = 0;
    try {
      with_ranks(plan, [&](Rank& rank, const DataSource& data) {
        rank.parameters().initialize(plan.seed, kInitialDeviation);
        const bool bad = rank.comm().rank() == at % plan.ranks;
        BreakingComm breaks(at - 1);
        if (bad) rank.comm().set_observer(&breaks);
        step(rank, data, 0);
        if (bad) seen = breaks.number();
        ++finished;
      });
    } catch (const std::runtime_error& e) {
      error = e.what();
    }
    if (at == 0) {  // without a failure: counts the exchanges
      exchanges = seen + 1;
      CHECK(exchanges > fewest);
      CHECK(finished == plan.ranks);
      continue;
    }
    INFO("exchange " << at - 1);
    CHECK(error == fmt::format("rank {}: the cable is out", at % plan.ranks));
    CHECK(finished == 0);
  }
}

}  // namespace precbench::testing
