// Predicted steps of committed records, whose own families are left out, and properties of every prediction.
#include "bench/predict/cost_model.h"

#include <cmath>
#include <map>

#include "bench/case/case_testing.h"
#include "bench/predict/own_prediction.h"
#include "bench/predict/predict.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "results/record/record_file.h"

namespace precbench {
namespace {

Plan plan_of(const char* model, const char* recipe, std::int64_t gpus, const char* parallel,
             std::int64_t accumulation = 1) {
  Case c;
  c.device = "cuda";
  c.model = model;
  c.recipe = recipe;
  c.seq = 8192;
  c.batch = 1;
  c.gpus = gpus;
  c.parallel = parallel;
  c.accumulation = accumulation;
  if (c.parallel == "hsdp") c.shard_group = 8;
  c.recompute = "block";
  return validate(c);
}

StepEstimate estimate(const CostModel& model, const Plan& plan) {
  return estimate_step(model, dry_run(plan, nullptr).trace, plan.ranks);
}

/// Predicts the native records of a file with rates of other models and recipes, by GPU count.
std::map<std::int64_t, OwnErrors> errors_of(const char* file) {
  const RecordSet set = read_records({PRECBENCH_SOURCE_DIR + std::string(file)});
  std::map<std::int64_t, OwnErrors> errors;
  for (const OwnErrors& group : errors_by_gpus(predict_records(set).steps))
    if (!group.uneven) errors[group.gpus] = group;
  return errors;
}

TEST_CASE("estimate_step: committed steps on one H200 from rates of other models and recipes",
          "[cost-model]") {
  const OwnErrors one = errors_of("/results/h200/single.jsonl.xz").at(1);
  REQUIRE(one.steps > 35);
  CHECK(one.median < 0.03);
  CHECK(one.within_95 < 0.07);
  CHECK(one.worst < 0.12);
}

TEST_CASE("estimate_step: committed steps on two and four H200", "[cost-model]") {
  const auto all = errors_of("/results/h200x4/scaling.jsonl.xz");
  for (const std::int64_t gpus : {2, 4}) {
    INFO(gpus << " GPUs");
    const OwnErrors& errors = all.at(gpus);
    CHECK(errors.steps > 10);
    CHECK(errors.median < 0.03);
    CHECK(errors.within_95 < 0.07);
    CHECK(errors.worst < 0.12);
  }
}

TEST_CASE("estimate_step: the parts add up, and the interval holds the estimate", "[cost-model]") {
  for (const char* machine : {"h200", "h100-sxm", "b200", "rtx-4090"})
    for (const char* recipe : {"bf16", "tensorwise"}) {
      INFO(machine << " " << recipe);
      const StepEstimate step =
          estimate(CostModel(find_machine(machine)), plan_of("llama3.2-1b", recipe, 1, "ddp"));
      double ops = 0;
      for (const double one : step.rate_seconds) ops += one;
      CHECK(ops == Approx(step.seconds));
      CHECK((step.low() < step.seconds && step.seconds < step.high()));
      CHECK((step.borrowed_share() >= 0 && step.borrowed_share() <= 1));
      if (machine == std::string("rtx-4090")) CHECK(step.borrowed_share() == 1);
      // Backward attention and ops other than GEMMs and casts have no ratio of their own.
      if (machine == std::string("b200"))
        CHECK((step.borrowed_share() > 0.05 && step.borrowed_share() < 0.7));
    }
}

TEST_CASE("estimate_step: soft-capped attention takes longer and counts as borrowed", "[cost-model]") {
  const CostModel model(find_machine("h200"));
  Plan plan = plan_of("llama3.2-1b", "bf16", 1, "ddp");
  const StepEstimate plain = estimate(model, plan);
  plan.model.block.attention_softcap = 50;
  const StepEstimate capped = estimate(model, plan);
  for (const RateClass one : {RateClass::gemm, RateClass::attention, RateClass::memory}) {
    const auto at = static_cast<std::size_t>(one);
    INFO(name_of(one));
    CHECK(capped.rate_seconds[at] ==
          Approx((one == RateClass::attention ? 1.25 : 1) * plain.rate_seconds[at]));
  }
  const double attention = capped.rate_seconds[static_cast<std::size_t>(RateClass::attention)];
  CHECK(capped.borrowed_seconds == Approx(plain.borrowed_seconds + attention));
}

TEST_CASE("estimate_step: LoRA on short sequences takes about what it took on an H200", "[cost-model]") {
  Case c = testing::case_of_flags(
      "--device cuda --model smollm2-135m --recipe bf16 --seq 96 --batch 256 --lora-rank 16");
  // The fastest profiled step in results/h200/lora-smollm2.jsonl.xz, of a BF16 fork. No rates of such shapes were
  // measured.
  constexpr double kMeasured = 66.4e-3;
  const double predicted = estimate(CostModel(find_machine("h200")), validate(c)).seconds;
  CHECK(predicted > 0.8 * kMeasured);
  CHECK(predicted < 1.2 * kMeasured);
}

TEST_CASE("estimate_step: a faster network, memory or GPU never makes a step slower", "[cost-model]") {
  const Plan plan = plan_of("llama3.1-8b", "bf16", 16, "fsdp");
  const Trace trace = dry_run(plan, nullptr).trace;
  const Machine base = find_machine("gb200-nvl72");
  const auto seconds = [&](auto&& change) {
    Machine machine = base;
    change(machine);
    return estimate_step(CostModel(machine), trace, plan.ranks).seconds;
  };
  const double now = seconds([](Machine&) {});
  CHECK(seconds([](Machine& m) { m.levels.front().gb_per_s *= 2; }) <= now);
  CHECK(seconds([](Machine& m) { m.levels.front().gb_per_s /= 10; }) > now);
  CHECK(seconds([](Machine& m) { m.memory_gb_per_s *= 2; }) < now);
  CHECK(seconds([](Machine& m) {
          m.bf16_tflops *= 2;
          if (m.sustained.bf16) *m.sustained.bf16 *= 2;
        }) < now);
}

TEST_CASE("estimate_step: more GPUs across nodes cost efficiency, and stragglers grow", "[cost-model]") {
  const CostModel model(find_machine("h100-sxm"));
  double last = 0, factor = 0;
  for (const std::int64_t gpus : {1, 8, 64, 512}) {
    const Plan plan = plan_of("llama3.1-8b", "bf16", gpus,
                              gpus == 1   ? "ddp"
                              : gpus == 8 ? "fsdp"
                                          : "hsdp",
                              4);
    const StepEstimate step = estimate(model, plan);
    INFO(gpus);
    CHECK(step.straggler_factor > factor);
    if (gpus >= 8) CHECK(step.seconds > last);
    factor = step.straggler_factor;
    last = step.seconds;
  }
}

TEST_CASE("estimate_step: speed-ups over BF16 are more certain than step times", "[cost-model]") {
  const CostModel model(find_machine("h200"));
  const StepEstimate bf16 = estimate(model, plan_of("llama3.1-8b", "bf16", 1, "ddp")),
                     fp8 = estimate(model, plan_of("llama3.1-8b", "tensorwise", 1, "ddp"));
  CHECK(bf16.seconds / fp8.seconds > 1.15);
  CHECK(speedup_log_error(bf16, fp8) < std::hypot(bf16.log_error, fp8.log_error));
}

TEST_CASE("dry_run: 192 micro-steps of 405B on 2048 ranks are three in the trace", "[cost-model]") {
  Case c = plan_of("llama3.1-405b", "mxfp8", 2048, "fsdp", 1).fields;
  c.accumulation = 192;
  c.seq = 4096;
  const Plan plan = validate(c);
  const Trace trace = dry_run(plan, nullptr).trace;
  CHECK(trace.repeats == 190);
  CHECK(trace.events.size() < 60000);
  CHECK(trace.ops.size() < 200);
  CHECK(estimate_step(CostModel(find_machine("b200")), trace, plan.ranks).seconds > 10);
}

TEST_CASE("predicted_step: of a known GPU, from its name alone", "[cost-model]") {
  const Plan plan = plan_of("llama3.2-1b", "bf16", 1, "ddp");
  const Trace trace = dry_run(plan, nullptr).trace;
  const auto h200 = predicted_step("NVIDIA H200", trace, 1);
  REQUIRE(h200);
  CHECK(h200->rates == "h200");
  CHECK(h200->step_ms == Approx(1e3 * estimate(CostModel(find_machine("h200")), plan).seconds));
  CHECK((h200->low_ms < h200->step_ms && h200->step_ms < h200->high_ms));
  CHECK_FALSE(predicted_step("NVIDIA H200 MIG 1g.18gb", trace, 1));
}

TEST_CASE("predicted_step: two GPUs on two nodes share the nodes' network, which must be known",
          "[cost-model]") {
  const Trace trace = dry_run(plan_of("llama3.2-1b", "bf16", 2, "fsdp"), nullptr).trace;
  const auto together = predicted_step("NVIDIA H200", trace, 2),
             apart = predicted_step("NVIDIA H200", trace, 2, 2);
  REQUIRE((together && apart));
  CHECK(apart->step_ms > 1.1 * together->step_ms);
  CHECK_FALSE(with_nodes(find_machine("h200-nvl"), 2, 2));
  CHECK(with_nodes(find_machine("h200"), 16, 2)->levels.front().gpus == 8);
  CHECK(with_nodes(find_machine("h200"), 8, 2)->levels.front().gpus == 4);
}

TEST_CASE("CostModel::rates_of: the same as the times of each op, also of ops that were timed before",
          "[cost-model]") {
  Trace trace = dry_run(plan_of("llama3.2-1b", "tensorwise", 2, "fsdp"), nullptr).trace;
  for (const char* machine : {"h200", "b200"}) {
    const CostModel model(find_machine(machine));
    for (const bool softcap : {false, false, true, false}) {  // not a field of the ops
      trace.attention.softcap = softcap;
      const TimelineRates rates = model.rates_of(trace);
      for (std::size_t i = 0; i < trace.ops.size(); ++i) {
        const CostModel::Time time = model.time(trace.ops[i], trace.attention);
        CHECK(rates.op_seconds[i] == time.seconds);
        CHECK(rates.borrowed[i] == time.borrowed);
        CHECK(rates.ratio_errors[i] == time.ratio_error);
      }
    }
  }
}

TEST_CASE("CostModel: a machine that names rates which do not exist is refused", "[cost-model]") {
  Machine machine = find_machine("b200");
  machine.rates_from = "mi300x";
  CHECK_THROWS_WITH(CostModel(machine), ContainsText("no rates of \"mi300x\""));
}

TEST_CASE("CostModel: an FP4 GEMM reaches the fraction of the FP4 peak that one in FP8 reaches of its own",
          "[predict]") {
  Machine machine = find_machine("gb300");
  machine.name = "without-ratios";
  REQUIRE_FALSE(machine.sustained.fp4);
  const CostModel model(machine);
  const auto seconds = [&](const char* recipe) {
    const GemmRecipe& gemm = find_recipe(recipe).fprop;
    const auto format = [](const QuantFormat& f) { return OpFormat{f.dtype, f.granularity, f.scale}; };
    OpCost op{
        .name = "matmul fprop", .op_class = OpClass::gemm, .flops = 2.0 * 8192 * 28672 * 8192, .bytes = 1};
    op.math = gemm.a.dtype == DType::e2m1 ? DType::e2m1 : DType::e4m3;
    op.shape = {8192, 28672, 8192};
    op.formats = {format(gemm.a), format(gemm.b)};
    return model.time(op).seconds;
  };
  // FP8 sustains 3726 where an H200, whose peak is 1979, sustains 1453.4.
  const double faster = 15000 / (1979 * 3726 / 1453.4);
  bool any = false;
  for (const char* fp8 : {"tensorwise", "rowwise", "blockwise"})
    any = any || std::abs(seconds(fp8) / seconds("nvfp4_all") / faster - 1) < 0.02;
  CHECK(any);
}

/// Returns a forward GEMM of 8192 x 8192 x 8192 in BF16.
OpCost large_gemm() {
  OpCost op{
      .name = "matmul fprop", .op_class = OpClass::gemm, .flops = 2.0 * 8192 * 8192 * 8192, .bytes = 4e8};
  op.shape = {8192, 8192, 8192};
  return op;
}

TEST_CASE("CostModel: an op with a ratio takes an H200's time over it, whatever the data sheet says",
          "[cost-model]") {
  Machine machine = find_machine("b200");
  const CostModel b200(machine), h200(find_machine("h200"));
  REQUIRE(b200.ratios());
  const OpCost op = large_gemm();
  const auto ratio = b200.ratios()->of(op, false);
  REQUIRE(ratio);
  CHECK(ratio->ratio > 1.5);
  CHECK(ratio->ratio < 2.4);
  const CostModel::Time time = b200.time(op);
  CHECK(time.seconds == Approx(h200.time(op).seconds / ratio->ratio));
  CHECK_FALSE(time.borrowed);
  CHECK(time.ratio_error.value() == Approx(ratio->spread));
  // The sustained rates of its file do not enter, unless they are changed.
  machine.bf16_tflops *= 2;
  *machine.sustained.bf16 *= 2;
  CHECK(CostModel(machine).time(op).seconds == Approx(time.seconds / 2));
  // A GPU without ratios has the H200's fractions of its peaks.
  machine = find_machine("b200");
  machine.name = "without-ratios";
  const CostModel other(machine);
  CHECK_FALSE(other.ratios());
  CHECK(other.time(op).borrowed);
}

TEST_CASE("CostModel: ratios of backward GEMMs are less certain than those of forward ones", "[cost-model]") {
  const CostModel model(find_machine("b200"));
  OpCost op = large_gemm();
  op.math = DType::e4m3;
  const OpFormat e4m3{DType::e4m3, Granularity::tensor, ScaleType::f32},
      e5m2{DType::e5m2, Granularity::tensor, ScaleType::f32};
  op.formats = {e4m3, e4m3};
  const double forward = model.time(op).ratio_error.value();
  op.name = "matmul wgrad";
  op.formats = {e5m2, e4m3};
  CHECK(model.time(op).ratio_error.value() > 1.2 * forward);
  OpCost backward{.name = "attention_backward", .op_class = OpClass::attention, .flops = 1e12, .bytes = 1e8};
  backward.shape = {1, 8192, 8192, 0, 32, 8, 128};
  CHECK(model.time(backward).borrowed);
}

TEST_CASE("CostModel: collectives within a domain take measured times by size", "[cost-model]") {
  const Network measured = CostModel(find_machine("gb200-nvl72")).network(),
                assumed(find_machine("gb200-nvl72"));
  const auto rate = [](const Network& network, double bytes) {
    return 0.75 * bytes / network.seconds(Collective::all_gather, {4, 1}, bytes);
  };
  CHECK(rate(measured, 1 << 28) == Approx(544e9).epsilon(0.02));
  CHECK(rate(measured, 1 << 24) < 0.5 * rate(assumed, 1 << 24));
  // Faster links are faster, and stated fractions hold.
  Machine machine = find_machine("gb200-nvl72");
  machine.levels.front().gb_per_s *= 2;
  CHECK(rate(CostModel(machine).network(), 1 << 28) == Approx(2 * rate(measured, 1 << 28)));
  machine.levels.front().achieved = {{"", {{1, 0.25}}}};
  CHECK(rate(CostModel(machine).network(), 1 << 28) == Approx(rate(Network(machine), 1 << 28)));
  // Beyond the NVLink domain nothing is measured.
  CHECK(measured.seconds(Collective::all_gather, {144, 1}, 1 << 28) ==
        assumed.seconds(Collective::all_gather, {144, 1}, 1 << 28));
}

}  // namespace
}  // namespace precbench
