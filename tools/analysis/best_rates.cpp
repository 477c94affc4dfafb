// Sums op times at given rates. See best_rates.h.
#include "tools/analysis/best_rates.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "results/record/step_time.h"

namespace precbench {
namespace {

/// GEMMs of a recipe; one more bit stands for those of the head (--head recipe). A set of them is a bit mask.
constexpr std::array kGemms = {"matmul fprop", "matmul dgrad", "matmul wgrad"};
constexpr unsigned kSets = 1u << (kGemms.size() + 1);

bool in_set(unsigned set, const OpRecord& op) {
  if (op.flops <= 0) return false;
  if (op.op_class == "head_loss") return set >> kGemms.size() & 1;
  const auto gemm = std::find(kGemms.begin(), kGemms.end(), op.name);
  return op.op_class == "gemm" && gemm != kGemms.end() && (set >> (gemm - kGemms.begin()) & 1);
}

/// Returns the time of the ops in seconds, with the GEMMs in `set` at the FP8 (or FP4) rate; null if a needed
/// rate is unknown. Same sum as speed_of_light in bench/predict/predict.h: all calls of an op share one
/// bound.
std::optional<double> seconds(const Breakdown& breakdown, const BestRates& rates, bool fp4, unsigned set) {
  double sum = 0;
  for (const OpRecord& op : breakdown.ops) {
    if (op.op_class == "communication") continue;
    const double narrow = fp4 ? rates.fp4_flops : rates.fp8_flops;
    const double flops = in_set(set, op) ? narrow : rates.bf16_flops;
    if (flops <= 0 || rates.bytes <= 0) return std::nullopt;
    sum += std::max(op.flops / flops, op.bytes / rates.bytes);
  }
  return sum;
}

}  // namespace

void BestRates::raise_to(const Record& record) {
  if (!record.metrics || !record.metrics->peaks) return;
  const DeviceRates& peaks = *record.metrics->peaks;
  bf16_flops = std::max(bf16_flops, 1e12 * peaks.measured_bf16_tflops.value_or(0));
  fp8_flops = std::max(fp8_flops, 1e12 * peaks.measured_fp8_tflops.value_or(0));
  fp4_flops = std::max(fp4_flops, 1e12 * peaks.measured_fp4_tflops.value_or(0));
  bytes = std::max(bytes, 1e9 * peaks.measured_copy_gb_per_s.value_or(0));
}

std::optional<double> sol_at(const BestRates& rates, const Record& record) {
  constexpr double kEqual = 1e-6;  // records keep all digits; sets that agree this closely are
                                   // interchangeable
  if (!record.breakdown || !record.timing || !record.metrics || !record.metrics->mfu_measured)
    return std::nullopt;
  const double step = step_ms_of_speed(record).value_or(0) / 1e3, share = *record.metrics->mfu_measured;
  if (step <= 0 || share <= 0) return std::nullopt;
  BestRates own;
  own.raise_to(record);
  const bool fp4 = own.fp4_flops > 0;
  for (unsigned set = 0; set < kSets; ++set) {
    const auto at_own = seconds(*record.breakdown, own, fp4, set);
    if (!at_own || std::abs(*at_own / step / share - 1) > kEqual) continue;
    if (const auto best = seconds(*record.breakdown, rates, fp4, set)) return *best / step;
  }
  return std::nullopt;
}

}  // namespace precbench
