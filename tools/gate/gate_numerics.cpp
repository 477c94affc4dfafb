// Detects changes of the computation. Quantization formats must stay the same, and two quantities that a
// training step shows before rounding errors grow must stay within bands. The bands lie between the effect of
// another summation order at the same commit and that of the smallest change of a recipe, another rounding of
// its scales. Other summation orders were those of OpenBLAS's kernels for five CPUs: eight recipes, ten steps
// of the tiny model. The CPU device has one order on every CPU (kernels/cpu/gemm.h); a GPU's library has its
// own.
//
//                                   other order    other rounding of scales     band
//   loss of the first step          1.5e-5         1.2e-4                       5e-5
//   SQNR, median over the roles     0.05 dB        0.3 dB                       0.15 dB
//   SQNR of one role                1.2 dB                                      3 dB (half a mantissa bit)
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "results/record/statistics.h"
#include "tools/gate/gate.h"

namespace precbench {
namespace {

constexpr double kFirstLossBand = 5e-5;  // relative to the loss
constexpr double kMedianBand = 0.15;     // dB
constexpr double kRoleBand = 3;          // dB

std::optional<double> first_loss(const Record& record) {
  if (!record.training || record.training->loss.empty() || !std::isfinite(record.training->loss.front()))
    return std::nullopt;
  return record.training->loss.front();
}

using Roles = std::map<std::string, const QuantizationStats*>;

Roles by_role(const Record& record) {
  Roles roles;
  for (const QuantizationStats& stats : record.quantization) roles[stats.role] = &stats;
  return roles;
}

Roles with_noise(const Record& record) {
  Roles roles = by_role(record);
  std::erase_if(roles, [](const auto& role) { return !role.second->sqnr_db; });
  return roles;
}

/// Returns the median SQNR over the baseline's roles that `these` have.
std::optional<double> median_sqnr(const Roles& baseline, const Roles& these) {
  std::vector<double> values;
  for (const auto& [role, stats] : these)
    if (baseline.contains(role)) values.push_back(*stats->sqnr_db);
  const auto statistics = sample_statistics(values);
  return statistics ? std::optional(statistics->median) : std::nullopt;
}

MetricResult compare_first_loss(double was, const std::optional<double>& is) {
  MetricResult result{"first loss", "nats", GateVerdict::pass, was, is, {}, kFirstLossBand, ""};
  if (!is) {
    result.verdict = GateVerdict::missing;
    result.reason = kLackedByRun;
    return result;
  }
  result.change = *is / was - 1;
  if (std::abs(*result.change) > kFirstLossBand) {
    result.verdict = *result.change > 0 ? GateVerdict::worse : GateVerdict::noisy;
    result.reason = fmt::format("{:+.4f}%, {:.4f}% are rounding: the forward pass computes something else",
                                100 * *result.change, 100 * kFirstLossBand);
  }
  return result;
}

MetricResult compare_sqnr(const Roles& was, const Roles& is) {
  MetricResult result{"SQNR", "dB", GateVerdict::pass, median_sqnr(was, was), median_sqnr(was, is), {},
                      {},     ""};
  std::vector<double> changes;
  const auto complain = [&](GateVerdict verdict, std::string reason) {
    result.verdict = verdict;
    result.reason = std::move(reason);
    return result;
  };
  for (const auto& [role, stats] : was) {
    const auto found = is.find(role);
    if (found == is.end())
      return complain(GateVerdict::missing, fmt::format("the record of this run has none for {}", role));
    changes.push_back(*found->second->sqnr_db - *stats->sqnr_db);
    if (std::abs(changes.back()) > kRoleBand)
      return complain(changes.back() < 0 ? GateVerdict::worse : GateVerdict::noisy,
                      fmt::format("{:+.2f} dB in {}, +-{} dB are rounding", changes.back(), role, kRoleBand));
  }
  const double median = sample_statistics(changes)->median;
  if (std::abs(median) > kMedianBand)
    return complain(median < 0 ? GateVerdict::worse : GateVerdict::noisy,
                    fmt::format("{:+.2f} dB, the median over {} roles; +-{} dB are rounding", median,
                                changes.size(), kMedianBand));
  return result;
}

}  // namespace

std::optional<MetricResult> judge_formats(const Record& baseline, const Record& current) {
  const Roles is = by_role(current);
  for (const auto& [role, stats] : by_role(baseline)) {
    const auto found = is.find(role);
    MetricResult result{"formats", ""};
    if (found == is.end()) {
      result.verdict = GateVerdict::missing;
      result.reason = fmt::format("{} was quantized and is not now", role);
      return result;
    }
    if (found->second->format != stats->format) {
      result.verdict = GateVerdict::worse;
      result.reason = fmt::format("{} was {} and is {} now", role, stats->format, found->second->format);
      return result;
    }
  }
  return std::nullopt;
}

std::optional<MetricResult> judge_updates(const Record& baseline, const Record& current) {
  const auto changed = [](const Record& record) {
    return record.training ? record.training->params_changed : std::nullopt;
  };
  const auto was = changed(baseline), is = changed(current);
  if (!was || (is && *is >= *was)) return std::nullopt;
  MetricResult result{"updates", ""};
  result.verdict = is ? GateVerdict::worse : GateVerdict::missing;
  result.reason =
      is ? fmt::format("the first step changed {} of the parameter tensors and changes {} now", *was, *is)
         : "the record of this run does not say what its first step changed";
  return result;
}

std::vector<MetricResult> judge_numerics(const Record& baseline, const Record& current) {
  std::vector<MetricResult> results;
  if (const auto was = first_loss(baseline)) results.push_back(compare_first_loss(*was, first_loss(current)));
  if (const Roles was = with_noise(baseline); !was.empty())
    results.push_back(compare_sqnr(was, with_noise(current)));
  return results;
}

}  // namespace precbench
