// Random numbers for weight initialization: a nearly normal variate from integer arithmetic alone, so that
// every device, and every split of a tensor over ranks, draws the same bits. Built on formats.h's counter
// hash.
#pragma once

#include <cstdint>

#include "kernels/numerics/formats.h"

namespace precbench {

/// Returns the value at position `index` of stream `seed`: zero mean, unit variance, |z| < 4.9. The sum of
/// eight uniform 16-bit integers (Irwin-Hall; kurtosis 2.85, a normal's is 3) is exact, as is its conversion
/// to float; one float multiplication by 1 / sqrt(8 (2^32 - 1) / 12) rounds it.
PRECBENCH_HD constexpr float irwin_hall_normal(std::uint64_t seed, std::uint64_t index) {
  constexpr std::int32_t kMean = 8 * 65535 / 2;
  constexpr float kInverseDeviation = 1.8688123650e-05f;
  std::uint32_t sum = 0;
  for (std::uint64_t word = 0; word < 4; ++word) {
    const std::uint32_t bits = random_bits(seed, index * 4 + word);
    sum += (bits & 0xFFFFu) + (bits >> 16);
  }
  return static_cast<float>(static_cast<std::int32_t>(sum) - kMean) * kInverseDeviation;
}

}  // namespace precbench
