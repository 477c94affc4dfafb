// Which shapes of a model the CUDA kernels take, for the ops that refuse the others and for plans made where no
// GPU is. What attention takes depends on the machine's cuDNN (attention.cpp).
#pragma once

#include <bit>
#include <cstdint>
#include <string>

namespace precbench::cuda {

inline constexpr std::int64_t kWidestRow = 16384;  ///< elements that a block holds in registers (row.cuh)

/// Why rows of `width` elements cannot be normalized, looked up or added; empty if they can.
inline std::string why_no_width(std::int64_t width) {
  if (width % 8 == 0 && width <= kWidestRow) return "";
  return "the CUDA device needs a width that is a multiple of 8 and at most " + std::to_string(kWidestRow) +
         ", not " + std::to_string(width);
}

/// Why heads of this size cannot be turned (RoPE), with their norms where there are any; empty if they can.
inline std::string why_no_head_dim(std::int64_t head_dim, bool qk_norm) {
  if (head_dim % 16 != 0)
    return "the CUDA device needs head_dim to be a multiple of 16, not " + std::to_string(head_dim);
  if (qk_norm && (!std::has_single_bit(static_cast<std::uint64_t>(head_dim)) || head_dim > 512))
    return "QK-norm on the CUDA device needs head_dim to be a power of two up to 512, not " +
           std::to_string(head_dim);
  return "";
}

}  // namespace precbench::cuda
