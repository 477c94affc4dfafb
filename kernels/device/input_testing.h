// Difficult matrices for quantizers: widely varying magnitudes, zeros, subnormals, ends of the range, Inf and
// NaN.
#pragma once

#include "kernels/device/compare_testing.h"

namespace precbench::testing {

enum class Input { random, imbalanced, hostile, infinite, nan };
inline constexpr Input kInputs[] = {Input::random, Input::imbalanced, Input::hostile, Input::infinite,
                                    Input::nan};

/// Difficult BF16 bit patterns: zeros, subnormals, the ends of the range, and values near 1e-38.
inline constexpr std::uint16_t kHostile[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x0080,
                                             0x8080, 0x006C, 0x0300, 0x0D80, 0x7F7F, 0xFF7F,
                                             0x3F80, 0xBF80, 0x43E0, 0x4760, 0x3E2B, 0xC2C8};

inline Tensor make_input(HostMemory& host, Input input, std::int64_t rows, std::int64_t cols) {
  const Tensor x = host.random(DType::bf16, rows, cols, 1.0f);
  const auto at = [&](std::int64_t r, std::int64_t c) -> std::uint16_t& {
    return x.as<std::uint16_t>()[r % rows * cols + c % cols];
  };
  switch (input) {
    case Input::random:
      break;
    case Input::imbalanced:  // magnitudes vary by 2^±30 over rows and columns, some ±0, one outlier
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < cols; ++c) {
          const int size = static_cast<int>(r * 7 % 31) - 15 + static_cast<int>(c * 5 % 31) - 15;
          const bool zero = r % 11 == 3 || c % 13 == 5;
          at(r, c) = zero ? 0 : bf16_encode(std::ldexp(bf16_decode(at(r, c)), size));
        }
      at(rows / 2, cols / 3) = bf16_encode(3e38f);
      break;
    case Input::hostile:  // whole rows of one tiny magnitude, then arbitrary bit patterns
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < cols; ++c)
          if (r % 4 == 0)
            at(r, c) = static_cast<std::uint16_t>(1 + (r + c) % 200);
          else if (r % 4 == 1)
            at(r, c) = kHostile[random_bits(1, r * cols + c) % std::size(kHostile)];
          else if (r % 4 == 2)
            at(r, c) = 0;
      break;
    case Input::infinite:
      at(rows / 3, cols / 2) = 0x7F80;
      at(rows - 1, cols - 1) = 0xFF80;
      break;
    case Input::nan:
      at(rows / 3, cols / 2) = 0x7FC1;
      at(rows - 1, 0) = 0xFF81;
      at(0, cols - 1) = 0x7F80;
      break;
  }
  return x;
}

}  // namespace precbench::testing
