// Step times predicted from the dry run's counts and from rates measured on other steps. Shown next to
// measured step times, they tell how reliable such a prediction is for a case that nobody has run.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/analysis/analysis.h"

namespace precbench {

/// Largest ratio of the sizes of two op calls at which one's rate is used for the other. The rate of an op
/// depends on its size: a kernel that clears 16 bytes reaches a millionth of the bandwidth of one that clears
/// a gigabyte.
inline constexpr double kNearSize = 8;
/// Number of the measured ops nearest in size whose rate is used.
inline constexpr std::size_t kNearestOps = 2;

/// Returns the ops of a step by name and class, each with the calls of all its shapes, as older records have
/// them.
std::vector<OpRecord> ops_of_all_shapes(const Breakdown& breakdown);

/// Rates of the ops of measured steps, all on one GPU model and in one recipe.
class OpRateTable {
 public:
  /// Uses the records that have a breakdown; collectives are left out.
  explicit OpRateTable(const std::vector<const Record*>& steps);

  /// Returns the predicted time of all calls of an op in ms. The rate, in FLOPs per ms or bytes per ms for an
  /// op without FLOPs, is that of the kNearestOps ops of the same name and class that are nearest in size per
  /// call, among those within a factor kNearSize. Null without such neighbours.
  std::optional<double> near_ms(const OpRecord& op) const;
  /// The same, but a memory-bound op without neighbours takes the pooled byte rate of all memory-bound ops. Null
  /// for any other op without neighbours: its rate is unknown.
  std::optional<double> ms(const OpRecord& op) const;
  /// Returns the mean idle time per op call, ms.
  double gap_ms() const { return calls_ > 0 ? idle_ms_ / calls_ : 0; }

 private:
  struct Measured {
    double size = 0;            ///< FLOPs or bytes of one call
    double amount = 0, ms = 0;  ///< of all calls
  };
  std::map<std::pair<std::string, std::string>, std::vector<Measured>> ops_;  ///< by name and class
  Measured memory_bound_;                                                     ///< all ops without FLOPs
  double idle_ms_ = 0, calls_ = 0;
};

/// Returns the predicted compute time of the record's ops in ms, collectives excluded. Null if the rate of an
/// op is unknown, or if the record has no breakdown. Its measured times are not used.
std::optional<double> predicted_compute_ms(const Record& record, const OpRateTable& rates);

/// Returns the predicted step time on one GPU, in ms, at the rates of `others`, steps of other shapes.
std::optional<double> predicted_on_one_gpu(const Record& record, const std::vector<const Record*>& others);

struct ScaledStep {
  double ms = 0;
  double communication_ms = 0;  ///< sum of all collectives, each running alone
};
/// Predicts a step on several GPUs, whose ranks share parameters in groups of `shards` (at least 1), from the
/// same case on one GPU. Each rank of a group runs 1/shards of the optimizer; collectives overlap with
/// compute and slow it down by kHiddenCost of their own time. Bytes are the dry run's, bandwidths are
/// measured. Null if either is missing.
std::optional<ScaledStep> predicted_on_several_gpus(const Record& record, const Record& single,
                                                    double shards);

/// Slowdown of overlapped compute per second of communication, in seconds: the collectives' kernels occupy
/// SMs and memory bandwidth. Fitted to an earlier sweep of the cases in results/h200x4.
inline constexpr double kHiddenCost = 0.45;

}  // namespace precbench
