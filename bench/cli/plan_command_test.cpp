// The command `plan`: proposals that fit and that a dry run confirms, and errors that name the flag.
#include "bench/cli/plan_command.h"

#include <nlohmann/json.hpp>
#include <string>

#include "bench/cli/cli_testing.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

namespace precbench {
namespace {

using testing::precbench_says;
using testing::refused;

constexpr const char* kSmall =
    "plan --model llama3.2-1b --layers 4 --on h100 --gpus 8 --seq 2048 --global-batch 32";

TEST_CASE("plan: proposals are confirmed by a dry run with their flags", "[plan]") {
  const auto answer = precbench_says(std::string(kSmall) + " --recipe bf16,tensorwise --tensor 1,2 --json");
  REQUIRE(answer.status == 0);
  const auto plan = nlohmann::json::parse(answer.text);
  REQUIRE(plan["recipes"].size() == 2);
  for (const auto& recipe : plan["recipes"]) {
    REQUIRE(recipe["proposals"].size() == 3);
    double last = 0;
    for (const auto& proposal : recipe["proposals"]) {
      CHECK(proposal["step_ms"] >= last);
      last = proposal["step_ms"];
      CHECK(proposal["tensor"] <= 2);
      CHECK(proposal["fits"] != "no");
    }
    const auto& best = recipe["proposals"][0];
    const auto dry = precbench_says("sweep --dry-run --json --on h100 " + best["flags"].get<std::string>() +
                                    " 2>/dev/null");
    const auto confirmed = nlohmann::json::parse(dry.text)["cases"][0];
    CHECK(confirmed["step_ms"] == best["step_ms"]);
    CHECK(confirmed["memory_bytes"] == best["memory_bytes"]);
  }
}

TEST_CASE("plan: memory is that of the activations that --kept keeps", "[plan][kept]") {
  std::int64_t bytes[2];
  for (const bool all : {false, true}) {
    const auto answer =
        precbench_says(std::string(kSmall) +
                       " --recipe tensorwise --tensor 1 --pipeline 1 --context 1 --batch 1 --parallel ddp" +
                       " --recompute none --json --kept " + (all ? "torchao" : "precbench"));
    REQUIRE(answer.status == 0);
    const auto best = nlohmann::json::parse(answer.text)["recipes"].back()["proposals"][0];
    CHECK(contains(best["flags"], "--kept torchao") == all);
    const auto dry = precbench_says("sweep --dry-run --json --on h100 " + best["flags"].get<std::string>() +
                                    " 2>/dev/null");
    bytes[all] = best["memory_bytes"];
    CHECK(nlohmann::json::parse(dry.text)["cases"][0]["memory_bytes"] == bytes[all]);
  }
  // Four blocks and a sequence: both norms in BF16 in place of FP8, and SwiGLU's output, less the scales of tensors.
  CHECK(bytes[1] - bytes[0] == Approx(4 * 2048 * (2 * 2048 + 2 * 8192)).epsilon(1e-4));
}

TEST_CASE("plan: --stack adds the stack's speed and changes no proposal", "[plan][stack]") {
  const std::string command =
      std::string(kSmall) + " --recipe bf16,tensorwise --tensor 1 --pipeline 1 --context 1 --json";
  const auto ours = precbench_says(command), theirs = precbench_says(command + " --stack pytorch");
  REQUIRE(theirs.status == 0);
  auto plan = nlohmann::json::parse(theirs.text);
  CHECK(plan["stack"] == "pytorch");
  const auto fp8 = plan["recipes"][1]["proposals"][0];
  CHECK(fp8["stack"]["tokens_per_s"].get<double>() ==
        Approx(fp8["tokens_per_s"].get<double>() * fp8["stack"]["factor"].get<double>()));
  CHECK(fp8["stack"]["over_bf16"].get<double>() < fp8["over_bf16"].get<double>());
  CHECK(plan["recipes"][0]["proposals"][0]["stack"]["over_bf16"] == 1.0);
  plan.erase("stack");
  for (auto& recipe : plan["recipes"])
    for (auto& proposal : recipe["proposals"]) proposal.erase("stack");
  CHECK(plan == nlohmann::json::parse(ours.text));
}

TEST_CASE("plan: a pipeline of nvfp4, whose last stage stays in BF16, is faster than BF16's", "[plan]") {
  const auto answer = precbench_says(
      "plan --model llama3.1-8b --layers 8 --on b200 --gpus 8 --seq 4096 --global-batch 64 --recipe bf16,nvfp4,nvfp4_all"
      " --pipeline 4 --virtual-stages 1 --tensor 1 --context 1 --batch 1 --recompute none --proposals 1 --json");
  REQUIRE(answer.status == 0);
  const auto recipes = nlohmann::json::parse(answer.text)["recipes"];
  std::vector<double> ms;
  for (const auto& recipe : recipes) ms.push_back(recipe["proposals"][0]["step_ms"]);
  CHECK(ms[0] > ms[1]);
  CHECK(ms[1] > ms[2]);
  const auto& nvfp4 = recipes[1]["proposals"][0];
  CHECK(contains(nvfp4["flags"], "--switch-recipe none"));
  const auto dry = precbench_says("sweep --dry-run --json --on b200 " + nvfp4["flags"].get<std::string>() +
                                  " 2>/dev/null");
  const auto confirmed = nlohmann::json::parse(dry.text)["cases"][0];
  CHECK(confirmed["step_ms"] == ms[1]);
  CHECK(confirmed["memory_bytes"] == nvfp4["memory_bytes"]);
}

TEST_CASE("plan: bad input is one line that names the flag", "[plan]") {
  const std::string rest = " --on h100 --gpus 8 --seq 2048 --global-batch 32";
  CHECK(contains(refused("plan --model tiny --on h100 --gpus 8 --seq 128 --global-batch 0"),
                 "--global-batch: needs a whole number of sequences"));
  CHECK(contains(refused("plan" + rest), "--model: plan needs it"));
  CHECK(contains(refused("plan --model llama3.2-1b --on h100 --gpus 8 --global-batch 8"),
                 "--seq: plan needs it"));
  CHECK(
      contains(refused("plan --model llama3.2-1b --on nosuch --gpus 8 --seq 128 --global-batch 8"), "--on"));
  CHECK(contains(refused(std::string(kSmall) + " --lr 1"), "--lr: does not matter to plan"));
  CHECK(contains(refused(std::string(kSmall) + " --stack jax"), "--stack: unknown stack \"jax\""));
  CHECK(contains(refused(std::string(kSmall) + " --seq 1024,2048"), "--seq: plan takes one value"));
  CHECK(contains(refused(std::string(kSmall) + " --recipe mxfp8"), "does not multiply the formats of mxfp8"));
}

TEST_CASE("plan: a model that no layout can hold ends with status 1", "[plan]") {
  const auto answer = precbench_says(
      "plan --model llama3.1-405b --on h100 --gpus 8 --seq 8192 --global-batch 8 --recipe bf16");
  CHECK(answer.status == 1);
  CHECK(contains(answer.text, "nothing fits: the smallest needs"));
}

}  // namespace
}  // namespace precbench
