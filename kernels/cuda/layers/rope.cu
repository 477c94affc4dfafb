// Rotary position embedding, with or without QK-norm, forward and backward, over rows [q heads | k heads | v
// heads].
//
// In the rotation kernels a thread has the two vectors of 8 elements that rotate together, i..i+7 and i +
// D/2.. of one head, so they work in place. D / 16 consecutive lanes have a head and reduce QK-norm's sums by
// shuffles. A norm over all heads has its own kernels (rope_over_heads.cuh). Backward without QK-norm is also
// a Source of tile.cuh, so that copies are cast from registers; there a thread loads its partner vector as
// well, from the same cache lines as its neighbours. cos and sin come from a table made once in FP64 on the
// host, so they equal the CPU device's. Bytes per element: 2 read and 2 written (v only if not in place, or
// with a bias), backward with QK-norm 4 read; the table stays in L2.
#include <limits>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/layers/rope_over_heads.cuh"
#include "kernels/numerics/rope_table.h"

namespace precbench {

/// Tables on the device; they live as long as the device, because captured graphs hold their addresses.
struct RopeTables {
  struct Table {
    RopeAngles angles;
    float* data;  // [rows, D / 2] pairs of cos, sin
  };
  std::vector<Table> tables;

  RopeTables() = default;
  RopeTables(const RopeTables&) = delete;
  RopeTables& operator=(const RopeTables&) = delete;
  ~RopeTables() {
    for (const Table& table : tables) cudaFree(table.data);
  }
};

namespace cuda {
namespace {

constexpr int kRopeThreads = 256;

__device__ inline float sum_over_head(float x, int lanes) {
  for (int step = 1; step < lanes; step *= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

/// Returns 1 / rms of a head from one thread's 16 elements of it.
__device__ inline float head_rstd(const float (&a)[8], const float (&b)[8], const Pairs& pairs, float eps) {
  float squares = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) squares += a[j] * a[j] + b[j] * b[j];
  return 1.0f / sqrtf(sum_over_head(squares, pairs.per_head) / static_cast<float>(pairs.D) + eps);
}

/// Adds a row's two vectors of the pair to a and b.
__device__ inline void add_to_pair(float (&a)[8], float (&b)[8], const std::uint16_t* row, const Pair& pair,
                                   std::int64_t D) {
  float x[8], y[8];
  load_vector(x, row + pair.head * D + pair.i);
  load_vector(y, row + pair.head * D + pair.i + D / 2);
#pragma unroll
  for (int j = 0; j < 8; ++j) a[j] += x[j], b[j] += y[j];
}

template <bool kNorm>
__global__ void __launch_bounds__(kRopeThreads)
    rope_kernel(std::uint16_t* out, const std::uint16_t* qkv, const float* table, const Pairs pairs,
                const NormAndBias before) {
  wait_for_work_before();
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kRopeThreads + threadIdx.x;
  // With QK-norm every lane takes part in its head's sums, even lanes beyond the end.
  const bool there = index < pairs.count;
  if (!kNorm && !there) return;
  const Pair pair(pairs, there ? index : 0);
  const Bf16x8 first = load_vector(qkv + pair.at), second = load_vector(qkv + pair.at + pairs.D / 2);
  const bool rotated = pair.head < pairs.rotated_heads;
  float a[8], b[8];
  unpack(a, first);
  unpack(b, second);
  if (before.bias) add_to_pair(a, b, before.bias, pair, pairs.D);
  if (kNorm) {
    const float rstd = head_rstd(a, b, pairs, before.eps);
    if (rotated) {
      const std::uint16_t* gain = (pair.head < pairs.q_heads ? before.q : before.k) + pair.i;
      float w[8];
      load_vector(w, gain);
#pragma unroll
      for (int j = 0; j < 8; ++j) a[j] *= rstd * (w[j] + before.offset);
      load_vector(w, gain + pairs.D / 2);
#pragma unroll
      for (int j = 0; j < 8; ++j) b[j] *= rstd * (w[j] + before.offset);
    }
    if (!there) return;
  }
  if (rotated) apply_rope<false>(a, b, table, pair, pairs);
  store_vector(out + pair.at, a);
  store_vector(out + pair.at + pairs.D / 2, b);
}

/// partial: [blocks, 2 D], dq_norm and dk_norm of the block's pairs. kRopeThreads is a multiple of the lanes of a
/// head, so a thread has the same elements of every head that it visits. kBias: the norm's input is qkv + bias.
template <bool kNorm, bool kBias = false>
__global__ void __launch_bounds__(kRopeThreads)
    rope_backward_kernel(std::uint16_t* dqkv, float* partial, const std::uint16_t* dout,
                         const std::uint16_t* qkv, const float* table, const Pairs pairs,
                         const NormAndBias before) {
  wait_for_work_before();
  extern __shared__ float sums[];  // [warps][2 D]
  float dgain[2][16] = {};
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kRopeThreads;
  const std::int64_t rounds = (pairs.count + stride - 1) / stride;
  for (std::int64_t round = 0; round < rounds; ++round) {
    const std::int64_t index =
        round * stride + static_cast<std::int64_t>(blockIdx.x) * kRopeThreads + threadIdx.x;
    const bool there = index < pairs.count;
    if (!kNorm && !there) continue;
    const Pair pair(pairs, there ? index : 0);
    float a[8], b[8];
    load_vector(a, dout + pair.at);
    load_vector(b, dout + pair.at + pairs.D / 2);
    const bool rotated = pair.head < pairs.rotated_heads;
    if (rotated) apply_rope<true>(a, b, table, pair, pairs);
    if (kNorm) {
      float x[8], y[8], w[8], v[8];
      load_vector(x, qkv + pair.at);
      load_vector(y, qkv + pair.at + pairs.D / 2);
      if (kBias) add_to_pair(x, y, before.bias, pair, pairs.D);
      const bool is_q = pair.head < pairs.q_heads;
      const std::uint16_t* gain = (is_q ? before.q : before.k) + pair.i;
      load_vector(w, gain);
      load_vector(v, gain + pairs.D / 2);
#pragma unroll
      for (int j = 0; j < 8; ++j) w[j] += before.offset, v[j] += before.offset;
      const float rstd = head_rstd(x, y, pairs, before.eps);
      float dot = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) dot += a[j] * w[j] * x[j] + b[j] * v[j] * y[j];
      const float mean = sum_over_head(dot, pairs.per_head) * rstd / static_cast<float>(pairs.D);
      if (rotated && there) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          x[j] *= rstd;
          y[j] *= rstd;
          dgain[0][j] += is_q ? a[j] * x[j] : 0.0f;
          dgain[0][8 + j] += is_q ? b[j] * y[j] : 0.0f;
          dgain[1][j] += is_q ? 0.0f : a[j] * x[j];
          dgain[1][8 + j] += is_q ? 0.0f : b[j] * y[j];
          a[j] = rstd * (a[j] * w[j] - x[j] * mean);
          b[j] = rstd * (b[j] * v[j] - y[j] * mean);
        }
      }
    }
    if (there) {
      store_vector(dqkv + pair.at, a);
      store_vector(dqkv + pair.at + pairs.D / 2, b);
    }
  }
  if (!kNorm) return;
  // Lanes of a warp with the same elements, then warps in order.
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t D = pairs.D;
#pragma unroll
  for (int which = 0; which < 2; ++which)
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      float x = dgain[which][j];
      for (int step = pairs.per_head; step < kWarp; step *= 2) x += __shfl_xor_sync(kAllLanes, x, step);
      if (lane < pairs.per_head) sums[warp * 2 * D + which * D + lane * 8 + j % 8 + (j < 8 ? 0 : D / 2)] = x;
    }
  __syncthreads();
  for (std::int64_t c = threadIdx.x; c < 2 * D; c += kRopeThreads) {
    float total = 0;
    for (int w = 0; w < kRopeThreads / kWarp; ++w) total += sums[w * 2 * D + c];
    partial[blockIdx.x * 2 * D + c] = total;
  }
}

