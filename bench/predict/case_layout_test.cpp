// Layouts of cases: one rank of each axis is the dry run itself, the memory of stages adds up, and a model of 405
// billion parameters fits.
#include "bench/predict/case_layout.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "bench/case/case_testing.h"
#include "bench/predict/predict.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

namespace precbench {
namespace {

Case fsdp_case(const std::string& model) {
  Case c;
  c.device = "cuda";
  c.model = model;
  c.parallel = "fsdp";
  c.seq = 4096;
  c.batch = 1;
  return c;
}

TEST_CASE("estimate_layout: one tensor rank and one stage are the dry run of the case, to the bit",
          "[layout]") {
  const CostModel cost_model(find_machine("h200"));
  int cases = 0;
  for (const char* model : {"llama3.2-1b", "qwen3-30b-a3b"})
    for (const char* parallel : {"ddp", "fsdp", "hsdp"})
      for (const std::int64_t context : {1, 2})
        for (const char* recipe : {"bf16", "tensorwise", "blockwise"})
          for (const auto& [recompute, accumulation] : {std::pair{"none", 1}, {"block:1", 3}}) {
            Case c = fsdp_case(model);
            c.layers = 2;
            c.recipe = recipe;
            c.parallel = parallel;
            c.gpus = 4;
            c.context = context;
            c.recompute = recompute;
            c.accumulation = accumulation;
            if (c.parallel == "hsdp") c.shard_group = 2;
            if (c.model == "qwen3-30b-a3b") c.ep = 2;
            const Plan plan = validate(c);
            INFO(model << " " << parallel << " context " << context << " " << recipe << " " << recompute);
            REQUIRE_FALSE(layout_failure(plan));
            const DryRun run = dry_run(plan, nullptr);
            const StepEstimate own = estimate_step(cost_model, run.trace, plan.ranks);
            const LayoutEstimate layout = estimate_layout(plan, cost_model);
            CHECK(layout.step.seconds == own.seconds);
            CHECK(layout.step.log_error == own.log_error);
            CHECK(layout.step.time.exposed == own.time.exposed);
            CHECK(layout.comms == run.trace.comms);
            CHECK(layout.peak_bytes == run.most());
            CHECK(layout.bubble_seconds == 0);
            REQUIRE(layout.stages.size() == 1);
            CHECK(layout.stages.front().peak() == run.most());
            ++cases;
          }
  CHECK(cases == 72);
}

TEST_CASE("estimate_layout: the memory of all stages is that of the model", "[layout]") {
  const CostModel cost_model(find_machine("h200"));
  Case c = fsdp_case("llama3.1-8b");
  c.gpus = 32;
  c.accumulation = 16;
  for (const auto& [pipeline, virtual_stages] : {std::pair{2, 1}, {4, 1}, {4, 2}, {8, 1}}) {
    Case whole = c;
    whole.gpus = c.gpus / pipeline;  // as many data ranks as a stage has
    whole.pipeline = whole.virtual_stages = 1;
    const DryRun run = dry_run(validate(whole), nullptr);
    c.pipeline = pipeline;
    c.virtual_stages = virtual_stages;
    const Plan plan = validate(c);
    const LayoutEstimate layout = estimate_layout(plan, cost_model);
    REQUIRE(layout.stages.size() == static_cast<std::size_t>(pipeline));
    std::int64_t layers = 0, most = 0;
    double states = 0;
    for (const StageMemory& stage : layout.stages) {
      layers += stage.layers;
      states += static_cast<double>(stage.states);
      most = std::max(most, stage.peak());
    }
    INFO("pipeline " << pipeline << " virtual stages " << virtual_stages);
    CHECK(layers == 32);
    CHECK(most == layout.peak_bytes);
    double whole_states = 0;
    for (const Segment segment : {Segment::weights, Segment::master, Segment::gradients, Segment::moments})
      whole_states += static_cast<double>(run.peak.bytes[static_cast<int>(segment)]);
    CHECK(states == Approx(whole_states).epsilon(1e-3));
    for (const StageMemory& stage : layout.stages)
      CHECK(stage.peak() == stage.states + stage.buffers + stage.activations);
    // The first stage waits longest for its backward passes, so it holds the most activations.
    CHECK(layout.stages.front().activations ==
          std::max_element(
              layout.stages.begin(), layout.stages.end(),
              [](const StageMemory& a, const StageMemory& b) { return a.activations < b.activations; })
              ->activations);
    CHECK(layout.stages.front().micro_batches > layout.stages.back().micro_batches);
    CHECK(layout_memory(plan).front().peak() == layout.stages.front().peak());
    CHECK(layout_memory(plan).back().peak() == layout.stages.back().peak());
  }
}

TEST_CASE("layout_memory: a sharded stage has the same buffers, however many layers it has", "[layout]") {
  Case c = fsdp_case("llama3.1-8b");
  c.accumulation = 8;
  const auto buffers = [&](std::int64_t pipeline) {
    c.gpus = 4 * pipeline;
    c.pipeline = pipeline;
    const std::vector<StageMemory> stages = layout_memory(validate(c));
    for (const StageMemory& stage : stages) CHECK(stage.buffers == stages.front().buffers);
    return static_cast<double>(stages.front().buffers);
  };
  // At least the gathered BF16 weights and FP32 gradients of one block.
  const double block = 2 * 4096.0 * 4096 + 2 * 4096.0 * 1024 + 3 * 4096.0 * 14336;
  CHECK(buffers(4) > 6 * block);
  CHECK(buffers(4) == Approx(buffers(16)).epsilon(0.01));
}

TEST_CASE("estimate_layout: more micro-batches or groups of layers make the bubble smaller", "[layout]") {
  const CostModel cost_model(find_machine("h100-sxm"));
  Case c = testing::with_flags(fsdp_case("llama3.1-8b"), "--parallel ddp --gpus 16 --tensor 2 --pipeline 4");
  const auto bubble = [&](std::int64_t micro_batches, std::int64_t virtual_stages) {
    c.micro_batches = micro_batches;
    c.virtual_stages = virtual_stages;
    const LayoutEstimate e = estimate_layout(validate(c), cost_model);
    return e.bubble_seconds / e.step.time.seconds;
  };
  const double few = bubble(8, 1), many = bubble(32, 1), interleaved = bubble(8, 4);
  CHECK(few > many);
  CHECK(few > interleaved);
  CHECK(few == Approx(3.0 / (8 + 3)).epsilon(0.2));  // stages - 1 of micro-batches + stages - 1
}

TEST_CASE("axes_of_layout: groups of a layout are named by what they share", "[layout]") {
  const CostModel cost_model(find_machine("h200"));
  Case c = testing::with_flags(fsdp_case("qwen3-30b-a3b"),
                               "--layers 2 --gpus 16 --tensor 2 --ep 8 --exchange slots");
  const Plan plan = validate(c);
  REQUIRE_FALSE(layout_failure(plan));
  const LayoutEstimate e = estimate_layout(plan, cost_model);
  const auto size_of = [](const std::vector<int>& ranks, const Plan& local) {
    return std::to_string(ranks.size()) + " of " + std::to_string(local.ranks);
  };
  const std::vector<std::string> axes = axes_of_layout(plan, e.comms, size_of);
  CHECK(axes.size() == e.comms.size());
  const std::set<std::string> names(axes.begin(), axes.end());
  CHECK(names.contains("tensor"));
  CHECK(names.contains("experts"));
  CHECK(names.contains("8 of 8"));
}

TEST_CASE("layout_failure: a rank's share is checked as a rank of its own", "[layout]") {
  Case c = testing::with_flags(fsdp_case("llama3.1-8b"), "--gpus 64 --tensor 32 --recipe blockwise");
  CHECK_FALSE(layout_failure(validate(c)));
  c.recipe = "mxfp8";
  c.model = "smollm2-135m";  // 1536 / 3 columns of the FFN, 192 of queries
  c.gpus = 6;
  c.tensor = 3;
  c.seq = 9216;
  CHECK_FALSE(layout_failure(validate(c)));
  c.context = 3;
  CHECK_THAT(layout_failure(validate(c)).value_or(""),
             Catch::Matchers::StartsWith("--gpus 6: not a multiple of 9"));
  c.tensor = 2, c.model = "llama3.1-8b", c.gpus = 12;
  c.seq = 4100;
  CHECK(layout_failure(validate(c)) == "--context 3: seq 4100 is not a multiple of 6, two chunks per rank");
}

TEST_CASE(
    "layout_failure: sizes decide by matrices where tensor ranks have a step, by a rank's slices elsewhere",
    "[layout][tensor]") {
  Case c = fsdp_case("llama3.2-1b");
  c.layers = 2, c.gpus = c.tensor = 2, c.recipe = "rowwise", c.keep_bf16 = "torchao_auto";
  CHECK_FALSE(layout_failure(validate(c)));
  c.overlap = "tensor";
  CHECK(contains(layout_failure(validate(c)).value_or(""),
                 "a tensor rank's slices of all linear layers are too small"));
}

TEST_CASE("estimate_layout: llama3.1-405b fits 1,024 H100 with tensor and pipeline ranks", "[layout]") {
  const CostModel cost_model(find_machine("h100-sxm"));
  Case c = testing::with_flags(fsdp_case("llama3.1-405b"),
                               "--seq 8192 --gpus 1024 --tensor 8 --pipeline 16 --micro-batches 32");
  for (const char* recipe : {"bf16", "tensorwise"}) {
    c.recipe = recipe;
    const Plan plan = validate(c);
    REQUIRE_FALSE(layout_failure(plan));
    const LayoutEstimate e = estimate_layout(plan, cost_model);
    CHECK(e.peak_bytes > std::int64_t{30} << 30);
    CHECK(e.peak_bytes < usable_bytes(cost_model.machine()));
    const double flops = static_cast<double>(plan.tokens_per_step() * plan.flops_per_token());
    const double peak_share = flops / 1024 / e.step.seconds / 989e12;
    CHECK(peak_share > 0.2);
    CHECK(peak_share < 0.8);
  }
}

TEST_CASE("estimate_layout: replicas that shard their optimizer hold less and reduce as much", "[layout]") {
  const CostModel cost_model(find_machine("h100-sxm"));
  const auto estimate = [&](Case c, const char* shard) {
    c.shard_optimizer = shard;
    const Plan plan = validate(c);
    REQUIRE_FALSE(layout_failure(plan));
    return estimate_layout(plan, cost_model);
  };
  Case c = fsdp_case("llama3.2-1b");
  c.layers = 4, c.gpus = 8;
  c.parallel = "ddp";
  const double parameters = static_cast<double>(parameter_count(validate(c).model));
  const LayoutEstimate whole = estimate(c, "off"), sharded = estimate(c, "on");
  // Master weights and two moments in FP32: an eighth of them stays.
  CHECK(static_cast<double>(whole.peak_bytes - sharded.peak_bytes) ==
        Approx(12 * parameters * 7 / 8).epsilon(0.01));
  CHECK(sharded.step.seconds < whole.step.seconds);  // the update of an eighth, and half of the gather
  // FSDP shards all but experts that several ranks hold whole.
  c = fsdp_case("qwen3-30b-a3b");
  c.layers = 2, c.gpus = 16, c.ep = 4, c.exchange = "slots";
  const ModelConfig model = validate(c).model;
  const double experts = 2.0 * 128 / 4 * 3 * static_cast<double>(model.width * model.moe.expert_ffn);
  const LayoutEstimate own = estimate(c, "off"), shared = estimate(c, "on");
  CHECK(static_cast<double>(own.peak_bytes - shared.peak_bytes) ==
        Approx(12 * experts * 3 / 4).epsilon(0.01));
}

TEST_CASE("layout_memory: tensor ranks are predicted to need what their own step needs", "[layout][tensor]") {
  for (const auto& [recipe, gpus, parallel, recompute, seq] : {std::tuple{"bf16", 2, "ddp", "none", 8192},
                                                               {"tensorwise", 2, "ddp", "none", 8192},
                                                               {"blockwise", 4, "fsdp", "none", 16384}}) {
    Case c = fsdp_case("llama3.2-1b");
    c.recipe = recipe, c.gpus = gpus, c.parallel = parallel, c.recompute = recompute, c.seq = seq,
    c.tensor = 2;
    const StageMemory predicted = layout_memory(validate(c)).front();
    c.device = "cpu";
    const auto own = static_cast<double>(dry_run(validate(c), nullptr).most());
    INFO(recipe << " " << parallel << " " << recompute << ": " << predicted.peak() / own);
    CHECK(predicted.peak() == Approx(own).epsilon(0.07));
  }
}

TEST_CASE("estimate_layout: tensor ranks send FP8 data for a recipe with one scale, unless told otherwise",
          "[layout]") {
  const CostModel cost_model(find_machine("h100-sxm"));
  const auto seconds = [&](const char* recipe, const char* gather) {
    Case c = fsdp_case("llama3.2-1b");
    c.layers = 2, c.gpus = 8, c.tensor = 2, c.seq = 16384, c.recipe = recipe, c.tensor_gather = gather;
    const Plan plan = validate(c);
    REQUIRE_FALSE(layout_failure(plan));
    return estimate_layout(plan, cost_model).step.seconds;
  };
  CHECK(seconds("tensorwise", "auto") < seconds("tensorwise", "bf16"));
  CHECK(seconds("bf16", "auto") == seconds("bf16", "bf16"));
}

TEST_CASE("estimate_layout: overlapped traffic is less exposed", "[layout]") {
  const CostModel cost_model(find_machine("h100-sxm"));
  Case c = fsdp_case("llama3.2-1b");
  c.layers = 4, c.gpus = 8, c.tensor = 2, c.context = 2;
  const auto exposed = [&](const char* overlap, const std::string& axis) {
    c.overlap = overlap;
    const Plan plan = validate(c);
    REQUIRE_FALSE(layout_failure(plan));
    const LayoutEstimate e = estimate_layout(plan, cost_model);
    const auto axes = axes_of_layout(plan, e.comms, [](const std::vector<int>& ranks, const Plan& traced) {
      const int stride = ranks[1] - ranks[0];
      return std::string(ranks.size() != 2                         ? "others"
                         : traced.fields.tensor > 1 && stride == 1 ? "tensor"
                                                                   : "context");
    });
    double seconds = 0;
    for (std::size_t i = 0; i < axes.size(); ++i)
      if (axes[i] == axis) seconds += e.step.time.exposed[i];
    return seconds;
  };
  CHECK(exposed("tensor", "tensor") < 0.9 * exposed("none", "tensor"));
  CHECK(exposed("context", "context") < 0.9 * exposed("none", "context"));
  CHECK(exposed("context", "tensor") == Approx(exposed("none", "tensor")));
  CHECK(exposed("all", "tensor") == Approx(exposed("tensor", "tensor")));
}

}  // namespace
}  // namespace precbench
