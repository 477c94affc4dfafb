// Tensor maps: what the copy engine (tma.cuh) must know of a matrix in global memory.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace precbench::hopper {

/// A row-major matrix in device memory and the boxes of it that are copied. The address and the pitch are multiples of
/// 16 bytes. In shared memory a box is as it is here, row after row, or with its rows, of 128 bytes, swizzled.
struct BoxedMatrix {
  const void* data;
  CUtensorMapDataType type;
  int element_bytes;
  std::int64_t rows, columns, pitch;  ///< pitch: elements from a row to the next
  int box_rows, box_columns;          ///< at most 256 each
  bool swizzled;
};

/// Equal matrices, one behind the other in memory without a gap: `matrix` is the first of `count`. A box ends with the
/// rows of its own matrix.
struct BoxedMatrices {
  BoxedMatrix matrix;
  std::int64_t count;
};

/// The driver can make tensor maps, as those of CUDA 12 and later do. Looks once.
bool has_tensor_maps();

/// Throws std::logic_error where the driver refuses the matrix. Only after has_tensor_maps().
CUtensorMap tensor_map(const BoxedMatrix& matrix);
CUtensorMap matrices_map(const BoxedMatrices& matrices);

}  // namespace precbench::hopper
