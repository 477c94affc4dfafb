// Largest magnitude of an array, on the host.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/numerics/formats.h"

namespace precbench {

/// Returns max |x| over n values as bits without sign. Their integer order is that of magnitudes, with Inf
/// above all numbers and NaN above Inf. 0 if n is 0.
inline std::int32_t amax_bits(const float* x, std::int64_t n) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, abs_bits(x[i]));
  return largest;
}

}  // namespace precbench
