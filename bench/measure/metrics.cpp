// Computes tokens per second, MFU and the speed of light from the step time. See metrics.h.
#include "bench/measure/metrics.h"

#include <fmt/format.h>

#include <utility>

#include "bench/machine/datasheet.h"
#include "results/record/step_time.h"

namespace precbench {

namespace {

/// Tolerated excess over the data sheet, whose peaks hold at a stated boost clock: the highest clocks of the
/// GPUs that precbench knows are up to 20% above it. No clock explains a higher speed.
constexpr double kMostOverSheet = 1.25;

}  // namespace

void fail(Record& record, Status status, const std::string& error) {
  record.status = status;
  record.error = error;
  record.metrics.reset();
}

void fill_metrics(Record& record, const Plan& plan, const std::vector<OpCost>& ops,
                  const std::optional<OpRates>& measured, std::optional<double> energy_j_per_token) {
  Metrics& metrics = record.metrics.emplace();
  if (record.support->path() != ExecutionPath::native || !record.timing->median_ms) return;
  const double seconds = *step_ms_for_speed(*record.timing) / 1e3;
  if (mean_is_far_from_median(*record.timing)) metrics.speed_from = std::string(kFromMean);
  metrics.energy_j_per_token = energy_j_per_token;
  metrics.tokens_per_s = static_cast<double>(plan.tokens_per_step()) / seconds;
  metrics.tokens_per_s_per_gpu = *metrics.tokens_per_s / plan.ranks;
  metrics.tflops_per_gpu = *metrics.tokens_per_s_per_gpu * record.flops->per_token / 1e12;
  if (!record.env.gpu) return;
  DeviceRates& peaks = metrics.peaks.emplace();
  if (measured) {
    peaks.measured_bf16_tflops = measured->bf16_flops / 1e12;
    if (measured->fp8_flops > 0) peaks.measured_fp8_tflops = measured->fp8_flops / 1e12;
    if (measured->fp4_flops > 0) peaks.measured_fp4_tflops = measured->fp4_flops / 1e12;
    peaks.measured_copy_gb_per_s = measured->bytes / 1e9;
    metrics.mfu_measured = speed_of_light(ops, *measured) / seconds;
  }
  const std::optional<DatasheetRates> peak = known_peaks(record.env.gpu->name);
  if (!peak) {
    record.warnings.push_back(no_peaks_known(record.env.gpu->name));
    return;
  }
  peaks.bf16_tflops = peak->bf16_tflops;
  peaks.fp8_tflops = peak->fp8_tflops;
  peaks.fp4_tflops = peak->fp4_tflops;
  peaks.memory_gb_per_s = peak->memory_gb_per_s;
  peaks.source = peak->source;
  metrics.mfu_bf16 = *metrics.tflops_per_gpu / peak->bf16_tflops;
  if (const std::optional<OpRates> sheet = op_rates(*peak, plan.recipe))
    metrics.sol = speed_of_light(ops, *sheet) / seconds;
  for (const auto& [name, share] : {std::pair{"mfu_bf16", metrics.mfu_bf16}, std::pair{"sol", metrics.sol}})
    if (share && *share > kMostOverSheet)
      return fail(
          record, Status::crashed,
          fmt::format("{} is {:.2f}: more than the GPU can do, so the measurement is wrong", name, *share));
}

}  // namespace precbench
