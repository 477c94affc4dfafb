// Heads of latent attention (ops::LatentHeads): RoPE on the last elements of queries and keys, with one rotated key for all
// heads of a row.
//
// A block has one row, and a thread moves vectors of 8 elements. A rotated element's partner is in the same vector
// (interleaved) or rope / 2 elements away, which the thread loads as well. Backward sums the key's gradient over the heads:
// every thread adds the heads of its group in order, then one thread per vector adds the groups in order, so
// the bits do not depend on timing. Each element is read once and written once.
#include <algorithm>

#include "kernels/base/errors.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/layers/rope_pairs.cuh"

namespace precbench {
namespace cuda {
namespace {

constexpr int kLatentThreads = 256;

/// Widths in vectors of 8 elements, and where the tensors are.
struct LatentArguments {
  std::uint16_t *qkv, *q, *kv_up, *shared;  // shared: the first rope element of row 0
  const float* table;                       // [rows, rope / 2] pairs of cos, sin
  std::int64_t q_pitch, shared_pitch;       // elements from row to row
  std::int64_t T, early_rows;
  int heads, nope, rope, values;  // vectors
  float q_scale;

  __device__ const float* angles(std::int64_t row) const {
    return table + (row % T + (row < early_rows ? 0 : T)) * rope * 8;
  }
};

/// Rotates vector i of the `rope` vectors at x; kInverse: by the negative angles.
template <bool kInterleaved, bool kInverse>
__device__ inline void rotated(float (&out)[8], const float (&own)[8], const float (&partner)[8],
                               const float* angles, int i, int rope) {
  if constexpr (kInterleaved) {
    const float4 first = __ldg(reinterpret_cast<const float4*>(angles + 8 * i)),
                 second = __ldg(reinterpret_cast<const float4*>(angles + 8 * i) + 1);
    const float cos[4] = {first.x, first.z, second.x, second.z},
                sin[4] = {first.y, first.w, second.y, second.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float s = kInverse ? -sin[j] : sin[j];
      out[2 * j] = own[2 * j] * cos[j] - own[2 * j + 1] * s;
      out[2 * j + 1] = own[2 * j + 1] * cos[j] + own[2 * j] * s;
    }
  } else {
    const bool late = i >= rope / 2;
    const Angles angle(angles + 16 * (late ? i - rope / 2 : i));
    const float sign = late == kInverse ? -1.0f : 1.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) out[j] = own[j] * angle.cos[j] + sign * partner[j] * angle.sin[j];
  }
}

/// Loads vector i of the `rope` vectors at x, and its partner, and rotates it.
template <bool kInterleaved, bool kInverse>
__device__ inline void load_rotated(float (&out)[8], const std::uint16_t* x, const float* angles, int i,
                                    int rope) {
  float own[8], partner[8] = {};
  load_vector(own, x + 8 * i);
  if (!kInterleaved) load_vector(partner, x + 8 * (i < rope / 2 ? i + rope / 2 : i - rope / 2));
  rotated<kInterleaved, kInverse>(out, own, partner, angles, i, rope);
}

template <bool kInterleaved>
__global__ void __launch_bounds__(kLatentThreads) latent_heads_kernel(const LatentArguments a) {
  wait_for_work_before();
  const std::int64_t row = blockIdx.x;
  const int width = a.nope + a.rope, up = a.nope + a.values, keys = a.heads * width,
            values = a.heads * a.values;
  const float* angles = a.angles(row);
  const std::uint16_t *q = a.q + row * a.q_pitch, *kv = a.kv_up + row * 8 * a.heads * up,
                      *shared = a.shared + row * a.shared_pitch;
  std::uint16_t* out = a.qkv + row * 8 * (2 * keys + values);
  for (int v = threadIdx.x; v < 2 * keys + values; v += kLatentThreads) {
    float x[8];
    if (v >= 2 * keys) {
      const int of_values = v - 2 * keys, head = of_values / a.values;
      store_vector(out + 8 * v, load_vector(kv + 8 * (head * up + a.nope + of_values - head * a.values)));
      continue;
    }
    const bool query = v < keys;
    const int of_heads = query ? v : v - keys, head = of_heads / width, i = of_heads - head * width;
    if (!query && i < a.nope) {
      store_vector(out + 8 * v, load_vector(kv + 8 * (head * up + i)));
      continue;
    }
    if (i < a.nope)
      load_vector(x, q + 8 * v);
    else
      load_rotated<kInterleaved, false>(x, query ? q + 8 * (head * width + a.nope) : shared, angles,
                                        i - a.nope, a.rope);
    if (query) {
#pragma unroll
      for (int j = 0; j < 8; ++j) x[j] *= a.q_scale;
    }
    store_vector(out + 8 * v, x);
  }
}

/// `a` has the gradients; qkv is read.
template <bool kInterleaved>
__global__ void __launch_bounds__(kLatentThreads) latent_heads_backward_kernel(const LatentArguments a) {
  wait_for_work_before();
  extern __shared__ float sums[];  // [groups of heads][rope elements]
  const std::int64_t row = blockIdx.x;
  const int width = a.nope + a.rope, up = a.nope + a.values, keys = a.heads * width,
            values = a.heads * a.values;
  const float* angles = a.angles(row);
  const std::uint16_t* in = a.qkv + row * 8 * (2 * keys + values);
  std::uint16_t *q = a.q + row * a.q_pitch, *kv = a.kv_up + row * 8 * a.heads * up;
  for (int v = threadIdx.x; v < keys; v += kLatentThreads) {
    const int head = v / width, i = v - head * width;
    float x[8];
    if (i < a.nope)
      load_vector(x, in + 8 * v);
    else
      load_rotated<kInterleaved, true>(x, in + 8 * (head * width + a.nope), angles, i - a.nope, a.rope);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] *= a.q_scale;
    store_vector(q + 8 * v, x);
  }
  for (int v = threadIdx.x; v < a.heads * up; v += kLatentThreads) {
    const int head = v / up, i = v - head * up;
    const int from = i < a.nope ? keys + head * width + i : 2 * keys + head * a.values + i - a.nope;
    store_vector(kv + 8 * v, load_vector(in + 8 * from));
  }
  const int groups = kLatentThreads / a.rope, group = threadIdx.x / a.rope, i = threadIdx.x - group * a.rope;
  if (group < groups) {
    float sum[8] = {};
    for (int head = group; head < a.heads; head += groups) {
      float x[8];
      load_vector(x, in + 8 * (keys + head * width + a.nope + i));
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] += x[j];
    }
    store_vector(sums + 8 * (group * a.rope + i), sum);
  }
  __syncthreads();
  if (group == 0)
    for (int other = 1; other < groups; ++other) {
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[8 * i + j] += sums[8 * (other * a.rope + i) + j];
    }
  __syncthreads();
  if (group > 0) return;
  float own[8], partner[8], x[8];
  const int other = i < a.rope / 2 ? i + a.rope / 2 : i - a.rope / 2;
#pragma unroll
  for (int j = 0; j < 8; ++j) own[j] = sums[8 * i + j], partner[j] = sums[8 * other + j];
  rotated<kInterleaved, true>(x, own, partner, angles, i, a.rope);
  store_vector(a.shared + row * a.shared_pitch + 8 * i, x);
}

