// Delayed scaling in a captured step on a GPU gives the bits of steps that run op by op: with histories
// updated by micro-steps, with a window that ends inside a step, and with a history per rank.
#include <mutex>

#include "bench/step/delayed_testing.h"
#include "bench/step/step_runner.h"
#include "kernels/gpu/gpu_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

struct ScalesAndLosses {
  std::vector<double> losses;
  std::vector<delayed::State> scales;  ///< by rank
  bool operator==(const ScalesAndLosses&) const = default;
};

ScalesAndLosses train(const Plan& plan, GraphMode graph) {
  ScalesAndLosses trained;
  trained.scales.resize(plan.ranks);
  std::mutex mutex;
  run_gpu_ranks(plan, [&](Rank& rank, const DataSource& data) {
    StepRunner runner(rank, data, graph);
    std::vector<double> losses;
    for (std::int64_t step = 0; step < 6; ++step) losses.push_back(runner.run(step, 0).result.loss);
    delayed::State scales = delayed::scales_of(rank);
    const std::lock_guard lock(mutex);
    trained.scales[rank.comm().rank()] = std::move(scales);
    if (rank.comm().rank() == 0) trained.losses = losses;
  });
  return trained;
}

Plan plan_with(const nlohmann::json& history, int ranks) {
  const TempDirectory directory;
  Case c;
  c.recipe = directory.write("mine.json", delayed::with_history("tensorwise_delayed", history).dump());
  c.batch = 2;
  c.gpus = ranks;
  c.accumulation = 2;
  c.lr = 1e-3;
  return validate(c);
}

const nlohmann::json kHistories[] = {
    {{"update", "step"}},
    {{"update", "micro"}},
    {{"update", "micro"}, {"first", "window"}, {"length", 5}},
    {{"update", "micro"}, {"reduce", false}},
    {{"reduce", false}},
};

void check_graphs(int ranks) {
  std::vector<ScalesAndLosses> all;
  for (const nlohmann::json& history : kHistories) {
    INFO(history << " on " << ranks << " ranks");
    const Plan plan = plan_with(history, ranks);
    all.push_back(train(plan, GraphMode::on));
    CHECK(all.back() == train(plan, GraphMode::off));
  }
  CHECK(all[0].losses != all[1].losses);
  CHECK((all[0].losses != all[4].losses) == (ranks > 1));
  if (ranks > 1) CHECK(all[1].scales[0] == all[1].scales[1]);
  if (ranks > 1) CHECK(all[3].scales[0] != all[3].scales[1]);
}

}  // namespace

TEST_CASE("delayed scaling: a captured step equals an eager one on one GPU", "[gpu][delayed]") {
  if (gpu_here()) check_graphs(1);
}

TEST_CASE("delayed scaling: captured steps equal eager ones on two GPUs with shared and own histories",
          "[gpu][delayed]") {
  if (gpus_or_skip() >= 2) check_graphs(2);
}
