// A run that changes its recipe on a GPU: each recipe's step is captured as a graph of its own and gives the
// bits of steps that run op by op.
#include "bench/step/rank_testing.h"
#include "bench/step/step_runner.h"
#include "kernels/gpu/gpu_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

std::vector<double> losses_of(const Plan& plan, GraphMode graph) {
  std::vector<double> losses;
  run_gpu_ranks(plan, [&](Rank& rank, const DataSource& data) {
    StepRunner runner(rank, data, graph);
    for (std::int64_t step = 0; step < plan.fields.steps; ++step)
      losses.push_back(runner.run(step, 0).result.loss);
  });
  return losses;
}

}  // namespace

TEST_CASE("StepRunner: a recipe switch on a GPU recaptures the graph and equals eager steps", "[gpu][rank]") {
  if (!gpu_here()) return;
  Case c;
  c.recipe = "tensorwise";
  c.batch = 2;
  c.steps = 8;
  c.lr = 1e-3;
  const std::vector<double> alone = losses_of(validate(c), GraphMode::on);
  c.switch_recipe = "rowwise@3,bf16@6";
  const std::vector<double> graphs = losses_of(validate(c), GraphMode::on);
  CHECK(graphs == losses_of(validate(c), GraphMode::off));
  CHECK(std::vector(graphs.begin(), graphs.begin() + 3) == std::vector(alone.begin(), alone.begin() + 3));
  CHECK(graphs[3] != alone[3]);
}
