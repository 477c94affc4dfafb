// Compares forecasts of the law with published gaps, to none of which it was fitted.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/analysis/published_losses.h"
#include "tools/law/loss_law.h"

namespace precbench {

/// Largest factor between forecast and published gap that counts as near.
inline constexpr double kNearFactor = 1.5;

/// A published gap, or the bound of a published "no difference", beside the law's forecast of the raw gap. Both in nats
/// where the source has nats, else in per cent of BF16's loss.
struct JudgedLoss {
  const PublishedLoss* published = nullptr;
  double value = 0;  ///< the gap, or the bound
  double age = 0;    ///< tokens per parameter
  const char* unit = "nats";
  std::optional<GapForecast> forecast;
  std::string not_forecast;  ///< why there is no forecast; empty if there is
  bool near = false;         ///< gap: within kNearFactor or its own noise; bound: the median is below it
  /// The interval, widened by the published noise, contains the gap; or its lower end is below the bound.
  bool inside = false;
};

/// Returns the entries of tiers judged, share and continued that are gaps or bounds, in the file's order.
std::vector<JudgedLoss> judge_law(const LossLaw& law, const std::vector<PublishedLoss>& losses);

/// Counts over forecast gaps (not bounds), and the same where every group of PublishedLoss has the same weight.
struct JudgedShare {
  int gaps = 0, groups = 0;
  double near = 0, inside = 0;  ///< shares of the gaps
  double near_by_group = 0, inside_by_group = 0;
};
JudgedShare judged_share(const std::vector<JudgedLoss>& judged);

}  // namespace precbench
