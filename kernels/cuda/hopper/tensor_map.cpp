// Creates tensor maps through the driver. See tensor_map.h.
#include "kernels/cuda/hopper/tensor_map.h"

#include <fmt/format.h>

#include <stdexcept>

#include "kernels/cuda/hopper/driver_function.h"

namespace precbench::hopper {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encoder() {
  static const Encode found = driver_function<Encode>("cuTensorMapEncodeTiled", 12000);
  return found;
}

/// Encodes a map of 2 or 3 `dimensions`; the third counts matrices.
CUtensorMap encode(const BoxedMatrix& matrix, int dimensions, std::int64_t count) {
  // The driver's dimensions start with the contiguous one.
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(matrix.columns), static_cast<cuuint64_t>(matrix.rows),
                               static_cast<cuuint64_t>(count)};
  const auto pitch = static_cast<cuuint64_t>(matrix.pitch * matrix.element_bytes);
  const cuuint64_t pitches[2] = {pitch, pitch * sizes[1]};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(matrix.box_columns),
                             static_cast<cuuint32_t>(matrix.box_rows), 1};
  const cuuint32_t strides[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encoder()(&map, matrix.type, static_cast<cuuint32_t>(dimensions), const_cast<void*>(matrix.data), sizes,
                pitches, box, strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                matrix.swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw std::logic_error(
        fmt::format("the driver makes no tensor map of {} matrices of {} x {} (CUDA error {})", count,
                    matrix.rows, matrix.columns, static_cast<int>(result)));
  return map;
}

}  // namespace

bool has_tensor_maps() { return encoder() != nullptr; }

CUtensorMap tensor_map(const BoxedMatrix& matrix) { return encode(matrix, 2, 1); }

CUtensorMap matrices_map(const BoxedMatrices& matrices) { return encode(matrices.matrix, 3, matrices.count); }

}  // namespace precbench::hopper
