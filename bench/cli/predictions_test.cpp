// Predictions of a grid: speed-ups, what has no speed, memory, JSON, and flags that do not fit together.
#include "bench/cli/predictions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/cli/cli.h"
#include "bench/cli/cli_testing.h"
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

TEST_CASE("predict_grid: FP8 rows of experts are part of the recipe that is compared with BF16",
          "[cli][predictions]") {
  std::vector<Plan> grid;
  for (const auto& [recipe, dispatch] : {std::pair("bf16", "bf16"), {"blockwise", "fp8"}}) {
    SweepCommand command = command_of({recipe}, "8");
    command.axes["model"] = {"qwen3-30b-a3b"};
    command.axes["ep"] = {"8"};
    command.axes["exchange"] = {"slots"};
    command.axes["dispatch"] = {dispatch};
    grid.push_back(grid_of(command).front());
  }
  const auto predictions = predict_grid(grid, CostModel(find_machine("h200")));
  REQUIRE(predictions.size() == 2);
  REQUIRE(predictions[1].step);
  CHECK(predictions[1].over_bf16);
}

TEST_CASE("predict_grid: emulated formats have memory and no speed", "[cli][predictions]") {
  const auto grid = grid_of(command_of({"mxfp8"}));
  const auto hopper = predict_grid(grid, CostModel(find_machine("h200"))).front();
  CHECK(hopper.emulated);
  CHECK_FALSE(hopper.step);
  CHECK(hopper.memory.peak > 0);
  const auto blackwell = predict_grid(grid, CostModel(find_machine("b200"))).front();
  REQUIRE(blackwell.step);
  CHECK((blackwell.step->borrowed_share() > 0 && blackwell.step->borrowed_share() < 1));
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

SweepCommand layout_command(const std::vector<std::string>& pipelines) {
  SweepCommand command = command_of({"bf16", "tensorwise"}, "32");
  command.axes["tensor"] = {"2"};
  command.axes["pipeline"] = pipelines;
  command.axes["accumulation"] = {"8"};
  return command;
}

TEST_CASE("predictions_json: layouts have their stages and bubble, and their parts add up", "[cli][layout]") {
  const auto grid = grid_of(layout_command({"1", "4"}));
  const CostModel model(find_machine("h200"));
  const auto json = predictions_json(grid, predict_grid(grid, model), model);
  REQUIRE(json["cases"].size() == 4);
  for (const auto& one : json["cases"]) {
    INFO(one.dump(2));
    REQUIRE(one.contains("step_ms"));
    const auto stages = one["case"]["pipeline"].get<std::size_t>();
    REQUIRE(one["stages"].size() == stages);
    double sum = one["contention_ms"].get<double>() + one["stragglers_ms"].get<double>() +
                 one["bubble_ms"].get<double>();
    CHECK((one["bubble_ms"] > 0) == (stages > 1));
    for (const auto& [name, ms] : one["class_ms"].items()) sum += ms.get<double>();
    CHECK(one["exposed_ms"]["tensor"] > 0);
    for (const auto& [axis, ms] : one["exposed_ms"].items()) sum += ms.get<double>();
    CHECK(sum == Approx(one["step_ms"].get<double>()).epsilon(1e-3));
    std::int64_t layers = 0, most = 0;
    for (const auto& stage : one["stages"]) {
      layers += stage["layers"].get<std::int64_t>();
      most = std::max(most, stage["memory_bytes"].get<std::int64_t>());
      std::int64_t bytes = 0;
      for (const char* part : {"state_bytes", "buffer_bytes", "activation_bytes"})
        bytes += stage[part].get<std::int64_t>();
      CHECK(stage["memory_bytes"] == bytes);
    }
    CHECK(layers == 32);
    CHECK(one["memory_bytes"] == most);
    // 32 GPUs are 16 or 4 replicas of 8 micro-batches of 4,096 tokens.
    CHECK(one["tokens_per_s"].get<double>() * one["step_ms"].get<double>() / 1e3 ==
          Approx(32.0 / 2 / static_cast<double>(stages) * 8 * 4096));
    if (one["case"]["recipe"] == "tensorwise") CHECK(one["over_bf16"] > 1);
  }
}

TEST_CASE("predict_grid: --tensor 1 --pipeline 1 changes nothing", "[cli][layout]") {
  const CostModel model(find_machine("h200"));
  const auto text = [&](const SweepCommand& command) {
    const auto grid = grid_of(command);
    return predictions_json(grid, predict_grid(grid, model), model).dump();
  };
  for (const char* gpus : {"1", "4"}) {
    SweepCommand command = command_of({"bf16", "tensorwise", "blockwise"}, gpus);
    const std::string before = text(command);
    for (const char* name : {"tensor", "pipeline", "virtual_stages"}) command.axes[name] = {"1"};
    command.axes["micro_batches"] = {"auto"};
    CHECK(text(command) == before);
  }
}

TEST_CASE("predict_grid: layouts that cannot be are rows among others, and an error alone", "[cli][layout]") {
  const CostModel model(find_machine("h200"));
  const auto predictions = predict_grid(grid_of(layout_command({"4", "5"})), model);
  REQUIRE(predictions.size() == 4);
  CHECK(std::count_if(predictions.begin(), predictions.end(), [](const CasePrediction& p) {
          return p.failure.starts_with("unsupported: --pipeline 5: 32 layers, or 34");
        }) == 2);
  CHECK_THROWS_WITH(predict_grid(grid_of(layout_command({"5"})), model),
                    Catch::Matchers::StartsWith("--pipeline 5: 32 layers, or 34 with embedding and head"));
}

TEST_CASE("predict_grid: an emulated layout has memory and no speed", "[cli][layout]") {
  SweepCommand command = layout_command({"4"});
  command.axes["recipe"] = {"mxfp8"};
  const CasePrediction p = predict_grid(grid_of(command), CostModel(find_machine("h200"))).front();
  CHECK(p.emulated);
  CHECK_FALSE(p.step);
  CHECK(p.stages.size() == 4);
  CHECK(p.memory.peak > 0);
}

TEST_CASE("predict_grid: another stack's speed is ours times its factor, with an interval of both",
          "[cli][predictions][stack]") {
  const auto grid = grid_of(command_of({"bf16", "tensorwise", "blockwise"}));
  const CostModel model(find_machine("h200"));
  const auto ours = predict_grid(grid, model), theirs = predict_grid(grid, model, Stack::pytorch);
  REQUIRE(theirs.size() == 3);
  CHECK_FALSE(ours[0].stack);
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    INFO(i);
    const CasePrediction& p = theirs[i];
    CHECK(p.tokens_per_s == ours[i].tokens_per_s);  // our own stays
    REQUIRE(p.stack);
    CHECK(p.stack->tokens_per_s.ratio == Approx(p.tokens_per_s * p.stack->factor.factor));
    const double own_width = std::log(p.step->high() / p.step->low());
    CHECK(std::log(p.stack->tokens_per_s.high / p.stack->tokens_per_s.low) > own_width);
  }
  CHECK(theirs[0].stack->over_bf16->ratio == 1);
  const SpeedUp& speedup = *theirs[1].stack->over_bf16;
  CHECK(speedup.ratio == Approx(theirs[1].stack->tokens_per_s.ratio / theirs[0].stack->tokens_per_s.ratio));
  CHECK(speedup.low < speedup.ratio);
  CHECK(speedup.high / speedup.low < theirs[1].stack->tokens_per_s.high / theirs[1].stack->tokens_per_s.low *
                                         theirs[0].stack->tokens_per_s.high /
                                         theirs[0].stack->tokens_per_s.low);
  CHECK(theirs[1].stack->no_evidence.empty());
  CHECK(theirs[2].stack->no_evidence.front() == "no evidence for blockwise with pytorch");
  const auto json = predictions_json(grid, theirs, model, Stack::pytorch);
  CHECK(json["stack"] == "pytorch");
  CHECK(json["cases"][1]["stack"]["over_bf16"] == speedup.ratio);
  CHECK(json["cases"][2]["stack"]["no_evidence"].size() == theirs[2].stack->no_evidence.size());
  CHECK_FALSE(predictions_json(grid, ours, model)["cases"][0].contains("stack"));
}

TEST_CASE("sweep: --stack needs a predicted step and a known stack", "[cli][predictions][stack]") {
  SweepCommand command = command_of({"bf16"});
  command.stack = "pytorc";
  CHECK_THROWS_WITH(sweep(command),
                    Catch::Matchers::StartsWith("--stack: unknown stack \"pytorc\"; known: precbench"));
  command.stack = "pytorch";
  command.on.clear();
  CHECK_THROWS_WITH(sweep(command), Catch::Matchers::StartsWith(
                                        "--stack: pytorch: its speed is predicted: add --dry-run --on"));
}

TEST_CASE("sweep: --stack prints both speeds, and what has no evidence", "[cli][predictions][stack]") {
  const std::string command =
      "sweep --dry-run --on b200 --model llama3.2-1b --recipe bf16,mxfp8 --seq 1024 --batch 1 --stack megatron";
  const Answer answer = testing::precbench_says(command);
  CHECK(answer.status == 0);
  CHECK(answer.text.find("megatron over bf16 (80%)") != std::string::npos);
  CHECK(answer.text.find("over bf16 (80%)") < answer.text.find("megatron over bf16 (80%)"));
  CHECK(answer.text.find("no evidence for bf16 with megatron: ") != std::string::npos);
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
