// One pass over flat arrays, eight elements per thread and array: 16-byte accesses if all arrays are aligned.
#pragma once

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/vector.cuh"

namespace precbench::cuda {

inline constexpr int kElementThreads = 256;

/// Returns true if vectors of eight elements of this tensor are 16-byte aligned. Empty tensors are.
inline bool aligned(const Tensor& x) { return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0; }

/// Loads elements [i, i + 8) of an array of `size`; those beyond its end are 0.
template <class T>
__device__ inline void load_elements(float (&out)[8], const T* p, std::int64_t i, std::int64_t size,
                                     bool vectors) {
  if (vectors && i + 8 <= size) return load_vector(out, p + i);
#pragma unroll
  for (int j = 0; j < 8; ++j) out[j] = i + j < size ? to_float(p[i + j]) : 0.0f;
}

template <class T>
__device__ inline void store_elements(T* p, const float (&x)[8], std::int64_t i, std::int64_t size,
                                      bool vectors) {
  if (vectors && i + 8 <= size) return store_vector(p + i, x);
#pragma unroll
  for (int j = 0; j < 8; ++j)
    if (i + j < size) from_float(p[i + j], x[j]);
}

/// Returns the first of a thread's eight elements.
__device__ inline std::int64_t first_element() {
  return (static_cast<std::int64_t>(blockIdx.x) * kElementThreads + threadIdx.x) * 8;
}

inline unsigned element_blocks(std::int64_t size) {
  return static_cast<unsigned>((size + kElementThreads * 8 - 1) / (kElementThreads * 8));
}

/// Calls use(v) for each group of eight elements of the thread, for any grid size and in order; elements
/// beyond the end are 0.
template <class T, class Use>
__device__ inline void for_elements(const T* x, std::int64_t size, bool vectors, Use&& use) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kElementThreads * 8;
#pragma unroll 4
  for (std::int64_t i = first_element(); i < size; i += stride) {
    float v[8];
    load_elements(v, x, i, size, vectors);
    use(v);
  }
}

// Sums have two stages with a fixed order: a fixed number of blocks in which each thread adds every
// gridDim-th group of eight elements in FP64, then one block over the blocks' results.
inline constexpr int kSumBlocksPerSm = 4;

template <class Term, class T>
__global__ void __launch_bounds__(kElementThreads)
    sum_stage1(double* partial, const T* x, std::int64_t size, bool vectors, Term term) {
  wait_for_work_before();
  __shared__ double buffer[kWarp];
  double sum = 0;
  for_elements(x, size, vectors, [&](float(&v)[8]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = term(v[j]);
    sum += ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
  });
  sum = block_sum(sum, buffer);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/// out[0] = or += sum of partial.
void sum_stage2(float* out, const double* partial, int count, bool accumulate, cudaStream_t stream);

/// out[0] = or += sum of term(x[i]).
template <class Term>
void sum_of(CudaDevice& device, const Tensor& out, const Tensor& x, bool accumulate, Term term) {
  const int blocks = device.sm_count() * kSumBlocksPerSm;
  auto* partial = static_cast<double*>(device.scratch(blocks * sizeof(double)));
  with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    sum_stage1<<<blocks, kElementThreads, 0, device.stream()>>>(partial, x.as<T>(), x.size(), aligned(x),
                                                                term);
  });
  sum_stage2(out.as<float>(), partial, blocks, accumulate, device.stream());
}

}  // namespace precbench::cuda
