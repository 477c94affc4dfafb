// The speed of light at measured rates, so that rows can be compared.
//
// A record's mfu_measured sets its step against the GEMM and copy rates that its own run measured. These vary
// between the cases of a sweep by 5 to 20%, with the GPU's clock and heat, so that of two records' one says nothing
// about the other's. Here every record is set against the best rates that any of them measured.
#pragma once

#include <optional>

#include "results/record.h"

namespace precbench {

struct BestRates {
  double bf16_flops = 0, fp8_flops = 0, fp4_flops = 0, bytes = 0;  ///< per second; 0 where not measured

  /// Takes over what a record measured higher.
  void raise_to(const Record& record);
};

/// The time that the profiled step's ops take at least at these rates, over the median step. Null where the record
/// does not hold enough: which GEMMs ran at the FP8 or FP4 rate is not in it, and is found as that which gives the record's
/// own mfu_measured from its own rates; an op with blocks of both (keep_bf16) fits neither, nor does a
/// recipe with GEMMs in FP8 and in FP4.
std::optional<double> sol_at(const BestRates& rates, const Record& record);

}  // namespace precbench
