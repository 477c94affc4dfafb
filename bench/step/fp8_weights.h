// FP8 weights as published checkpoints have them: a matrix in F8_E4M3 (or F8_E5M2) and its scales in a tensor beside
// it. The value is the product of both, whatever the scales are called: DeepSeek and Transformers write
// `weight_scale_inv`, the inverse of the factor with which the weight was quantized; compressed-tensors, ModelOpt and
// FBGEMM write the same number as `weight_scale`. Scales are one for the tensor ([], [1] or [1, 1]), one for each row
// ([N] or [N, 1]), or one for each block of 128x128 ([ceil(N / 128), ceil(K / 128)], partial blocks at the edges).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "models/checkpoint/safetensors.h"

namespace precbench {

/// A matrix [rows, cols] in FP8 and its scales.
struct Fp8Weight {
  const StoredTensor* codes = nullptr;
  const StoredTensor* scales = nullptr;
  std::int64_t cols = 0;
  std::int64_t rows_of_scale = 0, cols_of_scale = 0;  ///< elements that share a scale
};

/// Returns a weight that is stored in FP8 with its scales, or nothing for other dtypes. Throws InvalidInput that
/// names `path` and the tensor if it has no scales, if they have another shape or dtype, or if there are two tensors
/// of them.
std::optional<Fp8Weight> find_fp8_weight(const SafetensorsFile& file, const std::string& path,
                                         const StoredTensor& stored);

/// Writes elements [first, first + size) of the matrix, row-major: values times scales, a product in FP32 that is
/// rounded once.
void read_fp8(const Fp8Weight& weight, std::int64_t first, std::int64_t size, float* values);

/// Returns true for tensors of checkpoints in FP8 that do not change weights: scales of activations and of a cache of
/// keys and values.
bool is_activation_scale(const std::string& name);

}  // namespace precbench
