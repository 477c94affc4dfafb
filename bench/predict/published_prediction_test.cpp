// Judging: errors, coverage and floors of hand-made predictions, and what a prediction must do whatever the rates are.
#include "bench/predict/published_prediction.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kernels/testing/catch.h"

namespace precbench {
namespace {

Judgement absolute(const std::string& architecture, double published, double predicted, double width) {
  return {"x",       JudgedAs::absolute_native, architecture,     published,
          predicted, predicted / width,         predicted * width};
}

const GroupResult& result_of(const std::vector<GroupResult>& results, ErrorGroup group) {
  return results.at(static_cast<std::size_t>(group));
}

TEST_CASE("group_results: medians and coverage and floors by group", "[published]") {
  const std::vector<Judgement> judgements = {
      absolute("Hopper", 100, 101, 1.05), absolute("Hopper", 100, 104, 1.05),
      absolute("Hopper", 100, 110, 1.05), absolute("Blackwell", 100, 140, 1.1),
      Judgement{"y", JudgedAs::scaling, "Hopper", 0.95, 0.99, 0.9, 1.1}};
  const std::vector<GroupResult> results = group_results(judgements);
  const GroupResult& hopper = result_of(results, ErrorGroup::hopper_native);
  CHECK(hopper.points == 3);
  CHECK(hopper.median == Approx(0.04));
  CHECK(hopper.worst == Approx(0.10));
  CHECK(hopper.covered == 2);
  CHECK(hopper.met());
  CHECK_FALSE(result_of(results, ErrorGroup::blackwell_native).met());
  CHECK(result_of(results, ErrorGroup::all_absolute).points == 4);
  CHECK(result_of(results, ErrorGroup::all_absolute).median == Approx(0.07));
  CHECK(result_of(results, ErrorGroup::scaling).median == Approx(0.04));  // a difference of ratios
  CHECK(hopper.bias == Approx(0.05));
  CHECK(std::string(hopper.interval_verdict()) == "too narrow");
  CHECK(std::string(result_of(results, ErrorGroup::scaling).interval_verdict()) == "too wide");
  CHECK_FALSE(result_of(results, ErrorGroup::scaling).met());
  CHECK(coverage(judgements).value() == Approx(3.0 / 5));
  CHECK_FALSE(coverage({}));
  CHECK(result_of(results, ErrorGroup::ada_native).points == 0);
  CHECK(result_of(results, ErrorGroup::ada_native).met());
  CHECK(hopper.half_width == Approx((1.05 - 1 / 1.05) / 2));
  CHECK(hopper.narrow());
  CHECK_FALSE(
      result_of(group_results({absolute("Hopper", 100, 101, 1.2)}), ErrorGroup::hopper_native).narrow());
  CHECK(result_of(group_results({absolute("Ada", 100, 101, 1.2)}), ErrorGroup::ada_native).narrow());
}

TEST_CASE("group_results: speed-ups are judged by architecture too", "[published]") {
  const auto speedup = [](const char* architecture, double predicted) {
    return Judgement{"x", JudgedAs::speedup, architecture, 1.2, predicted, 1.1, 1.3};
  };
  // Eleven exact points of one architecture hide four of another in the common median.
  std::vector<Judgement> judgements(11, speedup("Blackwell", 1.2));
  judgements.insert(judgements.end(), 4, speedup("Hopper", 1.1));
  const std::vector<GroupResult> results = group_results(judgements);
  CHECK(result_of(results, ErrorGroup::speedup).met());
  CHECK_FALSE(result_of(results, ErrorGroup::hopper_speedup).met());
  CHECK(result_of(results, ErrorGroup::hopper_speedup).points == 4);
  CHECK(result_of(results, ErrorGroup::hopper_speedup).bias == Approx(-0.1));
  CHECK(result_of(results, ErrorGroup::blackwell_speedup).median == 0);
  CHECK(result_of(results, ErrorGroup::ada_speedup).points == 0);
}

PublishedPoint some_point(const std::string& gpu, std::int64_t gpus) {
  PublishedPoint p;
  p.id = gpu + std::to_string(gpus);
  p.framework = "megatron";
  p.model = "llama3.1-8b";
  p.gpu = gpu;
  p.gpus = p.dp = gpus;
  p.micro_batch = 1;
  p.global_batch = 4 * gpus;
  p.seq = 4096;
  p.precision = "bf16";
  p.tokens_per_s_per_gpu = 1e4;
  p.judged_as = {JudgedAs::absolute_native};
  return p;
}

TEST_CASE("predict_point: intervals contain the prediction and stacks take PyTorch's factor of other sources",
          "[published]") {
  PublishedPoint point = some_point("h200", 8);
  const PointPrediction native = predict_point(point);
  REQUIRE(native.reason.empty());
  CHECK(native.low < native.tokens_per_s_per_gpu);
  CHECK(native.tokens_per_s_per_gpu < native.high);
  CHECK_FALSE(native.stack_factor);
  point.framework = "torchtitan";
  const PointPrediction stack = predict_point(point);
  REQUIRE(stack.stack_factor);
  CHECK(stack.tokens_per_s_per_gpu ==
        Approx(stack.own_tokens_per_s_per_gpu * stack_factor(Stack::pytorch, stack.setting).factor));
  CHECK(std::log(stack.high / stack.tokens_per_s_per_gpu) ==
        Approx(kInterval80 * std::hypot(stack.step->log_error, stack.stack_factor->log_error)));
  point.id = "kempner-x";  // a point's own source has no say in its prediction
  CHECK(predict_point(point).stack_factor->factor ==
        stack_model_without("kempner").factor(Stack::pytorch, stack.setting).factor);
  CHECK(predict_point(point).stack_factor->factor != stack.stack_factor->factor);
}

TEST_CASE("predict_point: pipeline stages cost a bubble and more micro-batches a smaller one",
          "[published]") {
  PublishedPoint point = some_point("h200", 8);
  point.dp = 2;
  point.pp = 4;
  point.global_batch = 16;
  const PointPrediction few = predict_point(point);
  REQUIRE(few.reason.empty());
  point.global_batch = 128;
  const PointPrediction many = predict_point(point);
  CHECK(few.bubble_share > many.bubble_share);
  CHECK(many.tokens_per_s_per_gpu > few.tokens_per_s_per_gpu);
}

TEST_CASE("predict_point: says why it cannot predict", "[published]") {
  CHECK(predict_point(some_point("abacus", 8)).reason == "no machine file of the GPU abacus");
  PublishedPoint point = some_point("h200", 8);
  point.precision = "mxfp8";
  CHECK(predict_point(point).reason == "mxfp8 is emulated on h200");
  point = some_point("h200", 8);
  point.gpus = std::nullopt;
  CHECK(predict_point(point).reason == "the number of GPUs is not stated");
}

TEST_CASE("predict_point: NVFP4 and sharded pipelines and divided experts are predicted", "[published]") {
  PublishedPoint fp4 = some_point("gb300", 8);
  fp4.precision = "nvfp4";
  const PointPrediction quantized = predict_point(fp4), bf16 = predict_point(some_point("gb300", 8));
  REQUIRE(quantized.reason.empty());
  CHECK(quantized.tokens_per_s_per_gpu > bf16.tokens_per_s_per_gpu);
  PublishedPoint sharded = some_point("h200", 16);
  sharded.dp = 4;
  sharded.fsdp = 4;
  sharded.pp = 4;
  sharded.global_batch = 64;
  PublishedPoint replicated = sharded;
  replicated.fsdp = std::nullopt;
  const PointPrediction kept = predict_point(sharded);
  REQUIRE(kept.reason.empty());
  CHECK(kept.bubble_share > 0);
  CHECK(kept.tokens_per_s_per_gpu == Approx(predict_point(replicated).tokens_per_s_per_gpu).epsilon(0.05));
  PublishedPoint moe = some_point("h200", 16);
  moe.model = "qwen3-30b-a3b";
  moe.dp = 4;
  moe.tp = 2;
  moe.pp = 2;
  moe.ep = 8;
  moe.global_batch = 64;
  const PointPrediction divided = predict_point(moe);
  CHECK(divided.reason.empty());
  CHECK(divided.exposed_share > 0);
}

TEST_CASE("judge: ratios compare two predictions of one source", "[published]") {
  PublishedPoint base = some_point("h200", 8), more = some_point("h200", 64);
  more.judged_as = {JudgedAs::scaling};
  more.scaling_from_id = base.id;
  more.tokens_per_s_per_gpu = 0.95e4;
  const std::vector<PublishedPoint> points = {base, more};
  const std::vector<Judgement> judgements = judge(points, predict_points(points));
  REQUIRE(judgements.size() == 2);
  CHECK(judgements[0].as == JudgedAs::absolute_native);
  CHECK(judgements[1].published == Approx(0.95));
  CHECK(judgements[1].predicted < 1);
  CHECK(judgements[1].predicted > 0.8);
  const nlohmann::ordered_json line = prediction_json(more, predict_points(points)[1], judgements);
  CHECK(line["judged"][0]["as"] == "scaling");
}

TEST_CASE("judge: a scaling ratio that the source states needs no tokens/s", "[published]") {
  PublishedPoint base = some_point("h200", 8), more = some_point("h200", 64);
  base.tokens_per_s_per_gpu = more.tokens_per_s_per_gpu = std::nullopt;
  more.judged_as = {JudgedAs::scaling};
  more.scaling_from_id = base.id;
  const std::vector<PublishedPoint> without = {base, more};
  CHECK(judge(without, predict_points(without)).empty());
  more.scaling_ratio = 0.93;
  const std::vector<PublishedPoint> points = {base, more};
  const std::vector<Judgement> judgements = judge(points, predict_points(points));
  REQUIRE(judgements.size() == 1);
  CHECK(judgements[0].published == 0.93);
}

TEST_CASE("judge: ratios of one source are not widened, and stacks' speed-ups have their factors' spread",
          "[published]") {
  PublishedPoint bf16 = some_point("h200", 8), fp8 = bf16;
  fp8.id = "fp8";
  fp8.precision = "tensorwise";
  fp8.judged_as = {JudgedAs::speedup};
  fp8.speedup_over_id = bf16.id;
  const auto log_width = [&](const char* framework) {
    bf16.framework = fp8.framework = framework;
    const std::vector<PublishedPoint> points = {bf16, fp8};
    const std::vector<PointPrediction> predictions = predict_points(points);
    const Judgement j = judge(points, predictions).back();
    const double error = speedup_log_error(*predictions[1].step, *predictions[0].step);
    return std::pair(std::log(j.high / j.predicted) / kInterval80, error);
  };
  const auto [native, own] = log_width("megatron");
  CHECK(native == Approx(own));
  const auto [stack, same] = log_width("torchtitan");
  CHECK(stack > same);
}

}  // namespace
}  // namespace precbench
