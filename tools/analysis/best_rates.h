// Speed of light at measured rates, comparable between rows.
//
// A record's mfu_measured relates its step to the GEMM and copy rates measured in its own run. These rates
// vary by 5 to 20% between the cases of a sweep, with GPU clock and temperature, so mfu_measured of two
// records cannot be compared. Here every record is related to the best rates that any of the records
// measured.
#pragma once

#include <optional>

#include "results/record/record.h"

namespace precbench {

struct BestRates {
  double bf16_flops = 0, fp8_flops = 0, fp4_flops = 0, bytes = 0;  ///< per second; 0 where not measured

  /// Raises each rate to the record's measured rate if that is higher.
  void raise_to(const Record& record);
};

/// Returns the lower bound of the profiled step's op time at these rates, over the median step time. A record
/// does not say which GEMMs ran at the FP8 or FP4 rate; they are inferred as the set that reproduces the
/// record's own mfu_measured from its own rates. Null if the record lacks data or no set fits: ops that mix
/// BF16 and FP8 blocks (keep_bf16), or recipes with both FP8 and FP4 GEMMs.
std::optional<double> sol_at(const BestRates& rates, const Record& record);

}  // namespace precbench
