// Asks the cost model what an operation of a trace should take. See explain_program.h.
#include "tools/program/explain_program.h"

#include <CLI/CLI.hpp>
#include <array>
#include <cmath>
#include <optional>

#include "bench/machine/machine.h"
#include "bench/machine/machine_names.h"
#include "bench/predict/cost_model.h"
#include "kernels/numerics/native_formats.h"
#include "tools/explain/expectation.h"

namespace precbench {
namespace {

/// Share of memory bandwidth that fused elementwise kernels of PyTorch reach: assumed.
constexpr double kStreamShare = 0.75;
/// Likewise its fused AdamW on BF16 parameters and moments: 0.50 and 0.52 on an H200 (results/h200/traces).
constexpr double kUpdateShare = 0.52;
constexpr double kNanoseconds = 1e9;

class RateExpectation final : public Expectation {
 public:
  explicit RateExpectation(const Machine& machine) : model_(machine) {}

  std::string gpu() const override { return gpu_name_of(model_.machine()); }
  bool borrowed() const override { return model_.borrowed(); }
  double gemm(const GemmShape& shape, GemmFormat format, bool wgrad) const override;
  double attention(std::int64_t heads, std::int64_t T, std::int64_t head_dim) const override;
  double stream(double bytes) const override {
    return bytes / (kStreamShare * model_.machine().memory_gb_per_s);  // GB/s are bytes per ns
  }
  double update(double bytes) const override {
    return bytes / (kUpdateShare * model_.machine().memory_gb_per_s);
  }

 private:
  CostModel model_;
};

/// Returns the formats of a GEMM's operands; null for those that the machine does not multiply natively.
std::optional<std::array<OpFormat, 2>> operand_formats(const Machine& machine, GemmFormat format,
                                                       GemmScales scales, bool wgrad) {
  const auto both = [&](DType dtype, Granularity granularity, ScaleType scale) {
    const OpFormat operand{dtype, granularity, scale};
    return std::array{operand, operand};
  };
  const NativeFormats native = machine.native;
  const auto has = [&](NativeFormat kind) { return native[static_cast<std::size_t>(kind)]; };
  if (is_16_bit(format)) return std::array<OpFormat, 2>{};
  if (format == GemmFormat::fp4 && scales == GemmScales::nvfp4 && has(NativeFormat::fp4))
    return both(DType::e2m1, Granularity::block_1x16, ScaleType::e4m3);
  if (format != GemmFormat::fp8 || !machine.fp8_tflops) return std::nullopt;
  std::array<OpFormat, 2> formats = both(DType::e4m3, Granularity::tensor, ScaleType::f32);
  switch (scales) {
    case GemmScales::row:
      return both(DType::e4m3, Granularity::row, ScaleType::f32_pow2);
    case GemmScales::block:
      formats = both(DType::e4m3, Granularity::block_1x128, ScaleType::f32);
      if (!wgrad) formats[1].granularity = Granularity::block_128x128;
      return formats;
    case GemmScales::mx:
      if (!has(NativeFormat::mx8)) return std::nullopt;
      return both(DType::e4m3, Granularity::block_1x32, ScaleType::ue8m0);
    default:
      if (wgrad) formats[0].dtype = DType::e5m2;
      return formats;
  }
}

double RateExpectation::gemm(const GemmShape& shape, GemmFormat format, bool wgrad) const {
  const auto formats = operand_formats(model_.machine(), format, shape.scales, wgrad);
  if (shape.m == 0 || !formats) return 0;
  OpCost cost;
  cost.name = shape.groups > 1 ? (wgrad ? "grouped_matmul wgrad" : "grouped_matmul fprop")
                               : (wgrad ? "matmul wgrad" : "matmul fprop");
  cost.op_class = OpClass::gemm;
  cost.flops = shape.flops() / static_cast<double>(shape.batch);
  const auto m = static_cast<double>(shape.m), n = static_cast<double>(shape.n),
             k = static_cast<double>(shape.k), groups = static_cast<double>(shape.groups);
  const double element = format == GemmFormat::fp4 ? 0.5 : format == GemmFormat::fp8 ? 1 : 2;
  cost.bytes = element * (m * k + n * k * (wgrad ? 1 : groups)) + 2 * m * n * (wgrad ? groups : 1);
  cost.shape = {shape.m, shape.n, shape.k, shape.groups > 1 ? shape.groups : 0};
  cost.formats = *formats;
  cost.math = is_16_bit(format) ? DType::bf16 : cost.formats[1].dtype;
  const double seconds = model_.time(cost).seconds * static_cast<double>(shape.batch);
  return std::isfinite(seconds) ? seconds * kNanoseconds : 0;
}

double RateExpectation::attention(std::int64_t heads, std::int64_t T, std::int64_t head_dim) const {
  OpCost cost;
  cost.name = "attention";
  cost.op_class = OpClass::attention;
  const auto h = static_cast<double>(heads), t = static_cast<double>(T), d = static_cast<double>(head_dim);
  cost.flops = 2 * h * t * t * d;  // causal: half of two GEMMs
  cost.bytes = 2 * 4 * h * t * d;
  cost.shape = {1, T, T, 0, heads, heads, head_dim};
  double seconds = model_.time(cost).seconds;
  cost.name = "attention_backward";
  cost.flops *= 2.5;
  cost.bytes *= 2;
  seconds += model_.time(cost).seconds;
  return std::isfinite(seconds) ? seconds * kNanoseconds : 0;
}

/// Returns the rates of a GPU that a user or a trace names; null for a trace's GPU without any.
std::unique_ptr<Expectation> expectation_of(const std::string& gpu, bool by_user) {
  const Machine* machine = by_user ? find_preset_machine(gpu) : find_machine_of_gpu(gpu);
  if (machine) return std::make_unique<RateExpectation>(*machine);
  if (by_user)
    return std::make_unique<RateExpectation>(find_machine(gpu, "--gpu"));  // a file, else it throws
  return nullptr;
}

}  // namespace

CLI::App* add_explain_command(CLI::App& app, ExplainCommand& command) {
  CLI::App* sub =
      app.add_subcommand("explain", "where the time of your own training step goes, from a profiler's trace");
  sub->footer(
      "Reads traces of torch.profiler (.json, .json.gz, .json.xz) and SQLite exports of Nsight Systems. Lists lost time by cause, largest "
      "first, with the predicted step after each repair. With two traces: why the second step is faster or slower; of two ranks of a "
      "job: which one the other waits for.\n"
      "\n"
      "Examples:\n"
      "  precbench explain trace.json.gz\n"
      "  precbench explain bf16.json.gz fp8.json.gz --plots out/plots");
  add_explain_flags(*sub, command);
  return sub;
}

int explain(const ExplainCommand& command) { return explain(command, expectation_of); }

}  // namespace precbench
