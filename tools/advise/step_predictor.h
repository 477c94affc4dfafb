// Predicts training steps on one GPU model from records of other models, sequence lengths and GPU counts.
//
// The compute time is the dry run's ops at the rates that the same ops reach in one-GPU records of the same GPU
// and recipe (OpRateTable). On several GPUs the collectives' bytes at the bus bandwidth of records on the nearest
// number of GPUs are added, weighted by kHiddenCost. A GPU without records takes those of another GPU of the same
// compute capability; ops with FLOPs scale by the data sheets' BF16 peaks, others by their memory bandwidths.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tools/advise/advise_host.h"
#include "tools/analysis/step_prediction.h"

namespace precbench {

class StepPredictor {
 public:
  /// `records` must outlive this; those that are not native, successful and timed are not used.
  StepPredictor(const std::vector<const Record*>& records, const GpuModel& target);

  /// Returns the predicted step in ms of a case given by the counts of its ops and collectives, from records of
  /// any model. Null if there is nothing to predict it from.
  std::optional<double> step_ms(const Record& counts) const { return step_ms(counts, "", scale_); }
  /// Returns the mean power of a GPU in W over records of the case's recipe; null if unknown.
  std::optional<double> power_w(const Record& counts) const;

  /// The GPU whose records are used; empty if there are none.
  const std::string& source_gpu() const { return source_gpu_; }
  bool is_other_gpu() const { return !source_gpu_.empty() && source_gpu_ != target_.name; }
  /// Largest number of GPUs of a record; 0 without records.
  double most_gpus() const { return most_gpus_; }

  /// Errors of this method on the records themselves, each predicted from the records of other models.
  struct Accuracy {
    std::size_t count = 0;
    double median = 0, worst = 0;  ///< |predicted / measured - 1|
    double quantile_95 = 0;
  };
  /// `several`: of steps on several GPUs, else on one. Null if no record can be predicted.
  std::optional<Accuracy> step_accuracy(bool several) const;
  /// The same for the speed-up over the BF16 record that differs only in the recipe.
  std::optional<Accuracy> speedup_accuracy(bool several) const;

 private:
  /// Recipe, state formats (empty: any) and excluded model (empty: none).
  using Key = std::tuple<std::string, std::string, std::string>;
  const OpRateTable& rates(const Key& key) const;
  /// Factors of the times of ops: with FLOPs, and without.
  struct Scale {
    double flops = 1, bytes = 1;
  };
  std::optional<double> compute_ms(const Record& counts, const std::string& without_model, Scale scale) const;
  std::optional<double> bus_gb_per_s(const CollectiveRecord& collective, double gpus,
                                     const std::string& without_model) const;
  std::optional<double> communication_ms(const Record& counts, const std::string& without_model) const;
  std::optional<double> step_ms(const Record& counts, const std::string& without_model, Scale scale) const;
  /// Returns the step of a record as predicted from other models on its own GPU.
  std::optional<double> from_other_models(const Record& record) const;

  GpuModel target_;
  std::string source_gpu_;
  Scale scale_;  ///< from the source GPU to the target
  double most_gpus_ = 0;
  std::vector<const Record*> singles_, several_;
  mutable std::map<Key, OpRateTable> rates_;
};

/// Returns the case's number of GPUs; 1 if it has no such field.
double gpus_of(const Record& record);

}  // namespace precbench
