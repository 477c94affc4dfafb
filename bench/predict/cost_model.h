// Step time of a plan on a machine that need not be present: the trace of a dry run, op times from measured
// rates (rates.h), collectives from the machine's network (network.h), their overlap (timeline.h), and an interval.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "bench/case/plan.h"
#include "bench/machine/machine.h"
#include "bench/predict/network.h"
#include "bench/predict/rates.h"
#include "bench/predict/speed_ratios.h"
#include "bench/predict/timeline.h"
#include "bench/predict/trace.h"
#include "results/record/record.h"

namespace precbench {

/// Share of an op's rate that is lost beside a collective over NVLink: its kernels occupy multiprocessors and
/// memory bandwidth. Fitted to steps on two and four H200, an earlier sweep of the cases in results/h200x4.
inline constexpr double kNvlinkContention = 0.45;

/// A machine with the rates that predictions for it use.
class CostModel {
 public:
  /// Throws InvalidInput if the machine names rates that the program does not have.
  explicit CostModel(Machine machine);
  /// Uses these rates, which must outlive the model, as if they had been measured on the machine.
  CostModel(Machine machine, const Rates& rates, const OpTimer& timer);

  const Machine& machine() const { return machine_; }
  const Network& network() const { return network_; }
  const Rates& rates() const { return *rates_; }
  /// Returns true if the rates were measured on another GPU model.
  bool borrowed() const { return borrowed_; }
  /// Returns the ratios to the GPU that rates are borrowed from; null if there are none.
  const SpeedRatios* ratios() const { return ratios_; }

  /// Time of one call of an op.
  struct Time {
    double seconds = 0;
    bool borrowed = false;  ///< from rates of other formats, or of another GPU without a ratio of this op
    /// Standard deviation of the logarithm of the ratio to the GPU that rates are borrowed from; null without one.
    std::optional<double> ratio_error;
  };
  /// `attention`: what decides about the kernel of attention.
  Time time(const OpCost& op, const AttentionSetting& attention = {}) const;

  /// Returns the times of a trace's ops and collectives.
  TimelineRates rates_of(const Trace& trace) const;

  /// Returns the share of an op's rate that is lost beside a collective of the group.
  double contention(Collective collective, const RankGroup& group) const;

 private:
  class KnownTimes;

  /// Returns the standard deviation of the logarithm that a backward GEMM's ratio has in addition to its spread,
  /// because the tables have forward GEMMs alone; 0 for other ops. 80% of its errors are assumed to be within the
  /// difference of both GEMMs' times on the GPU that the ratio is over, where `op` has `formats` and takes `seconds`.
  double backward_error(const OpCost& op, std::string formats, double seconds) const;

  Machine machine_;
  Network network_;
  const Rates* rates_;
  bool borrowed_;
  OpTimer timer_;
  const SpeedRatios* ratios_ = nullptr;
  // With ratios_ alone:
  std::optional<OpTimer> ratio_timer_;  // of the GPU that ratios are over
  OpPeaks peaks_, preset_peaks_;        // of machine_, and of the preset that the ratios are of
  std::shared_ptr<KnownTimes> known_;   // what time() returned; copies share it
};

/// Predicted time of one step.
struct StepEstimate {
  StepTime time;                                    ///< of one rank, without stragglers
  double straggler_factor = 1;                      ///< of the slowest rank
  double seconds = 0;                               ///< with stragglers
  std::array<double, kRateClasses> rate_seconds{};  ///< ops by class of their rates
  double communication_seconds = 0;                 ///< all collectives alone, one after the other
  double borrowed_seconds = 0;                      ///< ops whose CostModel::Time is borrowed
  double log_error = 0;                             ///< standard deviation of the logarithm of `seconds`
  /// Standard deviations of the logarithm, by class of rates: share of the time times its error.
  std::array<double, kRateClasses> class_errors{};
  double communication_error = 0;  ///< likewise, of what collectives cost

  double low() const;   ///< seconds, end of the 80% interval
  double high() const;  ///< likewise
  double borrowed_share() const;
};

/// Returns the prediction of a step on GPUs of that name on so many nodes, as a record has it; null if no machine file has
/// the name, no rates exist for it, or no network between nodes is known.
std::optional<PredictedStep> predicted_step(const std::string& gpu_name, const Trace& trace,
                                            std::int64_t ranks, std::int64_t nodes = 1);
/// Returns the estimate of a case's step on such GPUs; null also if it cannot run or its formats are not native there.
std::optional<StepEstimate> estimated_step(const std::string& gpu_name, const Plan& plan);

/// Returns true if all recipes of a case are native on a machine.
bool runs_natively(const Plan& plan, const Machine& machine);

/// Returns the standard deviation of the logarithm of the ratio of two step times on one machine. Errors of a class
/// that both have cancel, as do errors of the machine.
double speedup_log_error(const StepEstimate& a, const StepEstimate& b);

/// Speed of a step over that of another one of as many tokens, with its 80% interval.
struct SpeedUp {
  double ratio = 0, low = 0, high = 0;
};
/// Returns exactly 1 for a step over itself (the same object).
SpeedUp speedup_of(const StepEstimate& own, const StepEstimate& base);

StepEstimate estimate_step(const CostModel& model, const Trace& trace, std::int64_t ranks);
/// The same with rates_of() the trace.
StepEstimate estimate_step(const CostModel& model, const Trace& trace, const TimelineRates& rates,
                           std::int64_t ranks);

}  // namespace precbench
