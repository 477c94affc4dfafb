// The search of layouts finds what a prediction of every layout finds.
#include "bench/predict/layout_search.h"

#include <algorithm>
#include <limits>

#include "bench/case/plan.h"
#include "bench/predict/case_layout.h"
#include "bench/predict/layout_search_testing.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

namespace precbench {
namespace {

LayoutSpace small_space() {
  LayoutSpace space;
  space.tensor = {1, 2, 3};
  space.context = {1, 2};
  space.pipeline = {1, 2, 4};
  space.virtual_stages = {1, 2};
  space.batch = {1, 4};
  space.ep = {1};
  space.parallel = {"ddp", "fsdp", "hsdp"};
  space.shard_optimizer = {"off", "on"};
  space.reshard = {"on", "off"};
  space.grad_sync = {"every", "last"};
  space.recompute = {"none", "block"};
  space.gather = {"bf16"};
  space.shard_group = {2};
  return space;
}

TEST_CASE("search_layouts: finds the fastest of all layouts, each predicted alone", "[plan]") {
  const CostModel cost_model(find_machine("h100-sxm"));
  const LayoutQuestion question = question_of("llama3.2-1b", 8, 8);
  const LayoutSpace space = small_space();
  const LayoutSearch found = search_layouts(question, space, cost_model);
  REQUIRE(found.proposals.size() == 3);
  CHECK(found.complete);
  CHECK(found.predicted < found.candidates);  // bounds leave some out
  double best = std::numeric_limits<double>::infinity();
  std::int64_t candidates = 0;
  LayoutSpace one = space;
  for (const std::int64_t tensor : space.tensor)
    for (const std::int64_t context : space.context)
      for (const std::int64_t pipeline : space.pipeline)
        for (const std::string& recompute : space.recompute) {
          one.tensor = {tensor}, one.context = {context}, one.pipeline = {pipeline},
          one.recompute = {recompute};
          try {
            LayoutQuestion all = question;
            all.proposals = 1000;  // nothing is left out
            const LayoutSearch part = search_layouts(all, one, cost_model);
            candidates += part.candidates;
            if (!part.proposals.empty()) best = std::min(best, part.proposals.front().estimate.step.seconds);
          } catch (const InvalidInput&) {
            CHECK(8 % (tensor * context * pipeline) != 0);
          }
        }
  CHECK(candidates == found.candidates);
  CHECK(found.proposals.front().estimate.step.seconds == best);
  for (const LayoutProposal& proposal : found.proposals)
    CHECK(estimate_layout(proposal.plan, cost_model).step.seconds == proposal.estimate.step.seconds);
}

TEST_CASE("search_layouts: selective recomputation takes time and memory between none and whole blocks",
          "[plan]") {
  const CostModel cost_model(find_machine("h100-sxm"));
  LayoutSpace space = small_space();
  space.tensor = space.context = space.pipeline = space.virtual_stages = space.batch = {1};
  space.parallel = {"fsdp"}, space.grad_sync = {"every"}, space.reshard = {"on"};
  for (const char* recipe : {"bf16", "tensorwise"}) {
    LayoutQuestion question = question_of("llama3.2-1b", 8, 8);
    question.c.recipe = recipe, question.c.kept = "torchao";
    std::vector<LayoutEstimate> found;
    for (const char* recompute : {"none", "selective", "block"}) {
      space.recompute = {recompute};
      found.push_back(search_layouts(question, space, cost_model).proposals.at(0).estimate);
    }
    for (std::size_t i = 1; i < found.size(); ++i) {
      CHECK(found[i].step.seconds > found[i - 1].step.seconds);
      CHECK(found[i].peak_bytes < found[i - 1].peak_bytes);
    }
  }
}

TEST_CASE("search_layouts: a pipeline whose first blocks recompute is predicted as alone", "[plan]") {
  const CostModel cost_model(find_machine("h100-sxm"));
  LayoutSpace space = small_space();
  space.tensor = space.context = space.virtual_stages = space.batch = {1};
  space.pipeline = {4}, space.parallel = {"ddp"}, space.shard_optimizer = {"on"};
  // Two values in one search have kinds of blocks of their own.
  space.recompute = {"block:6", "block:3"};
  LayoutQuestion question = question_of("llama3.2-1b", 8, 8);
  const LayoutProposal least = search_layouts(question, space, cost_model).proposals.at(0);
  CHECK(least.plan.fields.recompute == "block:3");
  space.recompute = {"block:6"};
  const LayoutProposal six = search_layouts(question, space, cost_model).proposals.at(0);
  for (const LayoutProposal& one : {least, six}) {
    const LayoutEstimate alone = estimate_layout(one.plan, cost_model);
    CHECK(one.estimate.step.seconds == alone.step.seconds);
    CHECK(one.estimate.peak_bytes == alone.peak_bytes);
  }
  CHECK(least.estimate.step.seconds < six.estimate.step.seconds);
}

TEST_CASE("search_layouts: no proposal needs more memory than there is", "[plan]") {
  const CostModel cost_model(find_machine("h100-sxm"));
  LayoutQuestion question = question_of("llama3.2-1b", 8, 8);
  const LayoutSearch large = search_layouts(question, small_space(), cost_model);
  question.memory = large.proposals.front().estimate.peak_bytes - 1;
  const LayoutSearch small = search_layouts(question, small_space(), cost_model);
  REQUIRE_FALSE(small.proposals.empty());
  for (const LayoutProposal& proposal : small.proposals)
    CHECK(proposal.estimate.peak_bytes <= question.memory);
  CHECK(small.too_large > 0);
  question.memory = std::int64_t{1} << 28;
  const LayoutSearch none = search_layouts(question, small_space(), cost_model);
  CHECK(none.proposals.empty());
  CHECK(none.least_bytes.value_or(0) > question.memory);
}

TEST_CASE("search_layouts: layouts that recompute are found where no others fit", "[plan]") {
  const CostModel cost_model(find_machine("h100-sxm"));
  LayoutQuestion question = question_of("llama3.2-1b", 8, 8);
  LayoutSpace space = small_space();
  space.context = {1}, space.batch = {4};  // much to recompute
  LayoutSpace none = space, block = space;
  none.recompute = {"none"}, block.recompute = {"block"};
  question.memory = 1;
  const auto without =
      static_cast<double>(search_layouts(question, none, cost_model).least_bytes.value());  // a bound
  question.memory = static_cast<std::int64_t>(without * (1 - kMemoryTolerance)) - 1;
  const LayoutSearch found = search_layouts(question, space, cost_model),
                     own = search_layouts(question, block, cost_model);
  REQUIRE_FALSE(own.proposals.empty());
  REQUIRE(found.proposals.size() == own.proposals.size());
  for (std::size_t i = 0; i < own.proposals.size(); ++i) {
    CHECK(found.proposals[i].plan.fields.recompute == "block");
    CHECK(found.proposals[i].estimate.step.seconds == own.proposals[i].estimate.step.seconds);
  }
}

TEST_CASE("best_layouts: bounds leave few full predictions of large questions, and what is proposed fits",
          "[plan]") {
  struct Large {
    const char *model, *machine;
    std::int64_t gpus, seq, global_batch, most_predicted;
  };
  for (const Large& large : {Large{"llama3.1-405b", "h100-sxm", 1024, 8192, 512, 100},
                             {"deepseek-v3", "gb200-nvl72", 256, 4096, 2048, 3000}}) {
    const CostModel cost_model(find_machine(large.machine));
    LayoutQuestion question;
    question.c.device = "cuda";
    question.c.model = large.model;
    question.c.gpus = large.gpus, question.c.seq = large.seq;
    question.global_batch = large.global_batch;
    question.memory = usable_bytes(cost_model.machine()) - (std::int64_t{1} << 30);
    const LayoutSearch found = best_layouts(question, cost_model);
    INFO(large.model);
    CHECK(found.complete);
    CHECK(found.candidates > 50'000);
    CHECK(found.predicted <= large.most_predicted);
    REQUIRE(found.proposals.size() == 3);
    for (const LayoutProposal& proposal : found.proposals) {
      // The memory model alone says the same.
      for (const StageMemory& stage : layout_memory(proposal.plan)) CHECK(stage.peak() <= question.memory);
      CHECK(proposal.plan.tokens_per_step() == large.global_batch * large.seq);
      CHECK_FALSE(layout_failure(proposal.plan));
    }
  }
}

TEST_CASE("best_layouts: values that a user gave are the only ones tried", "[plan]") {
  const CostModel cost_model(find_machine("h100-sxm"));
  LayoutQuestion question = question_of("llama3.2-1b", 4, 8);
  question.given = {{"tensor", {"2"}}, {"recompute", {"block"}}, {"shard_optimizer", {"off"}}};
  const LayoutSearch found = best_layouts(question, cost_model);
  REQUIRE_FALSE(found.proposals.empty());
  for (const LayoutProposal& proposal : found.proposals) {
    CHECK(proposal.plan.fields.tensor == 2);
    CHECK(proposal.plan.fields.recompute == "block");
    CHECK(proposal.plan.fields.shard_optimizer == "off");
  }
  CHECK(is_searched("shard_optimizer"));
  CHECK_FALSE(is_searched("overlap"));
  question.c.recipe = "mxfp8";
  CHECK(refusal_of([&] { best_layouts(question, cost_model); }) ==
        "h100-sxm does not multiply the formats of mxfp8");
}

TEST_CASE("search_layouts: a batch that nothing divides is refused with the rule", "[plan]") {
  const CostModel cost_model(find_machine("h100-sxm"));
  LayoutQuestion question = question_of("llama3.2-1b", 8, 8);
  Case c = question.c;
  c.batch = 3;
  CHECK(refusal_of([&] { search_one(question, c, cost_model); }) ==
        "no layout is possible with --gpus 8 and --global-batch 32");
  c.batch = 1, c.pipeline = 4, c.virtual_stages = 3;
  CHECK(contains(refusal_of([&] { search_one(question, c, cost_model); }), "--virtual-stages 3"));
}

}  // namespace
}  // namespace precbench
