// Predictions of a grid: speed-ups, what has no speed, memory, JSON, and flags that do not fit together.
#include "bench/cli/predictions.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "bench/cli/cli.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"

namespace precbench {
namespace {

SweepCommand command_of(const std::vector<std::string>& recipes, const std::string& gpus = "1") {
  SweepCommand command;
  command.dry_run = true;
  command.on = "h200";
  command.axes = {{"model", {"llama3.1-8b"}}, {"recipe", recipes},
                  {"seq", {"4096"}},          {"batch", {"1"}},
                  {"gpus", {gpus}},           {"device", {"cuda"}},
                  {"master", {"bf16"}},       {"moments", {"bf16"}},
                  {"grads", {"bf16"}},        {"parallel", {gpus == "1" ? "ddp" : "fsdp"}}};
  return command;
}

TEST_CASE("predict_grid: speed-ups are over BF16 in the same setting, with an interval",
          "[cli][predictions]") {
  const auto grid = grid_of(command_of({"bf16", "tensorwise"}));
  const auto predictions = predict_grid(grid, CostModel(find_machine("h200")));
  REQUIRE(predictions.size() == 2);
  CHECK(predictions[0].over_bf16->ratio == 1);
  const CasePrediction& fp8 = predictions[1];
  REQUIRE(fp8.over_bf16);
  CHECK(fp8.over_bf16->ratio == predictions[0].step->seconds / fp8.step->seconds);
  CHECK((fp8.over_bf16->low < fp8.over_bf16->ratio && fp8.over_bf16->ratio < fp8.over_bf16->high));
  CHECK(fp8.tokens_per_s == Approx(4096 / fp8.step->seconds));
  CHECK(fp8.fit == Fit::yes);
}

TEST_CASE("predict_grid: without BF16 in the grid there is no speed-up", "[cli][predictions]") {
  const auto grid = grid_of(command_of({"tensorwise"}));
  CHECK_FALSE(predict_grid(grid, CostModel(find_machine("h200"))).front().over_bf16);
}

TEST_CASE("predict_grid: emulated formats have memory and no speed", "[cli][predictions]") {
  const auto grid = grid_of(command_of({"mxfp8"}));
  const auto hopper = predict_grid(grid, CostModel(find_machine("h200"))).front();
  CHECK(hopper.emulated);
  CHECK_FALSE(hopper.step);
  CHECK(hopper.memory.peak > 0);
  const auto blackwell = predict_grid(grid, CostModel(find_machine("b200"))).front();
  REQUIRE(blackwell.step);
  CHECK(blackwell.step->borrowed_share() == 1);
}

TEST_CASE("fit_of: tight above 95% of the usable memory", "[cli][predictions]") {
  const Machine machine = find_machine("h200");
  const auto usable = static_cast<double>(usable_bytes(machine));
  const auto fit = [&](double share) { return fit_of(static_cast<std::int64_t>(share * usable), machine); };
  CHECK(fit(0.5) == Fit::yes);
  CHECK(fit(0.96) == Fit::tight);
  CHECK(fit(1.01) == Fit::no);
}

TEST_CASE("predictions_json: parts of a step add up to it", "[cli][predictions]") {
  const auto grid = grid_of(command_of({"bf16"}, "4"));
  const CostModel model(find_machine("h200"));
  const auto json = predictions_json(grid, predict_grid(grid, model), model);
  CHECK(json["machine"] == "h200");
  const auto& one = json["cases"][0];
  double sum = one["contention_ms"].get<double>() + one["stragglers_ms"].get<double>();
  for (const auto& [name, ms] : one["class_ms"].items()) sum += ms.get<double>();
  for (const auto& [axis, ms] : one["exposed_ms"].items()) {
    CHECK(axis == "shard");
    sum += ms.get<double>();
  }
  CHECK(sum == Approx(one["step_ms"].get<double>()));
  CHECK(one["step_ms_80"][0] < one["step_ms"]);
  CHECK(one["fits"] == "yes");
}

TEST_CASE("sweep: --on is refused without --dry-run, beside --gpu, and for an unknown machine",
          "[cli][predictions]") {
  SweepCommand command = command_of({"bf16"});
  command.dry_run = false;
  CHECK_THROWS_WITH(sweep(command),
                    Catch::Matchers::StartsWith("--on: names a machine to predict: add --dry-run"));
  command = command_of({"bf16"});
  command.gpu = "h100";
  CHECK_THROWS_WITH(sweep(command), Catch::Matchers::StartsWith("--gpu: --on names the GPU already"));
  command = command_of({"bf16"});
  command.on = "h2000";
  CHECK_THROWS_WITH(sweep(command), Catch::Matchers::StartsWith("--on: no machine \"h2000\""));
  command.on.clear();
  command.dry_run = false;
  command.json = true;
  CHECK_THROWS_WITH(sweep(command), "--json: needs --dry-run; the records of a sweep are JSON already");
}

}  // namespace
}  // namespace precbench
