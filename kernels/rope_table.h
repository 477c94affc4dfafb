// The angles of rotary position embedding, made once on the host and the same for every device.
// Source: Su et al., RoFormer (2021), section 3.2.2.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace precbench {

/// [T, D / 2] pairs (cos, sin) of the angle t * theta^(-2 i / D), computed in FP64 and rounded once.
inline std::vector<float> make_rope_table(std::int64_t T, std::int64_t D, float theta) {
  std::vector<float> table(T * D);
  for (std::int64_t i = 0; i < D / 2; ++i) {
    const double frequency = std::pow(static_cast<double>(theta), -2.0 * i / D);
    for (std::int64_t t = 0; t < T; ++t) {
      table[t * D + 2 * i] = static_cast<float>(std::cos(t * frequency));
      table[t * D + 2 * i + 1] = static_cast<float>(std::sin(t * frequency));
    }
  }
  return table;
}

}  // namespace precbench
