// Comparisons of records with lines of tools/pytorch_baseline and of published points with predictions, and spreads.
#include "bench/predict/stack_evidence.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"

namespace precbench {
namespace {

const StackEvidence* find(const std::vector<StackEvidence>& evidence, const std::string& recipe) {
  const auto found = std::find_if(evidence.begin(), evidence.end(),
                                  [&](const StackEvidence& e) { return e.setting.recipe == recipe; });
  return found == evidence.end() ? nullptr : &*found;
}

TEST_CASE("measured_stacks: one comparison for the same work and day, per GPU", "[stack]") {
  const std::vector<StackEvidence> evidence =
      measured_stacks({PRECBENCH_SOURCE_DIR "/results/h100x4/fsdp-four"});
  REQUIRE(evidence.size() == 2);
  const StackEvidence* bf16 = find(evidence, "bf16");
  REQUIRE(bf16);
  CHECK(bf16->stack == Stack::pytorch);
  CHECK(bf16->measured);
  CHECK(bf16->source == "h100x4/fsdp-four 2026-11-27");
  CHECK(bf16->theirs == Approx(34227.0 / 4));
  CHECK(bf16->theirs / bf16->ours == Approx(0.88).epsilon(0.002));  // FSDP's record, not HSDP's
  CHECK(bf16->setting.gpu == "h100-sxm");
  CHECK(bf16->setting.several_gpus);
  CHECK(bf16->setting.micro_step_s == Approx(0.421).epsilon(0.01));
  CHECK(bf16->log_error == 0);
  CHECK_THROWS_WITH(measured_stacks({PRECBENCH_SOURCE_DIR "/results/h200/single.jsonl.xz"}),
                    ContainsText("pytorch.ndjson"));
}

TEST_CASE("measured_stacks: a line that is no comparison is named", "[stack]") {
  const TempDirectory folder;
  const std::string records = folder.write("r.jsonl", "{}\n");
  folder.write(
      "pytorch.ndjson",
      R"({"model": "8b", "recipe": "bf16", "batch": 1, "seq": 8, "created": "2026-11-25T", "tokens_per_s": -1})");
  CHECK_THROWS_WITH(measured_stacks({records}), ContainsText("pytorch.ndjson:1: tokens_per_s: -1"));
  folder.write("pytorch.ndjson", R"({"model": "8b", "error": "out of memory"})");
  CHECK_THROWS_WITH(
      measured_stacks({records}),
      Catch::Matchers::StartsWith("--stacks: no record of the same work as a line of pytorch.ndjson"));
}

PublishedPoint published(const std::string& id, const std::string& precision, double tokens_per_s) {
  PublishedPoint p;
  p.id = id, p.framework = "torchtitan", p.model = "llama3.2-1b", p.gpu = "h200", p.precision = precision;
  p.gpus = p.dp = p.fsdp = 8;
  p.micro_batch = 1, p.global_batch = 8, p.seq = 8192;
  p.recompute = "none";
  p.tokens_per_s_per_gpu = tokens_per_s;
  p.judged_as = {JudgedAs::absolute_stack};
  return p;
}

TEST_CASE("published_stacks: throughput over our step, and speed-ups over ours alone", "[stack]") {
  PublishedPoint bf16 = published("x-bf16", "bf16", 3e4), fp8 = published("x-fp8", "fp8_tensorwise", 3.3e4);
  fp8.judged_as = {JudgedAs::absolute_stack, JudgedAs::speedup};
  fp8.speedup_over_id = bf16.id;
  PublishedPoint shown = published("x-shown", "bf16", 3e4), other = published("x-llmq", "bf16", 3e4);
  shown.judged_as = {JudgedAs::shown};
  other.framework = "llm.q";
  const std::vector<StackEvidence> evidence = published_stacks({bf16, fp8, shown, other});
  REQUIRE(evidence.size() == 2);
  CHECK(evidence[0].theirs == 3e4);
  CHECK_FALSE(evidence[0].speedup);
  CHECK(evidence[0].log_error > 0);
  CHECK(evidence[0].source == "x");
  CHECK(evidence[1].speedup);
  CHECK(evidence[1].theirs == Approx(1.1));
  CHECK(evidence[1].ours > 1);
  CHECK(evidence[1].base_micro_step_s > evidence[1].setting.micro_step_s);
}

TEST_CASE("published_stacks: a speed-up without a layout is compared in that of a point that has one",
          "[stack]") {
  PublishedPoint with = published("x-fp8", "fp8_tensorwise", 3e4),
                 without = published("y-fp8", "fp8_tensorwise", 1);
  without.gpus = without.dp = without.fsdp = std::nullopt;
  without.tokens_per_s_per_gpu = std::nullopt;
  without.speedup_over_bf16 = 1.2;
  without.judged_as = {JudgedAs::shown};
  CHECK(published_stacks({without}).empty());
  const std::vector<StackEvidence> evidence = published_stacks({with, without});
  REQUIRE(evidence.size() == 2);
  CHECK(evidence[1].speedup);
  CHECK(evidence[1].source == "y");
  CHECK(evidence[1].assumed == "setting of x-fp8");
}

std::vector<StackEvidence> sources_of(double between, double within) {
  std::vector<StackEvidence> evidence;
  for (int source = 0; source < 8; ++source)
    for (int step = 0; step < 3; ++step) {
      StackEvidence e;
      e.source = std::string(1, static_cast<char>('a' + source)), e.id = e.source, e.name = "m";
      e.setting = {"bf16", "h200", "Hopper", "1x1", 1, true, false};
      e.ours = 1;
      e.theirs = 0.8 * std::exp((source % 2 ? 1 : -1) * between + (step - 1) * within);
      evidence.push_back(e);
    }
  return evidence;
}

double spread(const StackSpreads& spreads, StackEffect effect) {
  return spreads[static_cast<std::size_t>(effect)];
}

TEST_CASE("fit_spreads: variation goes to the effect that explains it", "[stack]") {
  const StackSpreads sources = fit_spreads(sources_of(0.2, 0.01), first_spreads());
  CHECK(spread(sources, StackEffect::source) > 0.1);
  CHECK(spread(sources, StackEffect::rest) < 0.03);
  const StackSpreads steps = fit_spreads(sources_of(0.01, 0.2), first_spreads());
  CHECK(spread(steps, StackEffect::source) < 0.1);
  CHECK(spread(steps, StackEffect::rest) > 0.1);
  // An effect that no evidence tells apart keeps the widest spread.
  CHECK(spread(steps, StackEffect::experts) == Approx(kMostSpread).epsilon(0.01));
}

TEST_CASE("held_out_factors: come from other sources, whose spread they state", "[stack]") {
  std::vector<StackEvidence> evidence = sources_of(0.1, 0.02);
  for (StackEvidence& e : evidence)
    if (e.source == "a") e.theirs *= 3;
  const std::vector<HeldOutFactor> factors = held_out_factors(evidence, first_spreads());
  REQUIRE(factors.size() == evidence.size());
  CHECK(factors[0].without_source.factor == Approx(0.8).epsilon(0.15));  // not 2.4, which it is judged by
  CHECK(factors[0].without_source.log_error > 0.05);
  const nlohmann::ordered_json json = stacks_json(evidence, first_spreads(), factors);
  CHECK(json["evidence"].size() == evidence.size());
  CHECK(json["evidence"][0]["source"] == "a");
  const StackModel read = stack_model_from_json(json, "test");
  CHECK(read.evidence().size() == evidence.size());
  CHECK(read.factor_of(evidence[5]).factor ==
        Approx(StackModel(evidence, first_spreads()).factor_of(evidence[5]).factor).epsilon(1e-3));
}

}  // namespace
}  // namespace precbench
