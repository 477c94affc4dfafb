// Quantization statistics by tensor role, from one extra forward and backward pass after the run.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "models/transformer/transformer.h"
#include "results/record/record.h"

namespace precbench {

/// Returns `count` as a percentage of `all`, at most 100; null if `all` is 0. Devices count in FP32 and in
/// varying order, so that rounding may make a part larger than the whole.
std::optional<double> percent_of_counts(double count, double all);

class QuantizationStatistics final : public QuantizationObserver {
 public:
  QuantizationStatistics(Device& device, Arena& arena, const Plan& plan)
      : device_(device), arena_(arena), plan_(plan) {}

  void observe(std::int64_t layer, LinearRole role, LinearOperand operand,
               const QuantizedTensor& values) override;
  void observe_codes(LinearRole role, LinearOperand operand, const QuantizedTensor& values,
                     const Groups& groups) override;

  /// Returns one entry per role and direction, over all blocks: "qkv.x rows", "o.dy columns", ...
  std::vector<QuantizationStats> result() const;
  /// Returns one entry per role whose FP8 data wgrad transposes, over all blocks.
  std::vector<Conversion> conversions() const;

 private:
  struct Sums {
    std::string format;
    double signal = 0, noise = 0, nonzero = 0, underflow = 0, saturated = 0;

    std::optional<double> relative_error() const;     ///< |v - q| / |v|
    std::optional<double> underflow_percent() const;  ///< of the nonzero values
    std::optional<double> saturation_percent() const;
  };
  void add(Sums& sums, const QuantizedTensor& operand, const GemmOperand& copy, bool columns);

  Device& device_;
  Arena& arena_;
  const Plan& plan_;
  std::map<std::string, Sums> sums_;
  struct ConversionSums {
    Sums of_codes, total, direct;
  };
  std::map<std::string, ConversionSums> conversions_;
};

}  // namespace precbench
