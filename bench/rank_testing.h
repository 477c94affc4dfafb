// For tests: the ranks of a plan on the CPU, as a case runs them.
#pragma once

#include <memory>

#include "bench/rank.h"
#include "bench/team_testing.h"
#include "models/step_testing.h"

namespace precbench {

/// The tokens of a case without --data.
inline std::unique_ptr<DataSource> synthetic_data(const Plan& plan) {
  return open_data({.path = "", .glob = "", .seed = 1, .vocab = plan.model.vocab, .T = plan.T});
}

/// body(rank, data) on every rank of the plan, each in `bytes` of memory that holds NaN.
template <class Body>
void run_cpu_ranks(const Plan& plan, std::int64_t bytes, Body&& body) {
  const std::unique_ptr<DataSource> data = synthetic_data(plan);
  run_cpu_team(all_ranks(plan.ranks), [&](int, Device& device, Comm& comm) {
    const testing::NanBlock block(device, bytes);
    Rank rank(device, comm, plan, block.data(), bytes);
    body(rank, *data);
  });
}

}  // namespace precbench
