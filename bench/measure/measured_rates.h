// Rates measured on this GPU in this run: the highest rate of a large GEMM in BF16 and in a recipe's format,
// and the highest copy bandwidth. They are the denominators of mfu_measured.
#pragma once

#include <functional>

#include "bench/predict/predict.h"
#include "kernels/device/device.h"
#include "kernels/numerics/recipe.h"

namespace precbench {

/// Calls `sample`, which returns the seconds of one call, at least 10 times and returns the shortest. Stops
/// when the shortest has not improved by 0.1% for 50 calls and the samples add up to half a second, in which
/// the clock of a GPU at its power limit has gone up and down. Stops at the latest after 2 seconds of samples
/// or 10,000 calls.
double shortest_sample(const std::function<double()>& sample);

/// Measures 8192^3 GEMMs and 1 GiB copies of random data with shortest_sample(). fp8_flops and fp4_flops are
/// 0 for a recipe without a GEMM of that width. The device must have 2 GiB free.
OpRates measure_rates(Device& device, const Recipe& recipe);

}  // namespace precbench
