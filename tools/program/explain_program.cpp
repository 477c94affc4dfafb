// Asks the cost model what an operation of a trace should take. See explain_program.h.
#include "tools/program/explain_program.h"

#include <CLI/CLI.hpp>
#include <cmath>

#include "bench/machine/machine.h"
#include "bench/machine/machine_names.h"
#include "bench/predict/cost_model.h"
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

double RateExpectation::gemm(const GemmShape& shape, GemmFormat format, bool wgrad) const {
  if (shape.m == 0 || (format != GemmFormat::bf16 && format != GemmFormat::fp16 && format != GemmFormat::fp8))
    return 0;
  if (format == GemmFormat::fp8 && !model_.machine().fp8_tflops) return 0;
  OpCost cost;
  cost.name = wgrad ? "matmul wgrad" : "matmul fprop";
  cost.op_class = OpClass::gemm;
  cost.flops = shape.flops() / static_cast<double>(shape.batch);
  const auto m = static_cast<double>(shape.m), n = static_cast<double>(shape.n),
             k = static_cast<double>(shape.k);
  const double element = format == GemmFormat::fp8 ? 1 : 2;
  cost.bytes = element * (m * k + n * k) + 2 * m * n;
  cost.shape = {shape.m, shape.n, shape.k};
  if (format == GemmFormat::fp8) {
    cost.math = DType::e4m3;
    const OpFormat operand = shape.rowwise ? OpFormat{DType::e4m3, Granularity::row, ScaleType::f32_pow2}
                                           : OpFormat{DType::e4m3, Granularity::tensor, ScaleType::f32};
    cost.formats = {operand, operand};
    if (wgrad && !shape.rowwise) cost.formats[0].dtype = DType::e5m2;
  }
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
      "Reads traces of torch.profiler (.json, .json.gz, .json.xz) and SQLite exports of Nsight Systems. Names lost time in order, with the "
      "step that each repair promises. With two traces: why the second step is faster or slower.\n"
      "\n"
      "Examples:\n"
      "  precbench explain trace.json.gz\n"
      "  precbench explain bf16.json.gz fp8.json.gz --plots out/plots");
  add_explain_flags(*sub, command);
  return sub;
}

int explain(const ExplainCommand& command) { return explain(command, expectation_of); }

}  // namespace precbench