/// Backward without QK-norm, element by element.
struct RopeBackwardSource {
  static constexpr int kOutputs = 1, kBatch = 4;
  struct Column {
    std::int64_t partner;  // column of the vector that rotates with this one
    std::int64_t angles;   // position of the angles in a table row
    float sign;            // of the sine
    bool rotated;
  };
  struct Raw {
    Bf16x8 x, partner;
  };
  Matrix dout;
  const float* table;
  std::int64_t T, D, rotated_cols, early_rows;
  std::int64_t rows = dout.rows, cols = dout.cols;

  bool vectors() const { return dout.vectors; }
  template <bool kFull>
  __device__ Column column(std::int64_t col) const {
    const int i = static_cast<int>(col) % static_cast<int>(D), half = static_cast<int>(D) / 2;
    if (col >= rotated_cols) return {col, 0, 0.0f, false};
    return i < half ? Column{col + half, 2 * i, 1.0f, true} : Column{col - half, 2 * (i - half), -1.0f, true};
  }
  template <bool kFull>
  __device__ Raw fetch(std::int64_t row, std::int64_t col) const {
    const Column column = this->template column<kFull>(col);
    Raw raw{load<kFull>(dout, row, col), {}};
    if (column.rotated) raw.partner = load<kFull>(dout, row, column.partner);
    return raw;
  }
  __device__ void make(Bf16x8 (&out)[1], const Raw& raw, const Column& column, std::int64_t row,
                       std::int64_t) const {
    out[0] = raw.x;
    if (!column.rotated) return;
    const std::int64_t table_row = static_cast<int>(row) % static_cast<int>(T) + (row < early_rows ? 0 : T);
    const Angles angles(table + table_row * D + column.angles);
    float x[8], y[8];
    unpack(x, raw.x);
    unpack(y, raw.partner);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = x[j] * angles.cos[j] + column.sign * y[j] * angles.sin[j];
    out[0] = pack(x);
  }
};

