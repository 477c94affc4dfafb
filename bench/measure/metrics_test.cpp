// Speed derived from a record's parts, and the effect of an impossible speed.
#include "bench/measure/metrics.h"

#include <cmath>
#include <cstdlib>

#include "bench/case/case_testing.h"
#include "bench/machine/datasheet.h"
#include "bench/measure/record_builder.h"
#include "kernels/testing/catch.h"
#include "results/record/valid_json_testing.h"

using namespace precbench;

namespace {

/// Returns a record as a session leaves it, on a GPU with a known peak: 989 BF16 TFLOP/s.
Record measured_record(const Case& c, double median_ms) {
  Record record = start_record(validate(c));
  record.env.gpu.emplace().name = "NVIDIA H200";
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
  Case c = testing::case_of_flags("--device cuda --batch 8 --seq 1000");
  return c;
}

}  // namespace

TEST_CASE("fill_metrics: speeds are divided by the data-sheet and the measured rates", "[metrics]") {
  const Case c = one_gpu();
  Record record = measured_record(c, 100);
  // A tenth of the step's time at the peak rate.
  const std::vector<OpCost> ops = {{"matmul", OpClass::gemm, 989e10, 0, DType::bf16}};
  fill_metrics(record, validate(c), ops, OpRates{494.5e12, 0, 4e12}, 0.5);
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

TEST_CASE("fill_metrics: rates that were not measured leave out mfu_measured only", "[metrics]") {
  const Case c = one_gpu();
  Record record = measured_record(c, 100);
  fill_metrics(record, validate(c), {}, std::nullopt, std::nullopt);
  CHECK(record.status == Status::ok);
  CHECK(record.metrics->mfu_bf16.has_value());
  CHECK(!record.metrics->mfu_measured.has_value());
  CHECK(!record.metrics->peaks->measured_bf16_tflops.has_value());
}

TEST_CASE("fill_metrics: a speed above the GPU's peak makes the row crashed and drops the metrics only",
          "[metrics]") {
  const Case c = one_gpu();
  Record record = measured_record(c, 1);  // 8000 TFLOP/s
  fill_metrics(record, validate(c), {}, std::nullopt, std::nullopt);
  CHECK(record.status == Status::crashed);
  CHECK(record.error == "mfu_bf16 is 8.09: more than the GPU can do, so the measurement is wrong");
  CHECK(!record.metrics.has_value());
  CHECK(record.timing->samples_ms.size() == 1);
  CHECK(record.training->loss.size() == 1);
  valid_json(record);
}

TEST_CASE("fill_metrics: a speed somewhat above the data sheet keeps its metrics", "[metrics]") {
  const Case c = one_gpu();
  Record record = measured_record(c, 100);
  // 1.1 times the data sheet's peak, like a GPU that clocks above the stated boost clock.
  const std::vector<OpCost> ops = {{"matmul", OpClass::gemm, 1.1 * 989e11, 0, DType::bf16}};
  fill_metrics(record, validate(c), ops, OpRates{989e12, 0, 4e12}, std::nullopt);
  CHECK(record.status == Status::ok);
  CHECK(std::fabs(*record.metrics->sol - 1.1) < 1e-9);
  CHECK(std::fabs(*record.metrics->mfu_measured - 1.1) < 1e-9);
  valid_json(record);
}

TEST_CASE("fill_metrics: a bimodal timing has the speed of its mean step", "[metrics]") {
  const Case c = one_gpu();
  Record record = measured_record(c, 20);
  record.timing->samples_ms.clear();
  for (int i = 0; i < 21; ++i) record.timing->samples_ms.push_back(i % 3 == 2 ? 70.0 : 20.0);
  fill_metrics(record, validate(c), {}, std::nullopt, std::nullopt);
  const double mean_s = (14 * 20 + 7 * 70) / 21.0 / 1e3;
  CHECK(std::fabs(*record.metrics->tokens_per_s / (8000 / mean_s) - 1) < 1e-12);
  CHECK(record.metrics->speed_from == std::string("mean"));
  CHECK(record.timing->median_ms == 20.0);
  valid_json(record);
  Record steady = measured_record(c, 20);
  steady.timing->samples_ms = std::vector<double>(21, 20.0);
  fill_metrics(steady, validate(c), {}, std::nullopt, std::nullopt);
  CHECK(!steady.metrics->speed_from);
  CHECK(steady.metrics->tokens_per_s == 400000.0);
}

TEST_CASE("fill_metrics: an emulated recipe has no metrics", "[metrics]") {
  const Case c = one_gpu();
  Record record = measured_record(c, 1);
  record.support->dgrad.path = ExecutionPath::emulated;
  fill_metrics(record, validate(c), {}, std::nullopt, 0.5);
  CHECK(record.status == Status::ok);
  CHECK(!record.metrics->tokens_per_s.has_value());
  CHECK(!record.metrics->energy_j_per_token.has_value());
}

TEST_CASE("fill_metrics: FP4 and FP8 and BF16 GEMMs are compared with their own peaks", "[metrics]") {
  Case c = one_gpu();
  c.recipe = "nvfp4";
  c.steps = 10;
  c.seq = 1024;
  Record record = measured_record(c, 400);
  record.env.gpu->name = "NVIDIA B200";
  // Each takes a tenth of the step at its own peak; FP4 at the FP8 rate would take twice as long.
  const std::vector<OpCost> ops = {{"matmul fprop", OpClass::gemm, 9000e12 * 0.04, 0, DType::e2m1},
                                   {"matmul dgrad", OpClass::gemm, 4500e12 * 0.04, 0, DType::e4m3},
                                   {"matmul wgrad", OpClass::gemm, 2250e12 * 0.04, 0, DType::bf16}};
  fill_metrics(record, validate(c), ops, OpRates{2250e12, 4500e12, 8e12, 4500e12}, std::nullopt);
  REQUIRE(record.metrics.has_value());
  CHECK(std::fabs(*record.metrics->sol - 0.3) < 1e-9);
  CHECK(std::fabs(*record.metrics->mfu_measured - 0.4) < 1e-9);
  CHECK(record.metrics->peaks->fp4_tflops == 9000.0);
  CHECK(record.metrics->peaks->measured_fp4_tflops == 4500.0);
  const nlohmann::ordered_json json = valid_json(record);
  CHECK(json.get<Record>().metrics->peaks->measured_fp4_tflops == 4500.0);
  CHECK(nlohmann::ordered_json(measured_record(one_gpu(), 1)).dump().find("fp4") == std::string::npos);
}

TEST_CASE("op_rates: a recipe with FP4 GEMMs has no rates on a GPU without an FP4 peak", "[metrics]") {
  const DatasheetRates h200 = *datasheet_rates("NVIDIA H200"), b200 = *datasheet_rates("NVIDIA B200");
  CHECK_FALSE(op_rates(h200, find_recipe("nvfp4")).has_value());
  CHECK_FALSE(op_rates(h200, find_recipe("nvfp4_fprop_bf16")).has_value());
  CHECK(op_rates(h200, find_recipe("mxfp8")).has_value());
  CHECK(op_rates(b200, find_recipe("nvfp4"))->fp4_flops == 9000e12);
}

TEST_CASE("fill_metrics: a GPU without known peaks has no MFU and a warning how to give them", "[metrics]") {
  const Case c = one_gpu();
  Record record = measured_record(c, 100);
  record.env.gpu->name = "NVIDIA Unknown";
  fill_metrics(record, validate(c), {}, std::nullopt, std::nullopt);
  CHECK(record.metrics->tokens_per_s.has_value());
  CHECK_FALSE(record.metrics->mfu_bf16.has_value());
  REQUIRE(record.warnings.size() == 1);
  CHECK(*record.warnings.begin() ==
        "peaks: those of NVIDIA Unknown are not known, so there is no MFU; to give them: "
        "PRECBENCH_PEAKS=bf16=TFLOPS,fp8=TFLOPS,fp4=TFLOPS,memory=GB/s, the dense rates");
  setenv(kPeaksVariable, "bf16=100,memory=1000", 1);
  Record by_hand = measured_record(c, 100);
  by_hand.env.gpu->name = "NVIDIA Unknown";
  fill_metrics(by_hand, validate(c), {}, std::nullopt, std::nullopt);
  unsetenv(kPeaksVariable);
  CHECK(by_hand.warnings.size() == 0);
  CHECK(std::fabs(*by_hand.metrics->mfu_bf16 - 0.8) < 1e-9);
  CHECK(*by_hand.metrics->peaks->source == "given by hand (PRECBENCH_PEAKS)");
}

namespace {

/// A device that runs nothing and says that everything is native.
class NativeDevice : public Device {
 public:
  GemmSupport support(const GemmRecipe&, GemmRole) const override { return {}; }
  OpSet supported_ops() const override { return {}; }
  void* allocate(std::int64_t) override { return nullptr; }
  void deallocate(void*) override {}
  void upload(const Tensor&, const void*) override {}
  void download(void*, const Tensor&) override {}
  void synchronize() override {}
};

/// A device that has run two shapes of dgrad emulated.
class OddShapes final : public NativeDevice {
 public:
  std::string name() const override { return "odd"; }
  std::string emulated_shapes(GemmRole role) const override {
    return role == GemmRole::dgrad ? "64 x 80 x 208, 64 x 96 x 208" : "";
  }
};

}  // namespace

TEST_CASE("add_kernels: emulated shapes of a native recipe are named and remove its speed", "[metrics]") {
  const Case c = one_gpu();
  const Plan plan = validate(c);
  Record record = measured_record(c, 100);
  RecordBuilder(plan, all_ranks(1), record).add_kernels(OddShapes());
  CHECK(record.support->fprop.path == ExecutionPath::native);
  CHECK_FALSE(record.support->fprop.emulated_shapes.has_value());
  CHECK(record.support->dgrad.path == ExecutionPath::emulated);
  CHECK(record.support->dgrad.emulated_shapes == "64 x 80 x 208, 64 x 96 x 208");
  CHECK(record.support->dgrad.reason ==
        "cuBLASLt has no kernel for the shapes (M x N x K) 64 x 80 x 208, 64 x 96 x 208");
  fill_metrics(record, plan, {}, std::nullopt, std::nullopt);
  CHECK_FALSE(record.metrics->tokens_per_s.has_value());
  const nlohmann::ordered_json json = valid_json(record);
  CHECK(json.get<Record>().support->dgrad.emulated_shapes == record.support->dgrad.emulated_shapes);
}

namespace {

class NativeGpu final : public NativeDevice {
 public:
  std::string name() const override { return "cuda"; }
  std::string attention_name() const override { return "own 128x128"; }
};

}  // namespace

TEST_CASE("add_kernels: a GPU's record says whether its native paths are verified", "[metrics]") {
  Case c = one_gpu();
  c.recipe = "rowwise";
  const Plan plan = validate(c);
  const auto recorded = [&](const Device& device, const Verification* verification) {
    Record record = measured_record(c, 100);
    RecordBuilder(plan, all_ranks(1), record).add_kernels(device, verification);
    return record;
  };
  const NativeGpu gpu;
  CHECK(recorded(gpu, nullptr).support->verified == false);
  CHECK_FALSE(recorded(OddShapes(), nullptr).support->verified.has_value());  // no GPU
  Verification verification;
  for (const GemmRole role : kGemmRoles) {
    const GemmRecipe& gemm = plan.recipe.gemm(role);
    for (const std::string& path : {gemm_path(gemm, role), quantizer_path(gemm.a), quantizer_path(gemm.b)})
      verification.paths[path] = {true, "1 check"};
  }
  CHECK(recorded(gpu, &verification).support->verified == false);  // attention is missing
  verification.paths["attention own"] = {true, "1 check"};
  CHECK(recorded(gpu, &verification).support->verified == true);
  CHECK(recorded(gpu, &verification).warnings.empty());
  verification.trusted = true;
  verification.paths[gemm_path(plan.recipe.dgrad, GemmRole::dgrad)] = {false, "error 3, bound 2"};
  const Record trusted = recorded(gpu, &verification);
  CHECK(trusted.support->verified == false);
  REQUIRE(trusted.warnings.size() == 1);
  CHECK(trusted.warnings[0].find("error 3, bound 2") != std::string::npos);
}
