// Op times from rates with known answers, and the files of results/rates.
#include "bench/predict/rates.h"

#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

#include "bench/predict/op_record.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

namespace precbench {
namespace {

const OpPeaks kRoundPeaks{1000e12, 2000e12, 2000e12, 4e12},
    kHopperPeaks{1000e12, 2000e12, 2000e12, 4e12, true};

/// Returns a point of a GEMM in BF16 that reaches this fraction of peak.
RatePoint gemm(std::int64_t m, std::int64_t n, std::int64_t k, double fraction,
               const std::string& formats = "", int source = 0) {
  const auto product = static_cast<double>(m * n * k);
  return {"matmul fprop", {m, n, k}, formats, 2 * product, 2.0 * static_cast<double>(m * k + n * k + m * n),
          fraction,       source};
}

Rates rates_of(std::vector<RatePoint> points) {
  Rates rates;
  rates.machine = "h200";
  rates.sources = {{"id0", "small", "bf16", "abc", 1500, 690}, {"id1", "large", "bf16", "abc", 1400, 690}};
  rates.points = std::move(points);
  return rates;
}

TEST_CASE("OpTimer: an op of a known shape takes its measured time", "[rates]") {
  for (const RatePoint& point :
       {gemm(4096, 4096, 4096, 0.7), gemm(8192, 28672, 4096, 0.6, "e4m3 1x128 f32, e4m3 128x128 f32"),
        RatePoint{"swiglu", {4096, 14336}, "", 0, 3e8, 0.8, 0},
        RatePoint{"attention", {1, 8192, 8192, 0, 32, 8, 128}, "", 1.1e12, 1e8, 0.55, 0, kHopperKernel}}) {
    INFO(point.op);
    const Rates rates = rates_of({point});
    const OpTimer timer(rates, kRoundPeaks);
    const OpCost cost = op_cost(point);
    const double ideal = kRoundPeaks.ideal_seconds(cost.flops, cost.bytes, cost.math);
    CHECK(timer.time(point).seconds == Approx(ideal / point.fraction));
  }
}

TEST_CASE("OpTimer: near shapes count more than far ones", "[rates]") {
  const Rates rates = rates_of({gemm(1024, 4096, 4096, 0.4), gemm(16384, 4096, 4096, 0.8)});
  const OpTimer timer(rates, kRoundPeaks);
  const auto fraction = [&](std::int64_t m) {
    const OpCost cost = op_cost(gemm(m, 4096, 4096, 1));
    return kRoundPeaks.ideal_seconds(cost.flops, cost.bytes, cost.math) / timer.time(cost).seconds;
  };
  CHECK(fraction(1024) == Approx(0.4).epsilon(0.03));
  CHECK(fraction(16384) == Approx(0.8).epsilon(0.03));
  double last = 0;
  for (const std::int64_t m : {1024, 2048, 4096, 8192, 16384}) {
    CHECK(fraction(m) > last);
    last = fraction(m);
  }
}

TEST_CASE("OpTimer: formats without points take those of the most similar formats", "[rates]") {
  const std::string fp8 = "e4m3 1x128 f32, e4m3 128x128 f32";
  const Rates rates = rates_of({gemm(4096, 4096, 4096, 0.7), gemm(4096, 4096, 4096, 0.5, fp8)});
  const OpTimer timer(rates, kRoundPeaks);
  const RatePoint own = gemm(4096, 4096, 4096, 1, fp8),
                  pow2 = gemm(4096, 4096, 4096, 1, "e4m3 1x128 f32_pow2, e4m3 128x128 f32_pow2");
  CHECK_FALSE(timer.time(own).other_formats);
  CHECK(timer.time(pow2).other_formats);
  CHECK(timer.time(pow2).seconds == Approx(timer.time(own).seconds));
  CHECK(timer.time_at_bf16(own).seconds == Approx(timer.time(own).seconds * 0.5 / 0.7).epsilon(0.03));
}

TEST_CASE("OpTimer: soft-capped attention is slower than plain attention in heads of 128 until it has points",
          "[rates]") {
  const auto [width, hopper, factor] = GENERATE(table<std::int64_t, bool, double>({{64, true, 1.25},
                                                                                   {128, true, 1.25},
                                                                                   {256, true, 1.25},
                                                                                   {96, true, 3},
                                                                                   {64, false, 3},
                                                                                   {128, false, 3},
                                                                                   {256, false, 3}}));
  CAPTURE(width, hopper);
  const OpPeaks& peaks = hopper ? kHopperPeaks : kRoundPeaks;
  const auto attention = [](std::int64_t of_width, const std::string& kernel, double fraction,
                            const std::string& formats = "") {
    const double flops = 4.0 * 32 * static_cast<double>(of_width) * 8192 * 4096;
    return RatePoint{"attention", {1, 8192, 8192, 0, 32, 8, of_width}, formats, flops, 1e8, fraction, 0,
                     kernel};
  };
  const RatePoint plain = attention(128, hopper ? kHopperKernel : kCudnnKernel, 0.6);
  const OpTimer before(rates_of({plain}), peaks);
  CHECK_FALSE(before.time(plain).other_formats);
  const RatePoint asked = attention(width, "", 0.1);
  const std::string kernel = before.kernel_of(op_cost(asked), {.softcap = true});
  CHECK(kernel.ends_with(" softcap"));
  const RatePoint capped = attention(width, kernel, 0.1),
                  quantizing = attention(width, kernel, 0.1, "e4m3 1x128 f32, bf16");
  for (const RatePoint& point : {capped, quantizing}) {
    CHECK(before.time(point).other_formats);
    CHECK(before.time(point).seconds / point.flops ==
          Approx(factor * before.time(plain).seconds / plain.flops).epsilon(0.01));
  }
  const OpTimer after(rates_of({plain, capped}), peaks);
  CHECK_FALSE(after.time(capped).other_formats);
  CHECK(after.time(capped).seconds / capped.flops ==
        Approx(6 * after.time(plain).seconds / plain.flops).epsilon(0.01));
  CHECK(after.time(plain).seconds == Approx(before.time(plain).seconds).epsilon(0.01));
}

TEST_CASE("OpTimer: attention in heads of 256 is slower, most in windows and on GPUs other than Hopper",
          "[rates]") {
  const auto attention = [](std::int64_t width, double window = 0) {
    const double keys = 8192, outside = window > 0 ? keys - window : 0;
    const double flops = 2 * 32 * static_cast<double>(width) * (keys * keys - outside * outside);
    RatePoint point{"attention", {1, 8192, 8192, 0, 32, 8, width}, "", flops, 1e8, 0.6, 0};
    point.kernel = attention_kernel(op_cost(point), {}, true);
    return point;
  };
  const OpTimer narrow(rates_of({attention(128)}), kHopperPeaks),
      elsewhere(rates_of({attention(128)}), kRoundPeaks);
  // Time per FLOP over that of plain heads of 128. The time of a launch differs per FLOP: up to 0.3%.
  const auto factor = [&](const OpTimer& timer, const RatePoint& point) {
    const RatePoint own = attention(128);
    return timer.time(point).seconds / point.flops / (timer.time(own).seconds / own.flops);
  };
  CHECK(factor(narrow, attention(256)) == Approx(1.2).epsilon(5e-3));
  // 1,024 keys instead of up to 8,192: the tiles on the diagonal count more.
  CHECK(factor(narrow, attention(256, 1024)) == Approx(1.7 * 1.16).epsilon(1e-2));
  CHECK(factor(narrow, attention(200)) == Approx(1.7).epsilon(5e-3));
  RatePoint cudnn = attention(256);
  cudnn.kernel = kCudnnKernel;
  CHECK(factor(elsewhere, cudnn) == Approx(1.7).epsilon(5e-3));
  CHECK(factor(narrow, attention(96)) == Approx(1).epsilon(5e-3));
  CHECK(narrow.time(attention(256)).other_formats);
  const OpTimer both(rates_of({attention(128), attention(256)}), kHopperPeaks);
  CHECK_FALSE(both.time(attention(256)).other_formats);
  CHECK(factor(both, attention(256)) == Approx(1).epsilon(5e-3));
}

TEST_CASE("OpTimer: attention follows its kernel and the keys that a query sees, not the formats beside it",
          "[rates]") {
  const auto point = [](std::int64_t T, const char* kernel, double fraction,
                        const std::string& formats = "") {
    AttentionShape shape{.B = 1, .T = T, .heads = 16, .kv_heads = 8, .head_dim = 128};
    ops::AttentionBackward op{};
    op.shape = shape;
    const OpCost cost = op.cost();
    return RatePoint{cost.name, used_entries(cost.shape), formats, cost.flops, 1e8, fraction, 0, kernel};
  };
  const Rates rates = rates_of({point(8192, kHopperKernel, 0.30), point(8192, kCudnnKernel, 0.33),
                                point(65536, kHopperKernel, 0.36), point(65536, kCudnnKernel, 0.42)});
  const OpTimer timer(rates, kHopperPeaks);
  const auto fraction = [&](const RatePoint& one) {
    return kHopperPeaks.ideal_seconds(one.flops, one.bytes, DType::bf16) / timer.time(one).seconds;
  };
  for (const RatePoint& one : rates.points) CHECK(fraction(one) == Approx(one.fraction).epsilon(0.01));
  CHECK(fraction(point(65536, kCudnnKernel, 0, "e4m3 tensor f32, bf16")) == Approx(0.42).epsilon(0.02));
  const double between = fraction(point(32768, kCudnnKernel, 0));
  CHECK((between > 0.35 && between < 0.42));
  // A context rank's 8,192 queries of 65,536 keys.
  AttentionShape shared{
      .B = 1, .T = 8192, .heads = 16, .kv_heads = 8, .head_dim = 128, .T_k = 65536, .offset = 28672};
  ops::AttentionBackward op{};
  op.shape = shared;
  const OpCost cost = op.cost();
  CHECK(timer.kernel_of(cost, {}) == kHopperKernel);
  CHECK(kHopperPeaks.ideal_seconds(cost.flops, cost.bytes, DType::bf16) / timer.time(cost).seconds ==
        Approx(0.36).epsilon(0.01));
}

TEST_CASE("OpTimer: leaves out points on request, and an unknown op moves bytes like all others", "[rates]") {
  const Rates rates = rates_of({gemm(4096, 4096, 4096, 0.7, "", 0),
                                gemm(4096, 4096, 4096, 0.5, "", 1),
                                {"swiglu", {4096, 4096}, "", 0, 1e8, 0.8, 0}});
  const OpTimer timer(rates, kRoundPeaks, [](const RatePoint& point) { return point.source == 0; });
  const OpCost cost = op_cost(gemm(4096, 4096, 4096, 1));
  CHECK(kRoundPeaks.ideal_seconds(cost.flops, cost.bytes, cost.math) / timer.time(cost).seconds ==
        Approx(0.7));
  for (const char* name : {"new_op", "attention_sink"}) {
    INFO(name);
    const OpCost unknown{.name = name, .bytes = 1e8, .shape = {4096, 4096}};
    CHECK(timer.time(unknown).seconds == Approx(1e8 / 4e12 / 0.8));
    CHECK(timer.time(unknown).other_formats);
  }
}

TEST_CASE("expected_fraction: waves, contractions, sequences and launches lower it", "[rates]") {
  const auto of_gemm = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    return expected_fraction(op_cost(gemm(m, n, k, 1)), kRoundPeaks);
  };
  CHECK(of_gemm(8192, 8192, 8192) > of_gemm(8192, 8192, 256));
  CHECK(of_gemm(8192, 8192, 4096) > of_gemm(256, 256, 4096));  // two tiles on all multiprocessors
  const auto of_attention = [](std::int64_t keys) {
    return expected_fraction({.name = "attention",
                              .op_class = OpClass::attention,
                              .flops = 2.0 * 32 * 128 * static_cast<double>(keys) * static_cast<double>(keys),
                              .bytes = 1e8,
                              .shape = {1, keys, keys, 0, 32, 8, 128}},
                             kRoundPeaks);
  };
  CHECK(of_attention(8192) > of_attention(512));
  // With fewer keys than balance bytes and FLOPs, the bytes decide: twice as many take no longer per byte.
  const auto of_short = [](std::int64_t keys) {
    const double rows = 24576, width = 15 * 64;
    return expected_fraction({.name = "attention",
                              .op_class = OpClass::attention,
                              .flops = 2 * rows * static_cast<double>(keys) * 9 * 64,
                              .bytes = 2 * rows * (width + 9 * 64),
                              .shape = {24576 / keys, keys, keys, 0, 9, 3, 64}},
                             kRoundPeaks);
  };
  CHECK(of_short(48) == Approx(of_short(96)));
  CHECK(of_short(2048) > 1.2 * of_short(96));
  CHECK(expected_fraction({.name = "zero", .bytes = 16}, kRoundPeaks) < 1e-3);
}

TEST_CASE("expected_fraction: a GEMM with a thin side waits for memory", "[rates]") {
  for (const auto& [m, n, k] :
       {std::tuple{24576, 16, 576}, {24576, 576, 16}, {576, 16, 24576}, {24576, 64, 576}}) {
    INFO(m << " x " << n << " x " << k);
    const OpCost cost = op_cost(gemm(m, n, k, 1));
    const double ideal = cost.bytes / kRoundPeaks.bytes;
    CHECK(ideal == kRoundPeaks.ideal_seconds(cost.flops, cost.bytes, cost.math));
    CHECK(ideal / expected_fraction(cost, kRoundPeaks) == Approx((ideal + 2.5e-6) / 0.6));
  }
  OpCost experts = op_cost(gemm(24576, 16, 576, 1));
  experts.shape[3] = 8;
  const double ideal = experts.bytes / kRoundPeaks.bytes;
  CHECK(expected_fraction(experts, kRoundPeaks) == Approx(ideal / (ideal + 2.5e-6) * 576 / (576 + 250)));
}

TEST_CASE("Rates: JSON and back, and what is refused", "[rates]") {
  Rates rates = rates_of(
      {gemm(4096, 4096, 4096, 0.7), gemm(4096, 4096, 512, 0.5, "e4m3 1x32 ue8m0, e4m3 1x32 ue8m0", 1),
       RatePoint{"attention", {1, 8192, 8192, 0, 32, 8, 128}, "", 1.1e11, 1e8, 0.5, 0, "cudnn window"}});
  rates.errors = {{0.03, 0.04, 0.05}, {0.1, 0.2, 0.05}, 0.016};
  const auto json = nlohmann::json::parse(rates_to_json(rates).dump());
  const Rates read = rates_from_json(json, "file");
  CHECK(read.sources == rates.sources);
  REQUIRE(read.points.size() == 3);
  CHECK(read.points[1].shape == rates.points[1].shape);
  CHECK(read.points[1].formats == rates.points[1].formats);
  CHECK(read.points[2].kernel == "cudnn window");
  CHECK(read.errors.by_class == rates.errors.by_class);
  CHECK(read.errors.borrowed == rates.errors.borrowed);
  nlohmann::json bad = json;
  bad["points"][0][6] = 2;
  CHECK_THROWS_AS(rates_from_json(bad, "file"), InvalidInput);
  for (const auto& [place, value, message] :
       {std::tuple("/points/0/5", R"(-0.5)", "fraction: -0.5 is not a number from 1e-12 to 1000"),
        std::tuple("/points/0/1/0", "1e300", "shape: 1e+300 is not a whole number from 0 to 1e+15"),
        std::tuple("/points/1/3", "1e308", "flops: 1e+308 is not a number from 0 to 1e+24"),
        std::tuple("/points/1/6", "-1", "source: -1 is not a whole number from 0 to 1000000"),
        std::tuple("/points/2/7", R"("mine")", R"(a point of attention: unknown kernel "mine")"),
        std::tuple("/errors/step", "null", "errors: step: null is not a number from 0 to 10"),
        std::tuple("/sources/0/power_w", "1e300", "power_w: 1e+300 is not a number from 0 to 1000000")}) {
    bad = json;
    bad[nlohmann::json::json_pointer(place)] = nlohmann::json::parse(value);
    CHECK(contains(refusal_of([&] { rates_from_json(bad, "file"); }), message));
  }
  bad = json;
  bad.erase("errors");
  CHECK_THROWS_WITH(rates_from_json(bad, "file"), Catch::Matchers::StartsWith("file: "));
}

TEST_CASE("results/rates: every file is of a known machine and plausible", "[rates]") {
  int files = 0;
  for (const Machine& machine : machine_presets()) {
    const Rates* rates = embedded_rates(machine.name);
    if (!rates) continue;
    INFO(machine.name);
    ++files;
    CHECK(rates->points.size() > 100);
    for (const RatePoint& point : rates->points) {
      INFO(point.op << " " << point.formats << " " << point.flops << " " << point.bytes);
      CHECK(point.fraction > 0);
      CHECK(point.fraction <
            2);  // small data stay in the cache: the bytes of such ops are faster than memory
    }
    for (const double error : rates->errors.by_class) CHECK((error > 0 && error < 0.5));
  }
  CHECK(files >= 1);
}

}  // namespace
}  // namespace precbench