Pairs pairs_of(const RopeOptions& options, bool rotated_only) {
  const AttentionShape& s = options.shape;
  if (const auto why = heads_unsupported_reason(s.head_dim, options.q_norm.size(), options.k_norm.size()))
    throw Unsupported(*why);
  Pairs pairs;
  pairs.per_head = static_cast<int>(s.head_dim / kPairOfVectors);
  pairs.rotated_heads = static_cast<int>(s.heads + s.kv_heads);
  pairs.per_row = static_cast<int>(pairs.rotated_heads + (rotated_only ? 0 : s.kv_heads)) * pairs.per_head;
  pairs.count = s.tokens() * pairs.per_row;
  pairs.q_heads = static_cast<int>(s.heads);
  pairs.T = s.T;
  pairs.early_rows = options.early_rows();
  pairs.D = s.head_dim;
  pairs.width = s.qkv_width();
  return pairs;
}

NormAndBias norm_and_bias_of(const RopeOptions& options) {
  return {options.q_norm.as<std::uint16_t>(), options.k_norm.as<std::uint16_t>(),
          options.bias.as<std::uint16_t>(), options.norm_eps, options.gain_offset};
}

int threads_over_heads(const RopeOptions& options) {
  return static_cast<int>(rope_threads(options.q_norm.size()) + rope_threads(options.k_norm.size()));
}

/// Copies the table's row of each row's position, in vectors of 4 floats.
__global__ void __launch_bounds__(kRopeThreads)
    rows_at_positions_kernel(float4* rows, const float4* table, const int* positions, std::int64_t count,
                             int vectors) {
  wait_for_work_before();
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kRopeThreads + threadIdx.x;
  if (index >= count) return;
  const std::int64_t row = index / vectors;
  rows[index] = table[positions[row] * static_cast<std::int64_t>(vectors) + (index - row * vectors)];
}

