// Compares whole curves coarsely. The final loss covers the last tenth; a run that was far off before, or
// whose gradients have another size, computes something else.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "results/record/statistics.h"
#include "tools/gate/gate.h"

namespace precbench {
namespace {

/// Parts of the curve, each of at least kFewestEntries, whose means are compared.
constexpr std::size_t kParts = 10, kFewestEntries = 5;
/// Growth of the mean of a part. Committed repeats on a GPU differ by at most 3.2%, at a learning rate of 1e-3.
constexpr double kFarAbove = 0.25;
/// Ratio of the median gradient norms over the last tenth, either way; at most 1.05 in committed repeats.
constexpr double kFarNorm = 3;

std::optional<MetricResult> noisy_curve(std::string reason) {
  return MetricResult{"curve", "", GateVerdict::noisy, {}, {}, {}, {}, std::move(reason)};
}

double part_mean(const std::vector<double>& curve, std::size_t begin, std::size_t end) {
  double sum = 0;
  for (std::size_t i = begin; i < end; ++i) sum += curve[i];
  return sum / static_cast<double>(end - begin);
}

std::optional<double> last_median(const std::vector<double>& series, std::size_t steps) {
  const std::size_t count = std::min(steps, std::max(kFewestEntries, trailing_window(steps)));
  const auto end = series.begin() + static_cast<std::ptrdiff_t>(steps);
  const auto statistics = sample_statistics({end - static_cast<std::ptrdiff_t>(count), end});
  return statistics ? std::optional(statistics->median) : std::nullopt;
}

}  // namespace

std::optional<MetricResult> judge_curve(const Record& baseline, const Record& current) {
  if (!baseline.training || !current.training) return std::nullopt;
  const Training &was = *baseline.training, &is = *current.training;
  const std::size_t steps = std::min(was.loss.size(), is.loss.size());
  const std::size_t length = std::max(kFewestEntries, (steps + kParts - 1) / kParts);
  for (std::size_t begin = 0; begin + kFewestEntries <= steps; begin += length) {
    const std::size_t end = std::min(steps, begin + length);
    const double before = part_mean(was.loss, begin, end), now = part_mean(is.loss, begin, end);
    if (before > 0 && !(now <= (1 + kFarAbove) * before))
      return noisy_curve(
          fmt::format("the mean loss of steps {} to {} is {:.4g} against {:.4g}; the verdict on the final "
                      "loss covers only the last tenth",
                      begin + 1, end, now, before));
  }
  const std::size_t norms = std::min(was.grad_norm.size(), is.grad_norm.size());
  if (norms < kFewestEntries) return std::nullopt;
  const auto before = last_median(was.grad_norm, norms), now = last_median(is.grad_norm, norms);
  if (before && now && *before > 0 && !(*now <= kFarNorm * *before && *now >= *before / kFarNorm))
    return noisy_curve(
        fmt::format("the gradient norm is {:.4g} against {:.4g}, the median over the last tenth of the steps",
                    *now, *before));
  return std::nullopt;
}

}  // namespace precbench
