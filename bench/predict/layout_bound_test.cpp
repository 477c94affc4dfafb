// Lower bounds of layouts hold.
#include "bench/predict/layout_bound.h"

#include <string>
#include <tuple>

#include "bench/predict/case_layout.h"
#include "bench/predict/layout_search_testing.h"
#include "kernels/testing/catch.h"

namespace precbench {
namespace {

/// Kinds of data parallelism, with --reshard and --grad-sync.
constexpr const char* kShardings[][3] = {{"ddp", "on", "every"},  {"fsdp", "on", "every"},
                                         {"fsdp", "off", "last"}, {"fsdp", "on", "last"},
                                         {"hsdp", "on", "every"}, {"hsdp", "off", "last"}};

TEST_CASE("layout_bound: neither time nor memory of a layout is below its bound", "[plan]") {
  const CostModel cost_model(find_machine("h100-sxm"));
  for (const auto& [model, recipe, keep_bf16, layers, ep, tensor, overlap] :
       {std::tuple{"llama3.2-1b", "bf16", "", 8, 1, 1, "none"},
        {"llama3.2-1b", "bf16", "", 8, 1, 2, "none"},
        {"llama3.2-1b", "bf16", "", 8, 1, 2, "all"},
        {"qwen3-30b-a3b", "bf16", "", 4, 1, 1, "none"},
        {"qwen3-30b-a3b", "bf16", "", 4, 4, 1, "none"},
        {"deepseek-v2-lite", "bf16", "", 4, 4, 1, "none"},
        {"llama3.2-1b", "tensorwise", "", 8, 1, 2, "all"},
        {"llama3.2-1b", "tensorwise", "last:0.15", 8, 1, 1, "none"},
        {"llama3.2-1b", "tensorwise", "", 8, 1, 1, "none"}}) {
    LayoutQuestion question = question_of(model, layers, 16);
    question.memory = std::int64_t{1} << 50;
    question.c.overlap = overlap, question.c.recipe = recipe, question.c.keep_bf16 = keep_bf16;
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
            const auto [own, layout] = case_layout(validate(micro_batch_case(one.plan.fields)));
            const auto costs = micro_batch_cost(own, one.plan.model, layout, cost_model);
            const LayoutBound bound = layout_bound(one.plan.fields, one.plan.model, costs, cost_model);
            INFO(model << " " << recipe << " " << keep_bf16 << " tensor " << tensor << " overlap " << overlap
                       << " pipeline " << pipeline << " context " << context << " " << parallel << " "
                       << reshard << " " << grad_sync << " " << shard_optimizer);
            const auto peak = static_cast<double>(one.estimate.peak_bytes);
            CHECK(bound.seconds > 0.2 * one.estimate.step.seconds);
            CHECK(bound.seconds <= (1 + kTimeTolerance) * one.estimate.step.seconds);
            CHECK(bound.bytes > 0.2 * peak);
            CHECK(bound.bytes <= (1 + kMemoryTolerance) * peak);
          }
    CHECK(seen >= 20);
  }
}

}  // namespace
}  // namespace precbench
