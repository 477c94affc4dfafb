// The sweep files of the repository are valid, and those that repeat a published study have its grid.
#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "bench/cli/cli.h"
#include "bench/predict/predict.h"
#include "bench/predict/published_setting.h"
#include "kernels/testing/catch.h"

using namespace precbench;

namespace {

std::vector<Plan> grid_of_file(const std::string& name) {
  SweepCommand command;
  command.config = PRECBENCH_SOURCE_DIR "/bench/sweeps/" + name;
  return grid_of(command);
}

/// Returns the largest peak GPU memory of any case, in bytes. Checks that every case can run.
std::int64_t largest_peak(const std::vector<Plan>& grid) {
  std::int64_t largest = 0;
  for (const Plan& plan : grid) {
    const Case& c = plan.fields;
    INFO(c.model << " " << c.recipe << " seq " << c.seq << " gpus " << c.gpus << " gather " << c.gather);
    const Prediction prediction = predict(plan);
    CHECK(!prediction.unsupported);
    largest = std::max(largest, prediction.memory.peak);
  }
  return largest;
}

constexpr std::int64_t kB200 = 180'000'000'000;  ///< bytes, as published with the studies

}  // namespace

TEST_CASE("bench/sweeps: every sweep file is valid", "[sweep-file]") {
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(PRECBENCH_SOURCE_DIR "/bench/sweeps")) {
    if (entry.path().extension() != ".toml") continue;
    INFO(entry.path());
    CHECK(grid_of_file(entry.path().filename()).size() > 1);
    ++seen;
  }
  CHECK(seen >= 4);
}

TEST_CASE("b200-blog.toml: the grid is the 78 published cases and fits a B200", "[sweep-file]") {
  const auto grid = grid_of_file("b200-blog.toml");
  // Four models on 1, 2 and 4 GPUs, the fifth on 4 alone; each at 3 lengths in 2 precisions.
  CHECK(grid.size() == (4 * 3 + 1) * 3 * 2);
  std::set<std::string> different;
  for (const Plan& plan : grid) {
    const Case& c = plan.fields;
    different.insert(c.model + c.recipe + std::to_string(c.seq) + "x" + std::to_string(c.gpus));
    CHECK((c.lr == 1e-5 && c.seed == 42 && c.batch == 1 && c.clip == 0));
    CHECK((c.parallel == "fsdp" && c.master == "bf16" && c.data != "synthetic"));
    CHECK((c.gather == "fp8") == (c.recipe == "tensorwise" && c.gpus > 1));
    CHECK((c.model != "qwen3-14b" || c.gpus == 4));
  }
  CHECK(different.size() == grid.size());
  CHECK(largest_peak(grid) < kB200);
}

TEST_CASE("one-gpu-plateau.toml: only recipe and weights and batch and GPUs vary", "[sweep-file]") {
  const auto grid = grid_of_file("one-gpu-plateau.toml");
  CHECK(grid.size() == 3 * 3 * 4 * 2 * 3 + 3 * 3);
  std::set<std::string> rest;
  for (const Plan& plan : grid)
    if (const Case& c = plan.fields; c.model == "llama3.2-1b")
      rest.insert(c.gather + c.moments + c.grads + c.head + c.parallel);
  CHECK(rest.size() == 1);
  CHECK(largest_peak(grid) < 141'000'000'000);
}

TEST_CASE("crusoe.toml: the 70B grid has the published GPU counts and fits a B200", "[sweep-file]") {
  const auto grid = grid_of_file("crusoe.toml");
  CHECK(grid.size() == 2 * 2 + 2 * 2);
  std::set<int> gpus;
  for (const Plan& plan : grid) gpus.insert(plan.ranks);
  CHECK(gpus == std::set<int>{32, 1504, 1856});
  CHECK(largest_peak(grid) < kB200);
}

TEST_CASE("crusoe.toml: the setting is that of the published points beside predictions", "[sweep-file]") {
  const auto grid = grid_of_file("crusoe.toml");
  int compared = 0;
  for (const PublishedPoint& point : read_points(PRECBENCH_SOURCE_DIR "/results/published/points.json")) {
    if (!point.id.starts_with("crusoe-2509")) continue;
    const PublishedSetting published = published_setting(point);
    for (const Plan& plan : grid) {
      const Case& c = plan.fields;
      if (plan.ranks != *point.gpus || c.recipe != published.c.recipe) continue;
      INFO(point.id);
      CHECK(published_machine(point).name == "b200");
      CHECK(parameter_count(plan.model) == parameter_count(published.model));
      CHECK(c.context == published.layout.context);
      for (const auto member : {&Case::seq, &Case::batch, &Case::accumulation, &Case::shard_group})
        CHECK(c.*member == published.c.*member);
      for (const auto member :
           {&Case::parallel, &Case::gather, &Case::recompute, &Case::master, &Case::moments})
        CHECK(c.*member == published.c.*member);
      ++compared;
    }
  }
  CHECK(compared == 2);
}

TEST_CASE("torchao-moe.toml and fp8-flow-moe.toml: the predicted fits are the published ones",
          "[sweep-file]") {
  const auto scout = grid_of_file("torchao-moe.toml");
  CHECK(scout.size() == 2 + 2);
  CHECK(largest_peak(scout) < kB200);
  constexpr std::int64_t k80 = 80'000'000'000;
  const auto flow = grid_of_file("fp8-flow-moe.toml");
  CHECK(flow.size() == 4 * 4 + 4 * 3);
  std::set<std::string> fitting;
  for (const Plan& plan : flow)
    if (largest_peak({plan}) < k80) fitting.insert(plan.fields.model + " " + std::to_string(plan.fields.ep));
  CHECK(fitting == std::set<std::string>{"deepseek-v3-gqa 256", "qwen3-235b-a22b 32"});
}
