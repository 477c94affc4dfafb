// Token embedding: a row copy per token, and backward, which adds each token's gradient rows to its table
// row. Tokens without a row in the table embed to 0 and have no gradient.
//
// Backward is deterministic: token positions are sorted by token with a stable radix sort, so that the
// positions of one token are consecutive and in order, and one thread per 8 columns adds a token's rows in
// that order in FP32. Tokens without a row are sorted as one further token, behind all others. Bytes per
// element: forward 2 read and 2 written; backward 2 read, and one read and write of every touched row.
#include <cub/device/device_radix_sort.cuh>

#include "kernels/base/errors.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/gpu/shape_limits.h"

namespace precbench {
namespace cuda {
namespace {

constexpr int kEmbeddingThreads = 256;

void check_width(const Tensor& x) {
  if (const auto why = width_unsupported_reason(x.cols)) throw Unsupported(*why);
}

/// One thread copies one vector; vectors: per row.
__global__ void __launch_bounds__(kEmbeddingThreads)
    gather_rows_kernel(uint4* x, const std::int32_t* tokens, const uint4* table, std::int64_t count,
                       int vectors, std::int64_t first, std::int64_t table_rows) {
  wait_for_work_before();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kEmbeddingThreads + threadIdx.x;
  if (i >= count) return;
  const std::int64_t row = i / vectors, v = i % vectors;
  const std::int64_t place = tokens[row] - first;
  x[i] = place >= 0 && place < table_rows ? table[place * vectors + v] : uint4{};
}

/// places[i] = row of token i in the table, or table_rows without one.
__global__ void __launch_bounds__(kEmbeddingThreads)
    number_kernel(std::int32_t* positions, std::int32_t* places, const std::int32_t* tokens, std::int32_t count,
                  std::int64_t first, std::int64_t table_rows) {
  wait_for_work_before();
  const std::int32_t i = blockIdx.x * kEmbeddingThreads + threadIdx.x;
  if (i >= count) return;
  positions[i] = i;
  const std::int64_t place = tokens[i] - first;
  places[i] = static_cast<std::int32_t>(place >= 0 && place < table_rows ? place : table_rows);
}

/// Block (i, y): if sorted position i is the first of its token, adds that token's rows, in columns from 8
/// kEmbeddingThreads y on.
template <class T>
__global__ void __launch_bounds__(kEmbeddingThreads)
    add_rows_kernel(T* dtable, const std::uint16_t* dx, const std::int32_t* tokens,
                    const std::int32_t* positions, std::int32_t count, std::int64_t cols,
                    std::int64_t table_rows) {
  wait_for_work_before();
  constexpr int kBatch = 4;
  const std::int32_t first = blockIdx.x;
  const std::int32_t token = tokens[first];
  if (token == table_rows || (first > 0 && tokens[first - 1] == token)) return;
  const std::int64_t col = (static_cast<std::int64_t>(blockIdx.y) * kEmbeddingThreads + threadIdx.x) * 8;
  if (col >= cols) return;
  T* target = dtable + token * cols + col;
  float sum[8];
  load_vector(sum, target);
  for (std::int32_t i = first; i < count && tokens[i] == token; i += kBatch) {
    Bf16x8 rows[kBatch];
    bool same[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      same[k] = i + k < count && tokens[i + k] == token;
      if (same[k]) rows[k] = load_vector(dx + positions[i + k] * cols + col);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (!same[k]) continue;
      float row[8];
      unpack(row, rows[k]);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] += row[j];
    }
  }
  store_vector(target, sum);
}

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace
}  // namespace cuda

void CudaDevice::do_embedding(const ops::Embedding& op) {
  using namespace cuda;
  check_width(op.x);
  const std::int64_t count = op.x.size() / 8;
  const unsigned blocks = static_cast<unsigned>((count + kEmbeddingThreads - 1) / kEmbeddingThreads);
  gather_rows_kernel<<<blocks, kEmbeddingThreads, 0, stream()>>>(
      op.x.as<uint4>(), op.tokens.as<std::int32_t>(), op.table.as<uint4>(), count, static_cast<int>(op.x.cols / 8),
      op.first, op.table.rows);
  launched("embedding");
}

void CudaDevice::do_embedding_backward(const ops::EmbeddingBackward& op) {
  using namespace cuda;
  check_width(op.dx);
  const std::int32_t count = static_cast<std::int32_t>(op.dx.rows);
  int bits = 1;
  while ((std::int64_t{1} << bits) <= op.dtable.rows) ++bits;
  const auto sort = [&](void* temporary, std::size_t& bytes, const std::int32_t* places, std::int32_t* sorted,
                        std::int32_t* numbers, std::int32_t* positions) {
    PRECBENCH_CHECK(cub::DeviceRadixSort::SortPairs(temporary, bytes, places, sorted,
                                                    numbers, positions, count, 0, bits, stream()));
  };
  std::size_t sort_bytes = 0;
  sort(nullptr, sort_bytes, nullptr, nullptr, nullptr, nullptr);
  const std::size_t list_bytes = aligned(count * sizeof(std::int32_t));
  auto* block = static_cast<std::byte*>(scratch(4 * list_bytes + sort_bytes));
  auto* sorted = reinterpret_cast<std::int32_t*>(block);
  auto* numbers = reinterpret_cast<std::int32_t*>(block + list_bytes);
  auto* positions = reinterpret_cast<std::int32_t*>(block + 2 * list_bytes);
  auto* places = reinterpret_cast<std::int32_t*>(block + 3 * list_bytes);
  number_kernel<<<(count + kEmbeddingThreads - 1) / kEmbeddingThreads, kEmbeddingThreads, 0, stream()>>>(
      numbers, places, op.tokens.as<std::int32_t>(), count, op.first, op.dtable.rows);
  sort(block + 4 * list_bytes, sort_bytes, places, sorted, numbers, positions);
  const dim3 grid(count, static_cast<unsigned>((op.dx.cols / 8 + kEmbeddingThreads - 1) / kEmbeddingThreads));
  with_type(op.dtable.dtype, [&](auto type) {
    using T = decltype(type);
    add_rows_kernel<<<grid, kEmbeddingThreads, 0, stream()>>>(op.dtable.as<T>(), op.dx.as<std::uint16_t>(), sorted,
                                                     positions, count, op.dx.cols, op.dtable.rows);
  });
  launched("embedding_backward");
}

}  // namespace precbench
