// Tensor maps: the copy engine's (tma.cuh) description of a matrix in global memory.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace precbench::hopper {

/// A row-major matrix in device memory and the boxes copied from it. The address and the pitch are multiples
/// of 16 bytes. In shared memory a box is stored row after row as in global memory, or with its 128-byte rows
/// swizzled.
struct BoxedMatrix {
  const void* data;
  CUtensorMapDataType type;
  int element_bytes;
  std::int64_t rows, columns, pitch;  ///< pitch: elements from one row to the next
  int box_rows, box_columns;          ///< at most 256 each
  bool swizzled;
};

/// Matrices of equal size, contiguous in memory: `matrix` is the first of `count`. A box is clipped to its
/// own matrix.
struct BoxedMatrices {
  BoxedMatrix matrix;
  std::int64_t count;
};

/// Returns true if the driver supports tensor maps (CUDA 12 and later). Checked once.
bool has_tensor_maps();

/// Throws std::logic_error if the driver rejects the matrix. Only after has_tensor_maps() has returned true.
CUtensorMap tensor_map(const BoxedMatrix& matrix);
CUtensorMap matrices_map(const BoxedMatrices& matrices);

}  // namespace precbench::hopper
