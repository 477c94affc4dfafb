// Speed from a record's parts, and what a speed that cannot be does to it.
#include "bench/measure/metrics.h"

#include "results/schema.h"
#include "tools/testing/catch.h"

using namespace precbench;

namespace {

/// As a session leaves it, on a GPU of known peaks: 989 BF16 TFLOP/s.
Record measured_record(const Case& c, double median_ms) {
  Record record = start_record(resolve(c));
  record.env->gpu.emplace().name = "NVIDIA H200";
  record.support.emplace();
  record.flops = Flops{1e9, "causal"};
  record.timing.emplace().samples_ms = {median_ms};
  record.timing->median_ms = median_ms;
  record.training.emplace().loss = {5.0};
  record.training->grad_norm = {1.0};
  record.training->lr = {1e-3};
  return record;
}

Case one_gpu() {
  Case c;
  c.device = "cuda";
  c.batch = 8;
  c.seq = 1000;
  return c;
}

}  // namespace

TEST_CASE("metrics carry their denominators", "[metrics]") {
  const Case c = one_gpu();
  Record record = measured_record(c, 100);
  // A tenth of the step's time at the peak rate.
  const std::vector<OpCost> ops = {{"matmul", OpClass::gemm, 989e10, 0, DType::bf16}};
  fill_metrics(record, resolve(c), ops, OpRates{494.5e12, 0, 4e12}, 0.5);
  CHECK(record.status == Status::ok);
  const Metrics& m = *record.metrics;
  CHECK(std::fabs(*m.tokens_per_s - 80000) < 1e-6);
  CHECK(std::fabs(*m.tflops_per_gpu - 80) < 1e-9);
  CHECK(std::fabs(*m.mfu_bf16 - 80.0 / 989) < 1e-9);
  CHECK(std::fabs(*m.sol - 0.1) < 1e-9);
  CHECK(std::fabs(*m.mfu_measured - 0.2) < 1e-9);
  CHECK(m.energy_j_per_token == 0.5);
  CHECK(m.peaks->measured_bf16_tflops == 494.5);
  CHECK(!m.peaks->measured_fp8_tflops.has_value());
}

TEST_CASE("rates that were not measured leave only their own ratio out", "[metrics]") {
  const Case c = one_gpu();
  Record record = measured_record(c, 100);
  fill_metrics(record, resolve(c), {}, std::nullopt, std::nullopt);
  CHECK(record.status == Status::ok);
  CHECK(record.metrics->mfu_bf16.has_value());
  CHECK(!record.metrics->mfu_measured.has_value());
  CHECK(!record.metrics->peaks->measured_bf16_tflops.has_value());
}

TEST_CASE("a speed above the GPU's peak is a crashed row with everything but the metrics", "[metrics]") {
  const Case c = one_gpu();
  Record record = measured_record(c, 1);  // 8000 TFLOP/s
  fill_metrics(record, resolve(c), {}, std::nullopt, std::nullopt);
  CHECK(record.status == Status::crashed);
  CHECK(record.error == "mfu_bf16 is 8.09: more than the GPU can do, so the measurement is wrong");
  CHECK(!record.metrics.has_value());
  CHECK(record.timing->samples_ms.size() == 1);
  CHECK(record.training->loss.size() == 1);
  CHECK(Schema::record().violations(nlohmann::ordered_json(record)) == std::vector<std::string>{});
}

TEST_CASE("fill_metrics: a speed somewhat above the data sheet keeps its metrics", "[metrics]") {
  const Case c = one_gpu();
  Record record = measured_record(c, 100);
  // 1.1 times the data sheet's peak, as a GPU whose clock goes beyond the stated boost clock.
  const std::vector<OpCost> ops = {{"matmul", OpClass::gemm, 1.1 * 989e11, 0, DType::bf16}};
  fill_metrics(record, resolve(c), ops, OpRates{989e12, 0, 4e12}, std::nullopt);
  CHECK(record.status == Status::ok);
  CHECK(std::fabs(*record.metrics->sol - 1.1) < 1e-9);
  CHECK(std::fabs(*record.metrics->mfu_measured - 1.1) < 1e-9);
  CHECK(Schema::record().violations(nlohmann::ordered_json(record)) == std::vector<std::string>{});
}

TEST_CASE("fill_metrics: a bimodal timing has the speed of its mean step", "[metrics]") {
  const Case c = one_gpu();
  Record record = measured_record(c, 20);
  record.timing->samples_ms.clear();
  for (int i = 0; i < 21; ++i) record.timing->samples_ms.push_back(i % 3 == 2 ? 70.0 : 20.0);
  fill_metrics(record, resolve(c), {}, std::nullopt, std::nullopt);
  const double mean_s = (14 * 20 + 7 * 70) / 21.0 / 1e3;
  CHECK(std::fabs(*record.metrics->tokens_per_s / (8000 / mean_s) - 1) < 1e-12);
  CHECK(record.metrics->speed_from == std::string("mean"));
  CHECK(record.timing->median_ms == 20.0);
  CHECK(Schema::record().violations(nlohmann::ordered_json(record)) == std::vector<std::string>{});
  Record steady = measured_record(c, 20);
  steady.timing->samples_ms = std::vector<double>(21, 20.0);
  fill_metrics(steady, resolve(c), {}, std::nullopt, std::nullopt);
  CHECK(!steady.metrics->speed_from);
  CHECK(steady.metrics->tokens_per_s == 400000.0);
}

TEST_CASE("what does not run natively has no metrics", "[metrics]") {
  const Case c = one_gpu();
  Record record = measured_record(c, 1);
  record.support->dgrad.path = ExecutionPath::emulated;
  fill_metrics(record, resolve(c), {}, std::nullopt, 0.5);
  CHECK(record.status == Status::ok);
  CHECK(!record.metrics->tokens_per_s.has_value());
  CHECK(!record.metrics->energy_j_per_token.has_value());
}
