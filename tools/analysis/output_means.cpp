// Averages distances of outputs. See output_means.h.
#include "tools/analysis/output_means.h"

#include <algorithm>

namespace precbench {

std::optional<OutputMeans> output_means(const std::vector<const OutputDistance*>& measurements) {
  if (measurements.empty()) return std::nullopt;
  const auto count = static_cast<double>(measurements.size());
  OutputMeans all;
  for (const OutputDistance* one : measurements) {
    if (!one || !one->log_probability.mean || !one->divergence.mean || !one->largest_log_probability ||
        !one->largest_divergence)
      return std::nullopt;
    all.log_probability += *one->log_probability.mean / count;
    all.kl += *one->divergence.mean / count;
    all.largest_log_probability = std::max(all.largest_log_probability, *one->largest_log_probability);
    all.largest_kl = std::max(all.largest_kl, *one->largest_divergence);
  }
  return all;
}

}  // namespace precbench
