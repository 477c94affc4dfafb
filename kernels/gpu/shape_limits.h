// Model shapes that the CUDA kernels support, for the ops that reject others and for plans made without a
// GPU. Attention's limits depend on the machine's cuDNN (attention.cpp).
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string>

namespace precbench::cuda {

inline constexpr std::int64_t kWidestRow = 16384;  ///< elements that a block holds in registers (row.cuh)
inline constexpr int kMostThreads = 1024;          ///< of a block

/// Returns why rows of `width` elements are unsupported in norms, embedding and addition; null if they are
/// supported.
inline std::optional<std::string> width_unsupported_reason(std::int64_t width) {
  if (width % 8 == 0 && width <= kWidestRow) return std::nullopt;
  return "the CUDA device needs a width that is a multiple of 8 and at most " + std::to_string(kWidestRow) +
         ", not " + std::to_string(width);
}

inline constexpr int kPairOfVectors = 16;  ///< elements of a head that a thread rotates (rope.cu)

/// Returns the threads of a block that rotates a row of queries or keys, in whole warps.
constexpr std::int64_t rope_threads(std::int64_t width) { return (width / kPairOfVectors + 31) / 32 * 32; }

/// Returns why RoPE does not support heads of this size, with their norms if any; null if it does.
/// `q_normed`, `k_normed`: elements that QK-norm normalizes together, of a head or of all heads; 0: no norm.
inline std::optional<std::string> heads_unsupported_reason(std::int64_t head_dim, std::int64_t q_normed,
                                                           std::int64_t k_normed) {
  if (head_dim % 16 != 0)
    return "the CUDA device needs head_dim to be a multiple of 16, not " + std::to_string(head_dim);
  if (q_normed > head_dim) {
    if (rope_threads(q_normed) + rope_threads(k_normed) > kMostThreads)
      return "QK-norm over all heads on the CUDA device takes queries and keys of, together, at most " +
             std::to_string(kMostThreads * kPairOfVectors) + ", not " + std::to_string(q_normed) + " and " +
             std::to_string(k_normed);
    return std::nullopt;
  }
  if (q_normed > 0 && (!std::has_single_bit(static_cast<std::uint64_t>(head_dim)) || head_dim > 512))
    return "QK-norm on the CUDA device needs head_dim to be a power of two up to 512, not " +
           std::to_string(head_dim);
  return std::nullopt;
}

/// Returns true if precbench's Hopper attention kernels have this head width.
inline bool hopper_attention_takes(std::int64_t head_dim) {
  return head_dim == 64 || head_dim == 128 || head_dim == 256;
}

}  // namespace precbench::cuda