/// Returns the bytes of a table with a row for each row of the matrix; 0 if rows have no positions of their own.
std::size_t own_table_bytes(const RopeOptions& options) {
  const std::size_t size = options.positions.empty() ? 0 : options.shape.tokens() * options.shape.head_dim;
  return size * sizeof(float);
}

/// Returns the table that the kernels index by `pairs`. If rows have positions of their own, this fills one in `own`, with
/// a row each, so that the kernels are those of consecutive positions.
const float* table_of_rows(const float* table, void* own, Pairs& pairs, const RopeOptions& options,
                           cudaStream_t stream) {
  if (options.positions.empty()) return table;
  const std::int64_t M = options.shape.tokens();
  const int vectors = static_cast<int>(options.shape.head_dim / 4);
  auto* rows = static_cast<float4*>(own);
  rows_at_positions_kernel<<<static_cast<unsigned>((M * vectors + kRopeThreads - 1) / kRopeThreads), kRopeThreads, 0,
                             stream>>>(rows, reinterpret_cast<const float4*>(table),
                                       options.positions.as<const int>(), M * vectors, vectors);
  pairs.T = M;
  pairs.early_rows = std::numeric_limits<std::int64_t>::max();
  return reinterpret_cast<const float*>(rows);
}

unsigned blocks_of(const Pairs& pairs) {
  return static_cast<unsigned>((pairs.count + kRopeThreads - 1) / kRopeThreads);
}

}  // namespace
}  // namespace cuda

const float* CudaDevice::rope_table(const RopeOptions& options) {
  if (!rope_tables_) rope_tables_ = std::make_shared<RopeTables>();
  const RopeAngles angles = options.angles();
  for (const RopeTables::Table& table : rope_tables_->tables)
    if (table.angles == angles) return table.data;
  if (capturing_)
    throw std::logic_error("rope: angles of another length, head size or model inside a captured step");
  const std::vector<float> table = make_rope_table(angles);
  const std::int64_t bytes = angles.rows() * angles.D * static_cast<std::int64_t>(sizeof(float));
  auto* data = static_cast<float*>(allocate(bytes));
  rope_tables_->tables.push_back({angles, data});
  rope_table_bytes_ += bytes;
  upload({data, DType::f32, angles.rows(), angles.D}, table.data());
  return data;
}

ScratchSizes CudaDevice::scratch_of(const ops::Rope& op) const {
  const RopeAngles angles = op.options.angles();
  return {static_cast<std::int64_t>(cuda::own_table_bytes(op.options) / sizeof(float)),
          angles.rows() * angles.D};
}

void CudaDevice::do_rope(const ops::Rope& op) {
  using namespace cuda;
  Pairs pairs = pairs_of(op.options, op.out.data == op.qkv.data && op.options.bias.empty());
  const float* table = rope_table(op.options);
  table = table_of_rows(table, scratch(own_table_bytes(op.options)), pairs, op.options, stream());
  if (op.options.norms_all_heads()) {
    const int threads = threads_over_heads(op.options);
    const auto over_heads =
        threads > kFewThreads ? rope_over_heads_kernel<kMostThreads> : rope_over_heads_kernel<kFewThreads>;
    const int grid = row_grid(*this, over_heads, threads, 0, op.qkv.rows);
    over_heads<<<grid, threads, 0, stream()>>>(op.out.as<std::uint16_t>(), op.qkv.as<std::uint16_t>(), table,
                                               pairs, norm_and_bias_of(op.options), op.qkv.rows);
    launched("rope");
    return;
  }
  const auto kernel = op.options.q_norm.empty() ? rope_kernel<false> : rope_kernel<true>;
  kernel<<<blocks_of(pairs), kRopeThreads, 0, stream()>>>(op.out.as<std::uint16_t>(), op.qkv.as<std::uint16_t>(),
                                                      table, pairs, norm_and_bias_of(op.options));
  launched("rope");
}

