// Utilization of the FP8 peak by recipes with FP8 GEMMs.
#pragma once

#include <optional>

#include "results/record/record.h"
#include "tools/analysis/analysis.h"

namespace precbench {

/// Returns the dense FP8 peak in TFLOP/s if the record has one and its recipe has a GEMM of two FP8 operands; null for
/// others, and for records without a definition.
std::optional<double> fp8_peak(const Record& record);

/// Returns all model FLOPs per second over the FP8 peak, as a fraction: lm_head and attention count, though they run in
/// BF16. Median over the row's seeds; null if fp8_peak() or the utilization of the BF16 peak is.
std::optional<double> mfu_fp8(const Row& row);

}  // namespace precbench
