// Layouts: what a step costs beyond its ops, from bytes and rates.
#include "bench/predict/layout_estimate.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "bench/case/case_testing.h"
#include "bench/case/plan.h"
#include "bench/predict/case_layout.h"
#include "bench/predict/pipeline.h"
#include "bench/predict/predict.h"
#include "kernels/testing/catch.h"

namespace precbench {
namespace {

/// An H200 whose data ranks, four to a domain, are joined at this rate; stages are joined by its NICs.
CostModel model_with(double gb_per_s) {
  Machine machine = find_machine("h200");
  NetworkLevel& domain = machine.levels.front();
  domain.gpus = 4;
  domain.gb_per_s = gb_per_s;
  domain.achieved = {{"", {{2, 1.0}}}};
  return CostModel(machine);
}

Case sharded_case(std::int64_t accumulation) {
  Case c = testing::case_of_flags(
      "--device cuda --model llama3.2-1b --parallel fsdp --reshard off --grad-sync last --seq 1024 --batch 1");
  c.accumulation = accumulation;
  return c;
}

double seconds_of(double gb_per_s, std::int64_t accumulation) {
  const ModelConfig model = cut_to(find_model("llama3.2-1b"), 4);
  const ParallelLayout layout{.data = 4, .pipeline = 2};
  return estimate_layout(sharded_case(accumulation), model, layout, {}, model_with(gb_per_s))
      .step.time.seconds;
}

TEST_CASE("estimate_layout: a sharded stage moves its weights and its gradients once a step", "[predict]") {
  // Two of four blocks and half of the rest: BF16 weights gathered and FP32 gradients reduced over four ranks, three
  // quarters of which a ring moves. At such rates nothing hides them.
  const double blocks = 2 * (2048.0 * (2048 + 2 * 512) + 2048.0 * 2048 + 3 * 2048.0 * 8192 + 2 * 2048);
  const double rest = (128256.0 * 2048 + 2048) / 2;
  const double bytes = (blocks + rest) * (2 + 4) * 3 / 4;
  const double expected = bytes * (1 / 0.5e9 - 1 / 1e9);
  for (const std::int64_t micro_batches : {8, 64})
    CHECK(seconds_of(0.5, micro_batches) - seconds_of(1, micro_batches) == Approx(expected).epsilon(0.01));
}

TEST_CASE("estimate_layout: between the first and the last micro-batch a sharded stage moves nothing",
          "[predict]") {
  Case c = sharded_case(3);
  c.layers = 2;
  const ParallelLayout layout{.data = 4, .pipeline = 2};
  const Plan plan = local_plan(c, find_model("llama3.2-1b"), layout);
  const Trace trace = dry_run(plan, nullptr).trace;
  int first = 0, middle = 0;
  for (std::size_t i = 0; i < trace.micro_steps.at(2); ++i)
    if (trace.events[i].kind == TraceEvent::Kind::start) ++(i < trace.micro_steps.at(1) ? first : middle);
  CHECK(first > 0);
  CHECK(middle == 0);
}

TEST_CASE("estimate_layout: a layout that can run is predicted as the dry run of its case", "[predict]") {
  const CostModel cost_model(find_machine("h200"));
  const ModelConfig model = cut_to(find_model("llama3.2-1b"), 2);
  int cases = 0;
  for (const char* parallel : {"ddp", "fsdp", "hsdp"})
    for (const auto& [tensor, context] : {std::pair{1, 1}, {1, 2}, {1, 4}, {2, 1}, {4, 2}})
      for (const int data : {1, 2, 4})
        for (const char* recompute : {"none", "norm+ffn", "block"})
          for (const auto& [recipe, accumulation] : {std::pair{"bf16", 1}, {"tensorwise", 3}, {"mxfp8", 1}}) {
            Case c;
            c.device = "cuda";
            c.recipe = recipe;
            c.parallel = parallel;
            c.recompute = recompute;
            c.seq = 2048;
            c.batch = 2;
            c.accumulation = accumulation;
            if (c.parallel == "hsdp") c.shard_group = context * std::max(1, data / 2);
            if (context * data == 1 && c.parallel != "ddp") continue;
            if (c.parallel == "hsdp" && c.shard_group < 2) continue;
            Case own = c;  // as a user gives it
            own.gpus = tensor * context * data;
            own.tensor = tensor;
            own.context = context;
            const Plan plan = validate(own, Refusals::thrown, &model);
            REQUIRE_FALSE(unsupported_reason(plan));
            const DryRun run = dry_run(plan, nullptr);
            const double seconds =
                estimate_step(cost_model, run.trace, cost_model.rates_of(run.trace), plan.ranks).seconds;
            const LayoutEstimate estimate = estimate_layout(
                c, model, {.tensor = tensor, .context = context, .data = data}, {.blocks = 1}, cost_model);
            INFO(parallel << " tensor " << tensor << " context " << context << " data " << data << " "
                          << recompute << " " << recipe);
            CHECK(estimate.step.seconds == seconds);
            CHECK(estimate.peak_bytes == run.most());
            ++cases;
          }
  CHECK(cases > 200);
}

TEST_CASE(
    "estimate_layout: keys that arrive beside the attention shorten the step, by no more than they take",
    "[predict]") {
  Case c = sharded_case(1);
  c.parallel = "ddp";
  c.seq = 8192;
  c.reshard = c.grad_sync = "auto";
  const ModelConfig model = cut_to(find_model("llama3.2-1b"), 2);
  const CostModel cost_model = model_with(20);
  const auto time = [&](bool overlap) {
    return estimate_layout(c, model, {.context = 4, .context_overlap = overlap}, {}, cost_model).step.time;
  };
  const StepTime beside = time(true), before = time(false);
  CHECK(beside.seconds < before.seconds);
  // Two blocks gather 2 x 8 x 64 columns of 8,192 rows in BF16, once each way; three quarters of it come over the
  // network.
  const double gathered = 2 * 2 * 8192.0 * 1024 * 2 * 3 / 4 / 20e9;
  CHECK(before.seconds - beside.seconds < gathered);
}

TEST_CASE("estimate_layout: the parts of a pipeline's step grow with its micro-batches and add up to it",
          "[predict]") {
  Case c = sharded_case(0);
  c.reshard = "on";
  c.grad_sync = "every";
  const ModelConfig model = cut_to(find_model("llama3.2-1b"), 4);
  const ParallelLayout layout{.data = 4, .pipeline = 2};
  const CostModel slow = model_with(1);  // weights of the next micro-batch arrive too late
  std::vector<double> exposed;
  for (const std::int64_t micro_batches : {8, 16, 32}) {
    c.accumulation = micro_batches;
    const LayoutEstimate e = estimate_layout(c, model, layout, {}, slow);
    const StepTime& time = e.step.time;
    exposed.push_back(time.exposed_seconds());
    double parts = time.exposed_seconds() + time.contention + e.bubble_seconds;
    for (const double seconds : time.class_seconds) parts += seconds;
    CHECK(parts == Approx(time.seconds).epsilon(1e-6));
    CHECK(time.exposed_seconds() > 0.3 * time.seconds);
  }
  CHECK(exposed[2] - exposed[1] == Approx(2 * (exposed[1] - exposed[0])));
}

TEST_CASE("estimate_layout: sequence parallelism divides all activations among tensor ranks", "[predict]") {
  const ModelConfig model = cut_to(find_model("llama3.2-1b"), 2);
  const CostModel cost_model(find_machine("h200"));
  const auto per_token = [&](int tensor) {
    const auto peak = [&](std::int64_t seq) {
      Case c = testing::with_flags(sharded_case(1), "--parallel ddp --reshard auto --grad-sync auto");
      c.seq = seq;
      // By rule: a step that overlaps traffic is none of precbench's.
      const ParallelLayout layout{.tensor = tensor, .tensor_overlap = true};
      return static_cast<double>(estimate_layout(c, model, layout, {}, cost_model).peak_bytes);
    };
    return (peak(65536) - peak(32768)) /
           32768;  // long enough that the head's chunk of logits is not the peak
  };
  // Two BF16 matrices of all tokens are gathered or wait to be scattered.
  const double gathered = 2 * 2048 * 2, whole = per_token(1);
  CHECK(per_token(2) == Approx(whole / 2 + gathered).epsilon(0.01));
  CHECK(per_token(4) == Approx(whole / 4 + gathered).epsilon(0.01));
}

TEST_CASE("estimate_layout: blocks of two kinds that cost the same are predicted as blocks of one",
          "[plan]") {
  const CostModel cost_model(find_machine("h100-sxm"));
  Case c;
  c.device = "cuda", c.model = "llama3.2-1b", c.seq = 2048;
  c.parallel = "fsdp", c.batch = 1, c.accumulation = 8;
  ModelConfig model = cut_to(find_model("llama3.2-1b"), 8);
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

/// A pipeline of four stages of two blocks each, whose first block is of another kind than the others.
struct UnequalPipeline {
  Case c = testing::case_of_flags(
      "--device cuda --model llama3.2-1b --recipe tensorwise --seq 2048 --batch 1 --accumulation 8");
  ModelConfig model = cut_to(find_model("llama3.2-1b"), 8);
  ParallelLayout layout{.data = 2, .pipeline = 4};
  CostModel cost_model{find_machine("h200")};

  LayoutEstimate estimate(const std::string& flags) const {
    return estimate_layout(testing::with_flags(c, flags), model, layout, {}, cost_model);
  }
  StageTimes times(const std::string& flags) const {
    return stage_times(testing::with_flags(c, flags), model, layout, {}, cost_model);
  }
  /// Returns the seconds of a step whose first block takes the times of `first` and all others those of `rest`, with
  /// embedding and head.
  double seconds(const StageTimes& first, const StageTimes& rest) const {
    PipelineTimes pipeline;
    double around = 0;
    for (int stage = 0; stage < layout.pipeline; ++stage) {
      const StageTimes& one = stage == 0 ? first : rest;
      ChunkSeconds chunk{one.forward.one.seconds + rest.forward.one.seconds,
                         one.backward.one.seconds + rest.backward.one.seconds};
      if (stage == 0) chunk.forward += rest.embedding_forward, chunk.backward += rest.embedding_backward;
      if (stage == 3) {
        chunk.forward += rest.forward.rest.seconds - rest.embedding_forward;
        chunk.backward += rest.backward.rest.seconds - rest.embedding_backward;
      }
      pipeline.chunks.push_back({chunk});
      const double ends = stage == 0 || stage == 3 ? 0.5 * rest.around.rest.seconds : 0;
      around = std::max(around, one.around.one.seconds + rest.around.one.seconds + ends);
    }
    pipeline.transfer = cost_model.network().seconds(Collective::send_recv, {4, 2}, 2048.0 * 2048 * 2);
    return pipeline_seconds(pipeline, c.accumulation) + around;
  }
};

TEST_CASE("estimate_layout: a stage takes the sum of its blocks, converted or not", "[layout]") {
  const UnequalPipeline pipeline;
  const StageTimes bf16 = pipeline.times("--recipe bf16"), fp8 = pipeline.times("");
  CHECK(fp8.forward.one.seconds < bf16.forward.one.seconds);
  // A block that a recipe leaves in BF16 takes what BF16 takes, wherever it stands.
  const LayoutEstimate first = pipeline.estimate("--keep-bf16 first:1");
  // Its weights have amaxes, though.
  CHECK(first.step.time.seconds == Approx(pipeline.seconds(bf16, fp8)).epsilon(1e-6));
  CHECK(pipeline.estimate("--recipe bf16").step.time.seconds ==
        Approx(pipeline.seconds(bf16, bf16)).epsilon(1e-9));
  CHECK(pipeline.estimate("").step.time.seconds == Approx(pipeline.seconds(fp8, fp8)).epsilon(1e-9));
  // The slowest stage decides: the last one has the head, and two blocks in BF16 make it slower still.
  const double last = pipeline.estimate("--keep-bf16 last:0.25").step.seconds;
  CHECK(first.step.seconds < last);
  CHECK(pipeline.estimate("").step.seconds < first.step.seconds);
  CHECK(last < pipeline.estimate("--recipe bf16").step.seconds);
  // One linear layer of one block.
  const double one = pipeline.estimate("--keep-bf16 block:0.down").step.seconds;
  CHECK(pipeline.estimate("").step.seconds < one);
  CHECK(one < first.step.seconds);
}

TEST_CASE("estimate_layout: a stage needs the memory of its own blocks, converted or not", "[layout]") {
  const UnequalPipeline pipeline;
  const LayoutEstimate bf16 = pipeline.estimate("--recipe bf16"), fp8 = pipeline.estimate(""),
                       first = pipeline.estimate("--keep-bf16 first:1"),
                       last = pipeline.estimate("--keep-bf16 last:2");
  REQUIRE(first.stages.size() == 4);
  for (const std::size_t stage : {1, 2, 3}) CHECK(first.stages[stage].peak() == fp8.stages[stage].peak());
  for (const std::size_t stage : {0, 1, 2}) CHECK(last.stages[stage].peak() == fp8.stages[stage].peak());
  const auto activations = [](const LayoutEstimate& e, std::size_t stage) {
    return static_cast<double>(e.stages[stage].activations);
  };
  // Half of the first stage's blocks are BF16's; what is not of a block is FP8's.
  const double rest = 2048 * 8192;  // a quantized copy
  CHECK(activations(first, 0) ==
        Approx((activations(bf16, 0) + rest + activations(fp8, 0)) / 2).epsilon(0.001));
  CHECK(activations(last, 3) == Approx(activations(bf16, 3) + rest).epsilon(0.001));
  std::int64_t most = 0;
  for (const StageMemory& stage : first.stages) most = std::max(most, stage.peak());
  CHECK(first.peak_bytes == most);
}

TEST_CASE("estimate_layout: stages whose blocks recompute and stages whose blocks do not", "[layout]") {
  const UnequalPipeline pipeline;
  const LayoutEstimate none = pipeline.estimate("--recompute none"),
                       all = pipeline.estimate("--recompute block"),
                       four = pipeline.estimate("--recompute block:4"),
                       one = pipeline.estimate("--recompute block:1");
  const auto activations = [](const LayoutEstimate& e, std::size_t stage) {
    return static_cast<double>(e.stages[stage].activations);
  };
  for (const std::size_t stage : {0, 1, 2, 3})
    CHECK(activations(four, stage) == Approx(activations(stage < 2 ? all : none, stage)).epsilon(0.02));
  CHECK(none.step.seconds < one.step.seconds);
  CHECK(one.step.seconds < four.step.seconds);
  CHECK(four.step.seconds < all.step.seconds);
}

TEST_CASE("estimate_layout: stages of DeepSeek-V3 hold dense blocks and blocks with experts", "[plan]") {
  const CostModel cost_model(find_machine("gb200-nvl72"));
  Case c;
  c.device = "cuda", c.model = "deepseek-v3", c.seq = 2048, c.gpus = 256;
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

TEST_CASE("estimate_layout: a share of recomputing blocks lies between none and all, in time and in memory",
          "[predict]") {
  const ModelConfig model = cut_to(find_model("llama3.2-1b"), 4);
  const CostModel cost_model(find_machine("h200"));
  Case c = sharded_case(4);
  c.recompute = "block";
  for (const ParallelLayout& layout : {ParallelLayout{.data = 4}, ParallelLayout{.data = 4, .pipeline = 2}}) {
    const auto estimate = [&](double share) {
      const RecomputeShare recompute{.blocks = share};
      Case own = c;
      if (share == 0) own.recompute = "none";
      const LayoutEstimate e = estimate_layout(own, model, layout, recompute, cost_model);
      std::int64_t most = 0;
      for (const StageMemory& stage : layout_memory(own, model, layout, recompute))
        most = std::max(most, stage.peak());
      CHECK(e.peak_bytes == most);
      return e;
    };
    INFO(layout.pipeline);
    const LayoutEstimate none = estimate(0), quarter = estimate(0.25), all = estimate(1);
    CHECK(all.peak_bytes < none.peak_bytes);
    const auto activations = [](const LayoutEstimate& e) {
      return static_cast<double>(e.stages.front().activations);
    };
    CHECK(activations(quarter) == Approx(0.75 * activations(none) + 0.25 * activations(all)).epsilon(1e-9));
    CHECK(none.step.seconds < quarter.step.seconds);
    CHECK(quarter.step.seconds < (none.step.seconds + all.step.seconds) / 2);
  }
}

}  // namespace
}  // namespace precbench
