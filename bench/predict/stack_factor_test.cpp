// Factors of other stacks from hand-made evidence, and what the committed evidence says.
#include "bench/predict/stack_factor.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/testing/catch.h"

namespace precbench {
namespace {

StackSetting large_step(const std::string& recipe, const std::string& gpu = "h100-sxm") {
  return {recipe, gpu, "Hopper", "4096x14336", 1, true, false};
}

StackEvidence comparison(const std::string& source, const std::string& recipe, double factor,
                         double log_error = 0.05) {
  StackEvidence e;
  e.source = source, e.id = source + "-x", e.name = "llama3-8b";
  e.setting = large_step(recipe);
  e.ours = 1000, e.theirs = 1000 * factor, e.log_error = log_error;
  return e;
}

StackSpreads equal_spreads() {
  StackSpreads spreads;
  spreads.fill(0.1);
  spreads[static_cast<std::size_t>(StackEffect::mean)] = 1;
  return spreads;
}

double error_of(const std::vector<StackEvidence>& evidence, const StackSetting& setting) {
  return StackModel(evidence, equal_spreads()).factor(Stack::pytorch, setting).log_error;
}

TEST_CASE("StackModel: a factor lies near the evidence of its recipe, and narrower with more of it",
          "[stack]") {
  const std::vector<StackEvidence> few = {comparison("a", "bf16", 0.9), comparison("a", "tensorwise", 0.75)};
  std::vector<StackEvidence> many = few;
  for (const char* source : {"b", "c", "d"})
    for (const StackEvidence& e : few) {
      many.push_back(e);
      many.back().source = source;
    }
  const StackModel model(many, equal_spreads());
  CHECK(model.factor(Stack::pytorch, large_step("bf16")).factor == Approx(0.9).epsilon(0.03));
  CHECK(model.factor(Stack::pytorch, large_step("tensorwise")).factor == Approx(0.75).epsilon(0.03));
  CHECK(error_of(many, large_step("bf16")) < error_of(few, large_step("bf16")));
  CHECK(model.factor(Stack::precbench, large_step("bf16")).factor == 1);
  CHECK(model.factor(Stack::precbench, large_step("bf16")).log_error == 0);
}

TEST_CASE("StackModel: intervals of what has no evidence are wide, and it says so", "[stack]") {
  const std::vector<StackEvidence> evidence = {comparison("a", "bf16", 0.9), comparison("b", "bf16", 0.8),
                                               comparison("a", "tensorwise", 0.75)};
  const StackModel model(evidence, equal_spreads());
  const StackFactor known =
      model.factor(Stack::pytorch, large_step("tensorwise_delayed"));  // of tensorwise's family
  CHECK(known.no_evidence.empty());
  const StackFactor recipe = model.factor(Stack::pytorch, large_step("nvfp4"));
  CHECK(recipe.no_evidence == std::vector<std::string>{"no evidence for nvfp4 with pytorch"});
  CHECK(recipe.log_error > known.log_error);
  const StackFactor gpu = model.factor(Stack::pytorch, large_step("tensorwise", "b200"));
  CHECK(gpu.no_evidence == std::vector<std::string>{"no evidence for tensorwise on b200 with pytorch"});
  CHECK(gpu.log_error > known.log_error);
  StackSetting small = large_step("tensorwise");
  small.micro_step_s = 0.02;
  CHECK(model.factor(Stack::pytorch, small).no_evidence ==
        std::vector<std::string>{
            "no evidence for micro-steps of less than 1000 ms on several GPUs with pytorch"});
  CHECK(error_of(evidence, small) > known.log_error);
  StackSetting experts = large_step("tensorwise");
  experts.experts = true;
  CHECK(model.factor(Stack::pytorch, experts).no_evidence ==
        std::vector<std::string>{"no evidence for tensorwise with experts with pytorch"});
  const StackFactor other = model.factor(Stack::megatron, large_step("bf16"));
  CHECK(other.log_error > 1);  // that of the mean: nothing is known
  CHECK(other.no_evidence.front() == "no evidence for bf16 with megatron");
}

TEST_CASE("StackModel: errors that two recipes share cancel in the ratio of their factors", "[stack]") {
  const std::vector<StackEvidence> evidence = {
      comparison("a", "bf16", 0.9), comparison("a", "tensorwise", 0.72), comparison("b", "bf16", 0.7),
      comparison("b", "tensorwise", 0.56)};
  const StackModel model(evidence, equal_spreads());
  const StackSetting own = large_step("tensorwise"), base = large_step("bf16");
  const StackFactor ratio = model.speedup_factor(Stack::pytorch, own, base);
  CHECK(ratio.factor == Approx(0.8).epsilon(0.08));
  CHECK(ratio.factor ==
        Approx(model.factor(Stack::pytorch, own).factor / model.factor(Stack::pytorch, base).factor));
  CHECK(ratio.log_error < 0.9 * std::hypot(model.factor(Stack::pytorch, base).log_error,
                                           model.factor(Stack::pytorch, own).log_error));
}

TEST_CASE("StackModel: a published speed-up moves the ratio and not BF16's factor", "[stack]") {
  std::vector<StackEvidence> evidence = {comparison("a", "bf16", 0.9), comparison("a", "mxfp8", 0.72)};
  const StackSetting own = large_step("mxfp8"), base = large_step("bf16");
  const StackModel before(evidence, equal_spreads());
  for (const char* source : {"b", "c", "d", "e"}) {
    StackEvidence ratio = comparison(source, "mxfp8", 1);
    ratio.speedup = true, ratio.base_micro_step_s = 1;
    evidence.push_back(ratio);
  }
  const StackModel after(evidence, equal_spreads());
  const auto speedup = [&](const StackModel& model) {
    return model.speedup_factor(Stack::pytorch, own, base).factor;
  };
  CHECK(speedup(before) < 0.9);
  CHECK(speedup(after) > speedup(before) + 0.05);
  CHECK(after.factor(Stack::pytorch, base).factor ==
        Approx(before.factor(Stack::pytorch, base).factor).epsilon(0.05));
  CHECK(after.speedup_factor(Stack::pytorch, own, base).no_evidence.empty());
}

TEST_CASE("smallness: nothing from the large steps on, and continuous below", "[stack]") {
  StackSetting setting = large_step("bf16");
  setting.micro_step_s = kLargeMicroStepOfSeveral;
  CHECK(smallness(setting) == 0);
  setting.micro_step_s /= 5;
  CHECK(smallness(setting) == Approx(1));
  setting.several_gpus = false;
  setting.micro_step_s = kLargeMicroStep * 0.999;
  CHECK(smallness(setting) == Approx(0).margin(1e-3));
}

TEST_CASE("stack_factor: the committed evidence has both stacks, and PyTorch is slower in low precision",
          "[stack]") {
  const auto& evidence = stack_model().evidence();
  for (const Stack stack : {Stack::pytorch, Stack::megatron})
    CHECK(std::count_if(evidence.begin(), evidence.end(),
                        [&](const StackEvidence& e) { return e.stack == stack; }) > 20);
  const StackSetting own = large_step("tensorwise"), base = large_step("bf16");
  const StackFactor bf16 = stack_factor(Stack::pytorch, base),
                    ratio = stack_speedup_factor(Stack::pytorch, own, base);
  CHECK(bf16.no_evidence.empty());
  CHECK(bf16.low() < bf16.factor);
  CHECK(bf16.factor < bf16.high());
  CHECK(bf16.factor > 0.5);
  CHECK(bf16.factor < 1);
  CHECK(ratio.factor < 1);
  StackSetting small = own;
  small.micro_step_s = 0.04;
  CHECK(stack_factor(Stack::pytorch, small).factor < stack_factor(Stack::pytorch, own).factor);
}

TEST_CASE("stack_model_without: a source's own evidence does not judge it", "[stack]") {
  const StackSetting base = large_step("bf16", "h200");
  const StackModel& without = stack_model_without("kempner");
  CHECK(without.evidence().size() < stack_model().evidence().size());
  CHECK(std::none_of(without.evidence().begin(), without.evidence().end(),
                     [](const StackEvidence& e) { return e.source == "kempner"; }));
  CHECK(without.factor(Stack::pytorch, base).factor != stack_factor(Stack::pytorch, base).factor);
  CHECK(&stack_model_without("nobody") == &stack_model());
}

TEST_CASE("find_stack and stack_model_from_json refuse what they do not know, in one line", "[stack]") {
  CHECK(find_stack("megatron") == Stack::megatron);
  CHECK_THROWS_WITH(
      find_stack("jax"),
      Catch::Matchers::StartsWith("--stack: unknown stack \"jax\"; known: precbench, pytorch, megatron"));
  CHECK_THROWS_WITH(stack_model_from_json({{"evidence", nlohmann::json::array()}}, "FILE"),
                    Catch::Matchers::StartsWith("FILE: "));
  CHECK(stack_recipe("rowwise_gw_hp") == "rowwise");
  CHECK(stack_recipe("bf16") == "bf16");
}

}  // namespace
}  // namespace precbench