/// `latent`: the matrix whose last columns are the shared key.
LatentArguments arguments_of(const LatentHeadsOptions& options, const Tensor& qkv, const Tensor& q,
                             const Tensor& kv_up, const Tensor& latent, const float* table) {
  const AttentionShape& s = options.shape;
  for (const std::int64_t width : {options.nope_dim(), s.v_dim(), options.rope_dim / 2, q.cols, latent.cols})
    if (width % 8 != 0)
      throw Unsupported(
          "latent attention on the CUDA device needs widths of heads and latents that are multiples of 8, and of 16 "
          "with RoPE");
  if (options.rope_dim > 8 * kLatentThreads)
    throw Unsupported("latent attention on the CUDA device: rope_dim is too large");
  const auto vectors = [](std::int64_t elements) { return static_cast<int>(elements / 8); };
  return {.qkv = qkv.as<std::uint16_t>(),
          .q = q.as<std::uint16_t>(),
          .kv_up = kv_up.as<std::uint16_t>(),
          .shared = latent.as<std::uint16_t>() + latent.cols - options.rope_dim,
          .table = table,
          .q_pitch = q.cols,
          .shared_pitch = latent.cols,
          .T = s.T,
          .early_rows = options.rope().early_rows(),
          .heads = static_cast<int>(s.heads),
          .nope = vectors(options.nope_dim()),
          .rope = vectors(options.rope_dim),
          .values = vectors(s.v_dim()),
          .q_scale = options.q_scale};
}

void check_positions(const LatentHeadsOptions& options) {
  if (!options.positions.empty())
    throw Unsupported(
        "latent_heads: the cuda device has no rows at positions of their own (packed documents)");
}

}  // namespace
}  // namespace cuda

ScratchSizes CudaDevice::scratch_of(const ops::LatentHeads& op) const {
  const RopeAngles angles = op.options.rope().angles();
  return {0, angles.rows() * angles.D};
}

void CudaDevice::do_latent_heads(const ops::LatentHeads& op) {
  using namespace cuda;
  check_positions(op.options);
  const float* table = rope_table(op.options.rope());
  const LatentArguments arguments = arguments_of(op.options, op.qkv, op.q, op.kv_up, op.latent, table);
  const auto kernel = op.options.interleaved ? latent_heads_kernel<true> : latent_heads_kernel<false>;
  kernel<<<static_cast<unsigned>(op.qkv.rows), kLatentThreads, 0, stream()>>>(arguments);
  launched("latent_heads");
}

void CudaDevice::do_latent_heads_backward(const ops::LatentHeadsBackward& op) {
  using namespace cuda;
  check_positions(op.options);
  const float* table = rope_table(op.options.rope());
  const LatentArguments arguments = arguments_of(op.options, op.dqkv, op.dq, op.dkv_up, op.dlatent, table);
  const auto kernel =
      op.options.interleaved ? latent_heads_backward_kernel<true> : latent_heads_backward_kernel<false>;
  kernel<<<static_cast<unsigned>(op.dqkv.rows), kLatentThreads, 8 * kLatentThreads * sizeof(float), stream()>>>(
      arguments);
  launched("latent_heads_backward");
}

}  // namespace precbench
