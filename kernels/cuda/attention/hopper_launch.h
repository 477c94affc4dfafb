// Shared by the launches of the Hopper attention kernels: tensor maps of heads, and the problem's constants.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention/softcap.cuh"
#include "kernels/cuda/check.h"
#include "kernels/cuda/hopper/tensor_map.h"
#include "kernels/device/device.h"

namespace precbench::hopper {

/// Returns the map of `width` columns of BF16 rows that are `pitch` apart, `rows` per sequence: boxes of 64
/// columns.
inline CUtensorMap head_map(const void* data, std::int64_t sequences, std::int64_t rows, std::int64_t width,
                            std::int64_t pitch, int box_rows) {
  return matrices_map(BoxedMatrices{.matrix = {.data = data,
                                               .type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                               .element_bytes = 2,
                                               .rows = rows,
                                               .columns = width,
                                               .pitch = pitch,
                                               .box_rows = box_rows,
                                               .box_columns = 64,
                                               .swizzled = true},
                                    .count = sequences});
}

/// Location of keys and values, or their gradients: after the query heads in the fused rows, or in a separate
/// tensor.
struct KeyRows {
  void *k, *v;
  std::int64_t width, pitch;  ///< of k, and of v; from row to row
};

inline KeyRows key_rows(const Tensor& fused, const Tensor& own, const AttentionShape& s) {
  const std::int64_t width = s.kv_heads * s.head_dim, first = own.empty() ? s.q_width() : 0;
  const Tensor& rows = own.empty() ? fused : own;
  auto* k = rows.as<std::uint16_t>() + first;
  return {k, k + width, width, rows.cols};
}

/// Returns the factor on the scores, and the same for powers of two.
inline float score_scale(const AttentionShape& s) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(s.head_dim)));
}
inline float score_scale_log2(const AttentionShape& s) {
  return static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(s.head_dim)));
}

/// Return the factor on the hyperbolic tangents of soft-capped scores for powers of two, and what cuda::tanh_of takes.
inline float softcap_log2(const AttentionShape& s) {
  return static_cast<float>(1.4426950408889634 * static_cast<double>(s.softcap));
}
inline float softcap_exponent(const AttentionShape& s) {
  return cuda::tanh_exponent(1 / std::sqrt(static_cast<double>(s.head_dim)), s.softcap);
}

/// Returns the keys that a query sees at most: more than any sequence has without a window.
inline int window_of(const AttentionShape& s) {
  constexpr std::int64_t kNone = 1 << 30;
  return static_cast<int>(s.window > 0 ? std::min(s.window, kNone) : kNone);
}

inline int multiprocessors() {
  int device = 0, count = 0;
  PRECBENCH_CHECK(cudaGetDevice(&device));
  PRECBENCH_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

}  // namespace precbench::hopper
