// Planted faults are named first, parts of a waterfall add up, and healthy steps get no advice.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "kernels/testing/catch.h"
#include "results/text/screen.h"
#include "tools/explain/explain_output.h"
#include "tools/explain/trace_testing.h"

namespace precbench {
namespace {

using testing::KinetoWriter;
using testing::parsed;
using testing::Planted;
using testing::StepWriter;
using testing::TraceDims;

ExplainedTrace explained(const std::string& json) {
  const testing::PlainRates expectation;
  ExplainedTrace one;
  one.trace = parsed(json);
  one.rates_of = "NVIDIA H200";
  one.all = explain_trace(one.trace, &expectation);
  return one;
}

ExplainedTrace explained_step(bool fp8, Planted planted) {
  return explained(StepWriter(fp8, planted).steps());
}

std::int64_t duration_of(const ExplainedTrace& one) { return one.all.steps.step.duration(); }

}  // namespace

TEST_CASE("explain: healthy steps get no advice", "[explain]") {
  for (const auto& [fp8, planted] : {std::pair(false, Planted::nothing), std::pair(true, Planted::nothing),
                                     std::pair(true, Planted::clipping)}) {
    const ExplainedTrace one = explained_step(fp8, planted);
    std::string findings;
    for (const Finding& finding : one.all.findings) findings += finding.id + ": " + finding.evidence + "\n";
    INFO(findings);
    CHECK(one.all.findings.empty());
    CHECK(one.all.tokens == 4096);
    CHECK(one.all.vocabulary == 32768);
    CHECK(one.all.steps.step.time(WorkClass::unknown) == 0);
    CHECK(one.all.calibration == Approx(1).epsilon(0.01));
  }
}

TEST_CASE("explain: a planted fault is named first and its repair predicted", "[explain]") {
  struct PlantedCase {
    bool fp8;
    Planted planted;
    const char* id;
    double most_off;  ///< of the repaired step, relative to the step
  };
  for (const PlantedCase& c : {PlantedCase{false, Planted::synchronize, "launch_gaps", 0.03},
                               {true, Planted::sleep, "launch_gaps", 0.03},
                               {false, Planted::eager, "not_compiled", 0.03},
                               {true, Planted::eager, "not_compiled", 0.05},
                               {true, Planted::casts, "casts", 0.05},
                               {true, Planted::unconverted, "unconverted", 0.03},
                               {false, Planted::math_attention, "attention", 0.03},
                               {true, Planted::optimizer, "optimizer", 0.03},
                               {false, Planted::foreach, "optimizer", 0.03},
                               {false, Planted::fp32_head, "fp32", 0.03},
                               {false, Planted::recompilation, "recompilation", 0.03},
                               {false, Planted::collectives, "collectives", 0.05},
                               {false, Planted::copy, "memcpy", 0.03}}) {
    const ExplainedTrace broken = explained_step(c.fp8, c.planted),
                         healthy = explained_step(c.fp8, Planted::nothing);
    INFO("expected " << c.id);
    REQUIRE_FALSE(broken.all.findings.empty());
    const Finding& first = broken.all.findings.front();
    INFO(first.evidence << " predicted " << first.predicted / 1e6 << " ms, repaired "
                        << static_cast<double>(duration_of(healthy)) / 1e6);
    CHECK(first.id == c.id);
    CHECK(std::abs(first.predicted - static_cast<double>(duration_of(healthy))) <
          c.most_off * static_cast<double>(duration_of(broken)));
    CHECK(first.lost >= kLeastLoss * static_cast<double>(duration_of(broken)));
  }
}

TEST_CASE("explain: faults without a repaired step of the same work are named", "[explain]") {
  for (const auto& [fp8, planted, id] : {std::tuple(false, Planted::alignment, "alignment"),
                                         std::tuple(false, Planted::small_batch, "small_batch"),
                                         std::tuple(true, Planted::small_gemms, "small_gemms"),
                                         std::tuple(false, Planted::launch_bound, "launch_bound"),
                                         std::tuple(false, Planted::graph_breaks, "graph_breaks")}) {
    const ExplainedTrace one = explained_step(fp8, planted);
    INFO("expected " << id);
    REQUIRE_FALSE(one.all.findings.empty());
    CHECK(one.all.findings.front().id == id);
  }
}

TEST_CASE("explain: a single GEMM left out is found, the head in BF16 is not", "[explain]") {
  const ExplainedTrace one = explained_step(true, Planted::unconverted);
  REQUIRE(one.all.findings.size() == 1);
  CHECK_THAT(one.all.findings[0].evidence, ContainsText("2048 x 8192"));
  CHECK(one.all.findings[0].evidence.find("32768") == std::string::npos);
}

TEST_CASE("explain: classes of a step add up to it", "[explain]") {
  for (const Planted planted : {Planted::nothing, Planted::collectives, Planted::copy, Planted::sleep}) {
    const StepWork step = explained_step(false, planted).all.steps.step;
    CHECK(std::accumulate(step.exclusive.begin(), step.exclusive.end(), std::int64_t{0}) == step.duration());
  }
}

TEST_CASE("explain: parts of a waterfall add up exactly, also as shown", "[explain]") {
  const ExplainedTrace bf16 = explained_step(false, Planted::nothing),
                       fp8 = explained_step(true, Planted::nothing);
  const Waterfall fall = waterfall_of(bf16.all, fp8.all);
  std::vector<std::int64_t> differences;
  std::int64_t sum = fall.from;
  for (const WaterfallPart& part : fall.parts) {
    sum += part.difference();
    differences.push_back(part.difference());
  }
  CHECK(sum == fall.to);
  CHECK(fall.from == duration_of(bf16));
  CHECK(fall.work_ratio == Approx(1));
  CHECK(fall.to < fall.from);
  const std::vector<std::int64_t> shown = rounded_parts(fall.from, differences, 10'000);
  CHECK(std::abs(std::accumulate(shown.begin(), shown.end(), std::int64_t{0}) - fall.to) <= 5'000);
  for (const std::int64_t part : shown) CHECK(part % 10'000 == 0);
}

TEST_CASE("explain: rounded parts end at the rounded end", "[explain]") {
  CHECK(rounded_parts(1004, {4, 4, 4}, 10) == std::vector<std::int64_t>{1000, 10, 0, 10});
  CHECK(rounded_parts(-6, {-6}, 10) == std::vector<std::int64_t>{-10, 0});
}

TEST_CASE("explain: steps without marks are told by the optimizer", "[explain]") {
  StepWriter writer(false, Planted::nothing);
  std::string json = writer.steps(3);
  for (std::size_t at; (at = json.find("ProfilerStep#")) != std::string::npos;)
    json.replace(at, 13, "SomethingElse");
  const TraceSteps steps = find_steps(parsed(json));
  CHECK(steps.marks == StepMarks::optimizer);
  CHECK(steps.durations.size() == 2);
  const auto expected = static_cast<double>(duration_of(explained_step(false, Planted::nothing)));
  CHECK(static_cast<double>(steps.step.duration()) == Approx(expected).epsilon(0.03));
}

TEST_CASE("explain: the first step and steps without kernels are not explained if there are others",
          "[explain]") {
  KinetoWriter writer;
  for (int i = 1; i <= 4; ++i) {
    writer.begin_step(i);
    if (i <= 2) writer.kernel("aten::mul", "elementwise_kernel", i == 1 ? 900 : 100);
    if (i > 2) writer.sleep(500);
    writer.end_step();
  }
  const TraceSteps steps = find_steps(parsed(writer.json()));
  CHECK(steps.durations.size() == 4);
  CHECK(steps.chosen == 1);
  CHECK(steps.step.work.size() == 1);
}

TEST_CASE("explain: a gap between kernels that were queued in time is the GPU's", "[explain]") {
  StepWork step;
  step.end = 220'000;
  step.work.resize(2);
  step.work[0].duration = step.work[1].duration = 100'000;
  step.work[0].launched = 0;
  step.work[1].start = 120'000;
  step.work[1].launched = 1'000;
  const TrainingTrace trace;
  CHECK(find_gaps(trace, step)[GapCause::device] == 20'000);
  step.work[1].launched = 110'000;
  CHECK(find_gaps(trace, step)[GapCause::device] == 0);
  CHECK(find_gaps(trace, step)[GapCause::launch] == 20'000);
}

TEST_CASE("explain: a single collective that nothing can hide is no finding, two are one", "[explain]") {
  const auto found = [](int collectives) {
    KinetoWriter writer;
    for (int number = 1; number <= 2; ++number) {
      writer.begin_step(number);
      for (int i = 0; i < 3; ++i) {
        writer.kernel("aten::mul", "elementwise_kernel", 1000);
        if (i >= collectives) continue;
        writer.fork_streams();
        writer.kernel("nccl:all_reduce", "ncclDevKernel_AllReduce", 600, {}, {}, 20);
        writer.join_streams();
      }
      writer.end_step();
    }
    const ExplainedTrace one = explained(writer.json());
    return std::any_of(one.all.findings.begin(), one.all.findings.end(),
                       [](const Finding& finding) { return finding.id == "collectives"; });
  };
  CHECK_FALSE(found(1));
  CHECK(found(2));
}

TEST_CASE("explain: of two ranks, the one that the other waits for is named", "[explain]") {
  const auto rank = [](int number, double compute, double collective, int ranks = 2) {
    KinetoWriter writer;
    writer.rank = number;
    writer.ranks = ranks;
    for (int step = 1; step <= 2; ++step) {
      writer.begin_step(step);
      for (int i = 0; i < 3; ++i) {
        writer.kernel("aten::mul", "elementwise_kernel", compute);
        writer.fork_streams();
        writer.kernel("nccl:all_reduce", "ncclDevKernel_AllReduce", collective, {}, {}, 20);
        writer.join_streams();
      }
      writer.end_step();
    }
    return explained(writer.json());
  };
  const ExplainedTrace fast = rank(0, 1000, 700), slow = rank(1, 1500, 200);
  CHECK(fast.trace.rank == 0);
  CHECK(fast.trace.ranks == 2);
  const auto json = explain_json({fast, slow});
  CHECK(json["ranks"]["collectives"] == 3);
  CHECK(json["ranks"]["first_waits_ns"] == 1'500'000);
  CHECK(json["ranks"]["second_waits_ns"] == 0);
  const Screen screen{80, true, false};
  CHECK_THAT(explain_text({fast, slow}, screen), ContainsText("Rank 1 is late"));
  CHECK_THAT(explain_text({slow, fast}, screen), ContainsText("Rank 1 is late"));
  CHECK_THAT(explain_text({fast, rank(1, 1000, 700)}, screen), !ContainsText("is late"));
  CHECK_FALSE(explain_json({fast, rank(1, 1500, 200, 4)}).contains("ranks"));  // another job
  CHECK_FALSE(explain_json({fast, rank(0, 1500, 200)}).contains("ranks"));
}

TEST_CASE("explain: a trace without steps is one step, and says so", "[explain]") {
  KinetoWriter writer;
  for (int i = 0; i < 5; ++i)
    writer.kernel("aten::mm", "nvjet_tst_64x64", 100, {{64, 64}, {64, 64}},
                  {"c10::BFloat16", "c10::BFloat16"});
  const ExplainedTrace one = explained(writer.json());
  CHECK(one.all.steps.marks == StepMarks::none);
  CHECK_THAT(explain_text({one}, Screen{80, true, false}), ContainsText("no steps marked"));
}

TEST_CASE("explain: GEMM shapes and formats come from the operation's inputs", "[explain]") {
  const OpInputs fp8{{{4096, 2048}, {2048, 8192}, {4096, 1}, {1, 8192}},
                     {"c10::Float8_e5m2", "c10::Float8_e4m3fn"},
                     {0, 0, 0, 0}};
  const auto scaled = gemm_of("aten::_scaled_mm", fp8);
  REQUIRE(scaled);
  CHECK(*scaled == GemmShape{.m = 4096,
                             .n = 8192,
                             .k = 2048,
                             .format = GemmFormat::fp8,
                             .scales = GemmScales::row,
                             .e5m2 = true});
  const OpInputs add{{{8192}, {4096, 2048}, {2048, 8192}}, {"float", "c10::Half", "c10::Half"}, {0, 0, 0}};
  REQUIRE(gemm_of("aten::addmm", add));
  CHECK(gemm_of("aten::addmm", add)->format == GemmFormat::fp16);
  CHECK_FALSE(gemm_of("aten::mul", fp8));
  CHECK_FALSE(gemm_of("aten::mm", {{{2, 3}, {4, 5}}, {}, {0, 0}}));  // sizes that do not fit
}

TEST_CASE("explain: scales of blocks, packed FP4 and grouped GEMMs come from the operation's inputs",
          "[explain]") {
  const std::string e4m3 = "c10::Float8_e4m3fn", e8m0 = "c10::Float8_e8m0fnu", fp4 = "c10::Float4_e2m1fn_x2",
                    bf16 = "c10::BFloat16";
  const auto gemm = [](const char* op, TraceDims dims, std::vector<std::string> types) {
    std::vector<std::int64_t> elements(dims.size(), 0);
    return gemm_of(op, {std::move(dims), std::move(types), elements}).value();
  };
  const GemmShape mx =
      gemm("aten::_scaled_mm", {{512, 256}, {256, 128}, {4096}, {1024}}, {e4m3, e4m3, e8m0, e8m0});
  CHECK(format_text(mx) == "MXFP8");
  const GemmShape nv =
      gemm("aten::_scaled_mm", {{512, 128}, {128, 128}, {8192}, {2048}}, {fp4, fp4, e4m3, e4m3});
  CHECK(format_text(nv) == "NVFP4");
  CHECK(nv.k == 256);  // two elements in a byte
  CHECK(format_text(gemm("aten::_scaled_mm", {{512, 256}, {256, 128}, {512, 2}, {2, 1}},
                         {e4m3, e4m3, "float", "float"})) == "FP8 blockwise");
  const GemmShape forward = gemm("aten::_grouped_mm", {{4096, 256}, {8, 256, 128}, {8}}, {bf16, bf16, "int"});
  CHECK(forward == GemmShape{.m = 4096, .n = 128, .k = 256, .format = GemmFormat::bf16, .groups = 8});
  const GemmShape weights = gemm("aten::_grouped_mm", {{128, 4096}, {4096, 256}, {8}}, {bf16, bf16, "int"});
  CHECK(weights ==
        GemmShape{.m = 128, .n = 256, .k = 4096, .format = GemmFormat::bf16, .groups = 8, .k_divided = true});
  CHECK(weights.flops() == forward.flops());
  const GemmShape rows = gemm("aten::_scaled_grouped_mm", {{4096, 256}, {8, 256, 128}, {4096}, {8, 128}, {8}},
                              {e4m3, e4m3, "float", "float", "int"});
  CHECK(rows.groups == 8);
  CHECK(format_text(rows) == "FP8 rowwise");
}

TEST_CASE("explain: kernels are classified by name and operation", "[explain]") {
  using Ops = std::vector<std::string_view>;
  CHECK(classify("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", Ops{}) == WorkClass::collective);
  CHECK(classify("nvjet_qqtst_256x128", Ops{}) == WorkClass::gemm);
  CHECK(classify("anything", Ops{"aten::_scaled_mm"}) == WorkClass::gemm);
  CHECK(classify("void at::native::vectorized_elementwise_kernel", Ops{"aten::copy_", "aten::mm"}) ==
        WorkClass::elementwise);
  CHECK(classify("flash_fwd_kernel", Ops{}) == WorkClass::attention);
  CHECK(classify("triton_red_fused_abs_amax_4", Ops{}) == WorkClass::cast);
  CHECK(classify("triton_poi_fused_mul_silu_1", Ops{}) == WorkClass::elementwise);
  CHECK(classify("triton_red_fused_add_mean_rsqrt_1", Ops{}) == WorkClass::norm);
  CHECK(classify("triton_tem_fused_mm_t_3", Ops{}) == WorkClass::gemm);
  CHECK(classify("triton_poi_fused__scaled_mm__to_copy_clamp_mul_t_2", Ops{}) ==
        WorkClass::cast);  // writes its operand
  CHECK(classify("void at::native::vectorized_elementwise_kernel",
                 Ops{"aten::mul", "Optimizer.step#AdamW.step"}) == WorkClass::optimizer);
  CHECK(classify("void transformer_engine::cast_transpose_kernel", Ops{}) == WorkClass::cast);
  CHECK(classify("some_new_kernel", Ops{}) == WorkClass::unknown);
}

TEST_CASE("explain: unknown kernels are counted and shown, without control characters", "[explain]") {
  const ExplainedTrace one = explained_step(false, Planted::unknown_kernels);
  CHECK(one.all.steps.step.time(WorkClass::unknown) > 0);
  const std::string text = explain_text({one}, Screen{80, true, false});
  CHECK_THAT(text, ContainsText("Kernels of unknown kind"));
  CHECK_THAT(text, ContainsText("my_own_kernel"));
  CHECK(text.find('\x1b') == std::string::npos);
  const std::string json = explain_json({one}).dump();
  CHECK(json.find("\\u001b") == std::string::npos);
  CHECK_THAT(json, ContainsText("my_own_kernel"));
}

TEST_CASE("explain: text fits 80 columns", "[explain]") {
  const std::string text = explain_text(
      {explained_step(false, Planted::eager), explained_step(true, Planted::casts)}, Screen{80, true, false});
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    INFO(text.substr(begin, end - begin));
    CHECK(end - begin <= 80);
  }
  CHECK_THAT(text, ContainsText("the parts of the difference add up"));
}

TEST_CASE("explain: JSON holds the findings and a waterfall that adds up", "[explain]") {
  const auto json =
      explain_json({explained_step(false, Planted::nothing), explained_step(true, Planted::casts)});
  CHECK(json["traces"][1]["findings"][0]["id"] == "casts");
  std::int64_t sum = json["waterfall"]["from_ns"];
  for (const auto& part : json["waterfall"]["parts"]) sum += part["difference_ns"].get<std::int64_t>();
  CHECK(sum == json["waterfall"]["to_ns"].get<std::int64_t>());
}

TEST_CASE("explain: without rates the time is told and no repair that needs them", "[explain]") {
  ExplainedTrace one;
  one.trace = parsed(StepWriter(true, Planted::unconverted).steps());
  one.all = explain_trace(one.trace, nullptr);
  for (const Finding& finding : one.all.findings) CHECK(finding.id != "unconverted");
  CHECK_THAT(explain_text({one}, Screen{80, true, false}), ContainsText("--gpu"));
}

}  // namespace precbench
