// Predictions of steps that were measured: each without the rates of its own model in its own recipe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "results/record/record_file.h"

namespace precbench {

/// A measured step and its prediction, with the 80% interval.
struct OwnPrediction {
  const Record* record = nullptr;
  std::int64_t gpus = 0;
  /// Experts are divided among ranks, and their load is uneven (is_uneven): the others wait for the busiest rank, which
  /// predictions do not know.
  bool uneven = false;
  double measured_ms = 0, predicted_ms = 0, low_ms = 0, high_ms = 0;

  /// Returns |ln(predicted / measured)|, for small errors the relative error.
  double error() const;
  bool inside() const { return low_ms <= measured_ms && measured_ms <= high_ms; }
};

/// Errors of the predictions for one GPU model and number of GPUs; those with OwnPrediction::uneven apart.
struct OwnErrors {
  std::string gpu;        ///< "all": of any model
  std::int64_t gpus = 0;  ///< 0: of any number
  bool uneven = false;
  std::size_t steps = 0, inside = 0;            ///< inside: their 80% interval holds the measurement
  double median = 0, within_95 = 0, worst = 0;  ///< of error()
};

/// Predicted steps in the order of the records, which must outlive them; the reasons why others are not, with their
/// number.
struct OwnPredictions {
  std::vector<OwnPrediction> steps;
  std::map<std::string, int> reasons;
};

/// Predicts the records with a speed of their own, on a GPU that has measured rates. Throws nothing for records that
/// cannot be predicted: they are counted in `reasons`.
OwnPredictions predict_records(const RecordSet& records);
/// Returns the errors by GPU model, number of GPUs and `uneven`, and last those of all steps that are not uneven.
std::vector<OwnErrors> errors_by_gpus(const std::vector<OwnPrediction>& steps);

}  // namespace precbench
