// Orders rows gathered from the ranks that share sequences, and back (ops::PlaceRows). A block copies one row
// in vectors of 16 bytes: each byte is read and written once.
#include <algorithm>

#include "kernels/base/errors.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/numerics/sequence_part.h"

namespace precbench {
namespace {

constexpr int kMostThreadsOfRow = 256;

/// by_rank: the order of the ranks; by_position: [B][T].
__global__ void place_rows_kernel(uint4* dst, const uint4* src, int vectors, std::int64_t T, int parts,
                                  std::int64_t B, bool to_ranks) {
  wait_for_work_before();
  const std::int64_t by_rank = blockIdx.x, rows = B * T / parts;
  const SequencePart part{T, parts, static_cast<int>(by_rank / rows)};
  const std::int64_t by_position = part.rows(B).of(by_rank % rows);
  const uint4* from = src + (to_ranks ? by_position : by_rank) * vectors;
  uint4* to = dst + (to_ranks ? by_rank : by_position) * vectors;
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += static_cast<int>(blockDim.x)) to[i] = from[i];
}

}  // namespace

void CudaDevice::do_place_rows(const ops::PlaceRows& op) {
  const std::int64_t row_bytes = bytes_of(op.src.dtype, op.src.cols);
  constexpr std::int64_t kVector = sizeof(uint4);
  if (row_bytes % kVector != 0) throw Unsupported("place_rows: rows must be multiples of 16 bytes");
  if (op.src.rows == 0) return;
  const auto vectors = static_cast<int>(row_bytes / kVector);
  place_rows_kernel<<<static_cast<unsigned>(op.src.rows), std::min(vectors, kMostThreadsOfRow), 0,
                      stream()>>>(op.dst.as<uint4>(), op.src.as<uint4>(), vectors, op.T, op.parts,
                                  op.sequences(), op.to_ranks);
  launched("place_rows");
}

}  // namespace precbench
