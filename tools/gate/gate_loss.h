// Judges the final loss and the held-out loss. See gate.h for the rules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/analysis/workloads.h"
#include "tools/gate/gate_match.h"
#include "tools/gate/gate_noise.h"

namespace precbench {

/// final_loss: trailing mean of training.loss after the steps that both sides did. held_out:
/// training.evaluations after the last number of steps that both sides evaluated.
enum class LossQuantity : std::uint8_t { final_loss, held_out };

/// Number of quantities, which share the rate of false alarms.
inline constexpr std::size_t kLossQuantities = 2;

class LossJudge {
 public:
  /// Judges all matches that can be judged. `workloads`: of the baseline's records. `tolerance`: a fraction;
  /// null: kMatchedLoss, with seeds judged together.
  LossJudge(const std::vector<Match>& matches, const Workloads& workloads,
            const std::optional<double>& tolerance, LossQuantity quantity);

  /// Returns the metric of a match given to the constructor. Null if neither side has the quantity; notes say
  /// so for the final loss.
  std::optional<MetricResult> judge(const Match& match, const std::string& label, Distinct& notes) const;

 private:
  /// Losses of a match: of each record of the baseline, and of this run after the same steps.
  struct Losses {
    std::vector<double> baseline{}, current{};
    std::optional<MetricResult> unfit{};  ///< why there is none to compare
    bool absent = false;                  ///< neither side has the quantity
    double change() const;                ///< mean over the baseline's records
  };
  /// Cases whose work differs at most in the seed.
  struct Seeds {
    std::vector<std::size_t> places{};  ///< in losses_
    std::vector<double> changes{};
    double mean = 0, half_width = 0;  ///< of the changes; the 99% interval's
    bool significant = false;         ///< among all works of the check
  };
  Losses losses_of(const Match& match) const;
  Losses final_losses(const Match& match) const;
  Losses held_out_losses(const Match& match) const;
  MetricResult start(const Losses& losses) const;
  std::string work_of(const Match& match) const;
  void pool_noise();
  void test();
  void judge_alone(std::size_t place, MetricResult& result) const;
  void judge_with(const Seeds& seeds, std::size_t place, MetricResult& result) const;

  const Workloads& workloads_;
  double tolerance_;
  bool together_;
  LossQuantity quantity_;
  std::map<const LocatedRecord*, std::size_t> places_;  ///< of matches in losses_, by their baseline
  std::vector<Losses> losses_;
  std::vector<RunNoise> noise_;         ///< by place
  std::vector<NoiseKind> kinds_;        ///< by place
  std::vector<bool> significant_;       ///< by place: this case alone is above what noise explains
  std::map<std::string, Seeds> seeds_;  ///< by work_of
};

}  // namespace precbench
