// What this very GPU gives today: the rate of a large GEMM in BF16 and in a recipe's format, and copy
// bandwidth. The denominators of mfu_measured.
#pragma once

#include "bench/measure/predict.h"
#include "kernels/device/device.h"
#include "kernels/numerics/recipe.h"

namespace precbench {

/// Runs 8192^3 products and 1 GiB copies of random data, about a quarter of a second in all. fp8_flops and
/// fp4_flops are 0 for a recipe without a GEMM of that width. The device must have 2 GiB free.
OpRates measure_rates(Device& device, const Recipe& recipe);

}  // namespace precbench