void CudaDevice::do_rope_backward(const ops::RopeBackward& op) {
  using namespace cuda;
  const bool norm = !op.options.q_norm.empty();
  const bool in_place = op.dqkv.value.data == op.dout.data;
  Pairs pairs = pairs_of(op.options, in_place && !norm);
  const float* table = rope_table(op.options);
  const std::size_t table_bytes = own_table_bytes(op.options);  // at the front of the scratch
  const std::int64_t D = pairs.D;
  const bool copies = wanted(op.dqkv.rowwise) || wanted(op.dqkv.columnwise);
  if (copies && !norm && !in_place) {
    auto* block = static_cast<std::byte*>(scratch(table_bytes + amax_scratch_bytes(*this, op.dqkv)));
    table = table_of_rows(table, block, pairs, op.options, stream());
    void* amaxes = block + table_bytes;
    const TileOutput output = tile_output(*this, op.dqkv, writes_value(op.dqkv), amaxes);
    const RopeBackwardSource source{matrix(op.dout),         table,           pairs.T, D,
                                    pairs.rotated_heads * D, pairs.early_rows};
    produce(*this, source, TileOutputs<1>{{output}});
    quantize_from_value(*this, op.dqkv);
    launched("rope_backward");
    return;
  }
  const bool over_heads = op.options.norms_all_heads();
  const auto head_kernel = !norm                     ? rope_backward_kernel<false>
                           : op.options.bias.empty() ? rope_backward_kernel<true>
                                                     : rope_backward_kernel<true, true>;
  const std::int64_t gains = op.options.q_norm.size() + op.options.k_norm.size();
  const int threads = over_heads ? threads_over_heads(op.options) : kRopeThreads;
  const auto over_heads_kernel = threads > kFewThreads ? rope_over_heads_backward_kernel<kMostThreads>
                                                       : rope_over_heads_backward_kernel<kFewThreads>;
  unsigned grid = blocks_of(pairs);
  std::size_t shared_bytes = 0;
  if (over_heads) {
    shared_bytes = 4 * threads * sizeof(float4);
    grid =
        row_grid(*this, over_heads_kernel, threads, shared_bytes, most_blocks_that_sum(*this, op.dout.rows));
  } else if (norm) {
    shared_bytes = kRopeThreads / kWarp * 2 * D * sizeof(float);
    grid = row_grid(*this, head_kernel, kRopeThreads, shared_bytes, grid);
  }
  const std::size_t partial_bytes = norm ? grid * gains * sizeof(float) : 0;
  auto* block =
      static_cast<std::byte*>(scratch(table_bytes + partial_bytes + amax_scratch_bytes(*this, op.dqkv)));
  table = table_of_rows(table, block, pairs, op.options, stream());
  auto* partial = reinterpret_cast<float*>(block + table_bytes);
  auto *dqkv = op.dqkv.value.as<std::uint16_t>(), *dout = op.dout.as<std::uint16_t>(),
       *qkv = op.qkv.as<std::uint16_t>();
  const NormAndBias before = norm_and_bias_of(op.options);
  if (over_heads)
    over_heads_kernel<<<grid, threads, shared_bytes, stream()>>>(dqkv, partial, dout, qkv, table, pairs,
                                                                 before, op.dout.rows);
  else
    head_kernel<<<grid, kRopeThreads, shared_bytes, stream()>>>(dqkv, partial, dout, qkv, table, pairs, before);
  if (norm) {
    sum_rows(op.dq_norm, partial, static_cast<int>(grid), gains, op.accumulate, stream());
    sum_rows(op.dk_norm, partial + op.options.q_norm.size(), static_cast<int>(grid), gains, op.accumulate,
             stream());
  }
  const TileOutput output = tile_output(*this, op.dqkv, false, partial + partial_bytes / sizeof(float));
  cast_value(*this, op.dqkv.value, output);
  quantize_from_value(*this, op.dqkv);
  launched("rope_backward");
}

}  // namespace precbench
