// The search of layouts: its bounds hold, and it finds what a prediction of every layout finds.
#include "bench/case/plan.h"
#include "bench/predict/layout_search.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "bench/predict/case_layout.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

namespace precbench {
namespace {

LayoutQuestion question_of(const std::string& model, std::int64_t layers, std::int64_t gpus) {
  LayoutQuestion question;
  question.c.device = "cuda";
  question.c.model = model;
  question.c.layers = layers;
  question.c.gpus = gpus;
  question.c.seq = 2048;
  question.global_batch = 32;
  question.memory = std::int64_t{70} << 30;
  return question;
}

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

/// Searches a space of one layout.
LayoutSearch search_one(const LayoutQuestion& question, const Case& c, const CostModel& cost_model) {
  LayoutSpace space;
  space.tensor = {c.tensor}, space.context = {c.context}, space.pipeline = {c.pipeline};
  space.virtual_stages = {c.virtual_stages}, space.batch = {c.batch}, space.ep = {c.ep};
  space.parallel = {c.parallel}, space.shard_optimizer = {c.shard_optimizer}, space.reshard = {c.reshard},
  space.grad_sync = {c.grad_sync};
  space.recompute = {c.recompute}, space.gather = {c.gather}, space.shard_group = {c.shard_group};
  return search_layouts(question, space, cost_model);
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

/// Kinds of data parallelism, with --reshard and --grad-sync.
constexpr const char* kShardings[][3] = {{"ddp", "on", "every"},  {"fsdp", "on", "every"},
                                         {"fsdp", "off", "last"}, {"fsdp", "on", "last"},
                                         {"hsdp", "on", "every"}, {"hsdp", "off", "last"}};

TEST_CASE("layout_bound: neither time nor memory of a layout is below its bound", "[plan]") {
  const CostModel cost_model(find_machine("h100-sxm"));
  for (const auto& [model, recipe, layers, ep, tensor, overlap] :
       {std::tuple{"llama3.2-1b", "bf16", 8, 1, 1, "none"},
        {"llama3.2-1b", "bf16", 8, 1, 2, "none"},
        {"llama3.2-1b", "bf16", 8, 1, 2, "all"},
        {"qwen3-30b-a3b", "bf16", 4, 1, 1, "none"},
        {"qwen3-30b-a3b", "bf16", 4, 4, 1, "none"},
        {"deepseek-v2-lite", "bf16", 4, 4, 1, "none"},
        {"llama3.2-1b", "tensorwise", 8, 1, 2, "all"},
        {"llama3.2-1b", "tensorwise", 8, 1, 1, "none"}}) {
    LayoutQuestion question = question_of(model, layers, 16);
    question.memory = std::int64_t{1} << 50;
    question.c.overlap = overlap, question.c.recipe = recipe;
    Case c = question.c;
    if (recipe != std::string("bf16")) c.gather = "fp8";
    c.ep = ep, c.tensor = tensor, c.batch = 1;
    int seen = 0;
    for (const std::int64_t context : {1, 2})
      for (const std::int64_t pipeline : {1, 4})
        for (const char* shard_optimizer : {"off", "on"})
          for (const auto& [parallel, reshard, grad_sync] : kShardings) {
            c.context = context, c.pipeline = pipeline, c.shard_optimizer = shard_optimizer;
            c.parallel = parallel, c.reshard = reshard, c.grad_sync = grad_sync;
            c.shard_group = c.parallel == "hsdp" ? 2 * context : 1;
            if (c.parallel == "hsdp" && c.gpus / (c.tensor * c.pipeline) <= 2 * c.context) continue;
            if (!has_optimizer_replicas(c, find_model(model)) && c.shard_optimizer == "on") continue;
            const LayoutSearch found = search_one(question, c, cost_model);
            if (found.proposals.empty()) continue;
            ++seen;
            const LayoutProposal& one = found.proposals.front();
            CaseLayout own = case_layout(one.plan);
            own.c.parallel = "ddp", own.c.shard_group = 1, own.c.reshard = "on", own.c.grad_sync = "every";
            own.layout.data = static_cast<int>(std::max<std::int64_t>(1, c.ep / c.context));
            own.layout.pipeline = own.layout.interleave = 1;
            own.c.gather = Case{}.gather;
            own.layout.sharded_optimizer = false;
            const auto costs = micro_batch_costs(own.c, one.plan.model, own.layout, cost_model);
            const LayoutBound bound = layout_bound(one.plan.fields, one.plan.model, costs, cost_model);
            INFO(model << " tensor " << tensor << " overlap " << overlap << " pipeline " << pipeline
                       << " context " << context << " " << parallel << " " << reshard << " " << grad_sync
                       << " " << shard_optimizer);
            const auto peak = static_cast<double>(one.estimate.peak_bytes);
            CHECK(bound.seconds > 0.2 * one.estimate.step.seconds);
            CHECK(bound.seconds <= (1 + kTimeTolerance) * one.estimate.step.seconds);
            CHECK(bound.bytes > 0.2 * peak);
            CHECK(bound.bytes <= (1 + kMemoryTolerance) * peak);
          }
    CHECK(seen >= 20);
  }
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
        "no layout divides --gpus 8 and --global-batch 32");
  c.batch = 1, c.pipeline = 4, c.virtual_stages = 3;
  CHECK(contains(refusal_of([&] { search_one(question, c, cost_model); }), "--virtual-stages 3"));
}

TEST_CASE("estimate_layout: blocks of two kinds that cost the same are predicted as blocks of one",
          "[plan]") {
  const CostModel cost_model(find_machine("h100-sxm"));
  Case c = question_of("llama3.2-1b", 8, 8).c;
  c.parallel = "fsdp", c.batch = 1, c.accumulation = 8;
  ModelConfig model = cut_to(find_model("llama3.2-1b"), 8);
  c.layers = 0;
  const ParallelLayout layout{.data = 2, .pipeline = 4, .interleave = 2};
  const LayoutEstimate one = estimate_layout(c, model, layout, {}, cost_model);
  model.sliding_window = 2 * c.seq;  // sees every key
  model.block.local_layers = {0, 3, 4};
  const LayoutEstimate two = estimate_layout(c, model, layout, {}, cost_model);
  CHECK(two.step.seconds == Approx(one.step.seconds).epsilon(1e-9));
  CHECK(two.peak_bytes == Approx(static_cast<double>(one.peak_bytes)).epsilon(1e-6));
  model.sliding_window = 128;
  CHECK(estimate_layout(c, model, layout, {}, cost_model).step.seconds < one.step.seconds);
}

TEST_CASE("estimate_layout: stages of DeepSeek-V3 hold dense blocks and blocks with experts", "[plan]") {
  const CostModel cost_model(find_machine("gb200-nvl72"));
  Case c = question_of("deepseek-v3", 0, 256).c;
  c.parallel = "fsdp", c.batch = 1, c.accumulation = 8, c.pipeline = 16, c.ep = 16;
  c.exchange = "slots", c.slots = 512;
  const Plan plan = validate(c);
  REQUIRE_FALSE(layout_failure(plan));
  const LayoutEstimate e = estimate_layout(plan, cost_model);
  REQUIRE(e.stages.size() == 16);
  std::int64_t layers = 0;
  for (const StageMemory& stage : e.stages) layers += stage.layers;
  CHECK(layers == 61);
  // Three dense blocks weigh far less than four with experts.
  CHECK(e.stages.front().layers == 3);
  CHECK(e.stages.front().states < e.stages[1].states / 4);
  CHECK(e.peak_bytes > e.stages.front().peak());
}

}  // namespace
}  // namespace precbench
