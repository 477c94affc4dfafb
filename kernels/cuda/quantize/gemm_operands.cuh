// Kernel arguments of a quantized copy, and the scale of one of its scopes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/quantize/from_value.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/device/device.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench::cuda {

/// `rows` vectors of length `k`, contiguous along k. For a columnwise copy these are the matrix's columns.
struct CopyArgs {
  std::uint8_t* data = nullptr;  ///< null: the copy is not requested
  void* scale = nullptr;
  const float* amax = nullptr;  ///< row: [rows]; the tensor's is in TileOutput, blocks compute their own
  std::int64_t rows = 0, k = 0;
  DType dtype = DType::e4m3;
  Granularity granularity = Granularity::none;
  ScaleType scale_type = ScaleType::none;
  ScaleRounding rounding = ScaleRounding::none;
  std::uint8_t dropped_bits = 0;
  bool delayed = false;
  std::uint8_t margin = 0;  ///< of delayed scaling
  // For a columnwise copy of expert rows: a scale of `row` belongs to one group, at group * rows + row.
  const std::int32_t* group_offsets =
      nullptr;  ///< group starts along k, and the end of the last; null: no groups
  int groups = 0;

  __host__ __device__ QuantFormat format() const {
    return {dtype, granularity, scale_type, rounding, dropped_bits};
  }
  __host__ __device__ bool in_blocks_of_32() const {
    return granularity == Granularity::block_1x32 || granularity == Granularity::block_32x32;
  }
  /// Returns true if scopes lie inside a tile of 128 x 128.
  __host__ __device__ bool in_blocks() const {
    return granularity != Granularity::tensor && granularity != Granularity::row;
  }
};

/// Returns true if a producer must write this copy: requested, and not an alias of the BF16 value. Some are
/// made after the value (from_value.h).
inline bool wanted(const GemmOperand& operand) { return !operand.empty() && operand.format.quantized(); }

/// Returns true if the engines make it with one scale per row.
inline bool scaled_by_row(const GemmOperand& operand) {
  return wanted(operand) && !made_from_value(operand) && operand.format.granularity == Granularity::row;
}

/// Returns the arguments of a quantized copy. Throws Unsupported for FP4.
CopyArgs copy_args(const GemmOperand& operand);

/// Returns the arguments of a requested copy, or of none. Also clears the scale buffer if it has padding,
/// which kernels do not write. Throws Unsupported for a format that is not supported here.
CopyArgs requested_copy(const GemmOperand& operand, cudaStream_t stream);

/// Returns the group that contains position k of the contraction; copy.groups after the last one.
__device__ inline int group_at(const CopyArgs& copy, std::int64_t k) {
  int first = 0, last = copy.groups;
  if (k >= copy.group_offsets[last]) return last;
  while (last - first > 1) {
    const int middle = (first + last) / 2;
    (copy.group_offsets[middle] <= k ? first : last) = middle;
  }
  return first;
}

/// Stores the scale of a scope for the GEMM and returns the factor on its elements. amax_bits: of the amax as
/// FP32.
__device__ inline float make_scale(const CopyArgs& copy, std::uint32_t amax_bits, std::int64_t index,
                                   bool store) {
  const float amax = __uint_as_float(amax_bits);
  if (copy.scale_type == ScaleType::ue8m0) {
    const std::uint8_t byte = ue8m0_from_amax(amax, copy.dtype, copy.rounding, copy.dropped_bits);
    if (store) static_cast<std::uint8_t*>(copy.scale)[index] = byte;
    return ue8m0_multiplier(byte);
  }
  const float multiply =
      copy.delayed
          ? delayed_scale(amax, format_max(copy.dtype, copy.dropped_bits), copy.margin, copy.scale_type)
          : multiplying_scale(amax, copy.dtype, copy.scale_type, copy.dropped_bits);
  if (store) static_cast<float*>(copy.scale)[index] = 1.0f / multiply;
  return multiply;
}

/// Returns the factor that a GEMM applies to the element (row, k) of a copy.
__device__ inline float dequantizing(const QuantFormat& format, const void* scales, std::int64_t rows,
                                     std::int64_t length, std::int64_t row, std::int64_t k) {
  const std::int64_t block = block_length(format.granularity);
  // Blocks are powers of two, and a 64-bit division takes as long as reading the element.
  const std::int64_t index =
      scale_index(format.granularity, rows, length, row, block ? k >> (__ffsll(block) - 1) : 0);
  const auto byte = [&] { return static_cast<const std::uint8_t*>(scales)[index]; };
  if (format.scale == ScaleType::ue8m0) return ue8m0_decode(byte());
  if (format.scale == ScaleType::e4m3) return e4m3_decode(byte());
  return static_cast<const float*>(scales)[index];
}

}  // namespace precbench::cuda
