// Predictions beside published points. A floor is the largest median error that a group of points may have; floors
// were fixed before any result.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/predict/layout_estimate.h"
#include "bench/predict/published_setting.h"
#include "bench/predict/stack_factor.h"

namespace precbench {

/// Groups with floors of their own.
enum class ErrorGroup : std::uint8_t {
  hopper_native,
  blackwell_native,
  ada_native,
  stack,
  all_absolute,
  speedup,
  hopper_speedup,
  blackwell_speedup,
  ada_speedup,
  scaling
};
inline constexpr int kErrorGroups = 10;
const char* name_of(ErrorGroup group);
/// Returns true for speed-ups and scaling, the last groups of the enumeration.
inline bool is_ratio(ErrorGroup group) { return group >= ErrorGroup::speedup; }
/// Returns the largest median error that the group may have: relative for absolute ones, of the ratio otherwise.
double floor_of(ErrorGroup group);
/// 80% intervals must cover this share of the judged points, of each group and of all.
inline constexpr double kLeastCoverage = 0.70, kMostCoverage = 0.90;
/// Largest median half-width of the intervals of a group, relative: of native Hopper points, and of others.
inline constexpr double kHopperHalfWidth = 0.15, kHalfWidth = 0.35;

/// Widens the logarithm of intervals of tokens/s: other software, other data centers and borrowed rates are less known
/// than our own records say. Chosen so that the intervals covered about 80% of the published points, when those of
/// ratios were still widened too. No predicted value is fitted to these points; rules that were chosen after a first
/// comparison are listed in results/predicted/README.md. Ratios of two points of one source, which have software and
/// data center in common, are not widened.
inline constexpr double kWidening = 1.75;

struct PointPrediction {
  std::string id;
  std::string reason;  ///< why there is no prediction; empty: there is one
  std::vector<std::string> assumed;
  /// Speed of a PyTorch stack over ours without the point's own source, included in `tokens_per_s_per_gpu` and
  /// `step_s`; null for other software.
  std::optional<StackFactor> stack_factor;
  double tokens_per_s_per_gpu = 0, low = 0, high = 0;  ///< with the ends of the 80% interval
  double own_tokens_per_s_per_gpu = 0;                 ///< of our step
  StackSetting setting;
  double step_s = 0, bubble_share = 0, exposed_share = 0, contention_share = 0, borrowed_share = 0;
  std::optional<StepEstimate> step;
  double memory_gb = 0;  ///< 10^9 bytes
  bool fits = true;
};

/// One comparison of a point with a prediction.
struct Judgement {
  std::string id;
  JudgedAs as = JudgedAs::shown;
  std::string architecture;  ///< "Hopper", "Blackwell", "Ada", "Ampere", ""
  double published = 0, predicted = 0, low = 0, high = 0;

  /// Relative for absolutes, a difference for ratios; positive: predicted faster than published.
  double signed_error() const;
  double error() const;
  bool covered() const { return low <= published && published <= high; }
};

struct GroupResult {
  ErrorGroup group;
  int points = 0;
  double median = 0, worst = 0;
  double bias = 0;  ///< mean of the signed errors
  int covered = 0;
  double half_width = 0;  ///< median of the intervals, relative
  bool met() const { return points == 0 || median <= floor_of(group); }
  /// Returns "good", "too narrow" or "too wide", by the share of points that the 80% intervals cover; "good" without
  /// points.
  const char* interval_verdict() const;
  bool narrow() const {
    return half_width <= (group == ErrorGroup::hopper_native ? kHopperHalfWidth : kHalfWidth);
  }
};

PointPrediction predict_point(const PublishedPoint& point);
std::vector<PointPrediction> predict_points(const std::vector<PublishedPoint>& points);

/// Returns the comparisons of all judged points that are predicted.
std::vector<Judgement> judge(const std::vector<PublishedPoint>& points,
                             const std::vector<PointPrediction>& predictions);
std::vector<GroupResult> group_results(const std::vector<Judgement>& judgements);
/// Returns the share of all judgements inside their 80% intervals; null without any.
std::optional<double> coverage(const std::vector<Judgement>& judgements);

/// Returns a line of results/predicted/published.jsonl: published and predicted values of one point.
nlohmann::ordered_json prediction_json(const PublishedPoint& point, const PointPrediction& prediction,
                                       const std::vector<Judgement>& judgements);

/// Returns the last line: {"groups": [...], "coverage": ...}, with floors, coverage and widths by group.
nlohmann::ordered_json groups_json(const std::vector<Judgement>& judgements);

}  // namespace precbench
