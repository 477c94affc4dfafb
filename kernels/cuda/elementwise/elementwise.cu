// Data movement and reductions: zero, convert, add, fill, init_normal, sum, fingerprint, correlate.
#include "kernels/cuda/elementwise/elements.cuh"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/numerics/random.h"

namespace precbench {
namespace cuda {

namespace {

struct Itself {
  __device__ float operator()(float x) const { return x; }
};

__global__ void __launch_bounds__(kElementThreads)
    sum_stage2_kernel(float* out, const double* partial, int count, bool accumulate) {
  wait_for_work_before();
  __shared__ double buffer[kWarp];
  double sum = 0;
  for (int i = threadIdx.x; i < count; i += kElementThreads) sum += partial[i];
  sum = block_sum(sum, buffer);
  if (threadIdx.x == 0) out[0] = static_cast<float>(sum + (accumulate ? out[0] : 0.0f));
}

template <class To, class From>
__global__ void __launch_bounds__(kElementThreads)
    convert_kernel(To* dst, const From* src, std::int64_t size, bool vectors) {
  wait_for_work_before();
  const std::int64_t i = first_element();
  float x[8];
  load_elements(x, src, i, size, vectors);
  store_elements(dst, x, i, size, vectors);
}

template <class To, class From>
__global__ void __launch_bounds__(kElementThreads)
    add_kernel(To* dst, const From* src, std::int64_t size, bool vectors) {
  wait_for_work_before();
  const std::int64_t i = first_element();
  float x[8], y[8];
  load_elements(x, dst, i, size, vectors);
  load_elements(y, src, i, size, vectors);
#pragma unroll
  for (int j = 0; j < 8; ++j) x[j] += y[j];
  store_elements(dst, x, i, size, vectors);
}

template <class T>
__global__ void __launch_bounds__(kElementThreads)
    fill_kernel(T* x, float value, std::int64_t size, bool vectors) {
  wait_for_work_before();
  const float values[8] = {value, value, value, value, value, value, value, value};
  store_elements(x, values, first_element(), size, vectors);
}

template <class T>
__global__ void __launch_bounds__(kElementThreads)
    init_normal_kernel(T* x, float std, std::uint64_t seed, ElementMap index, std::int64_t size,
                       bool vectors) {
  wait_for_work_before();
  const std::int64_t i = first_element();
  float values[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) values[j] = std * irwin_hall_normal(seed, index.of(i + j));
  store_elements(x, values, i, size, vectors);
}

/// The CPU device's two sums modulo 2^32 over 16-bit words; integer addition is independent of the order.
__global__ void __launch_bounds__(kElementThreads)
    fingerprint_kernel(std::uint32_t* out, const std::uint16_t* words, std::int64_t count) {
  wait_for_work_before();
  __shared__ std::uint32_t buffers[2][kWarp];
  std::uint32_t plain = 0, weighted = 0;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kElementThreads * 8;
  for (std::int64_t first = first_element(); first < count; first += stride) {
    const bool vector = first + 8 <= count && reinterpret_cast<std::uintptr_t>(words) % 16 == 0;
    const Bf16x8 v = vector ? load_vector(words + first) : Bf16x8{};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (first + j >= count) continue;
      const std::uint32_t word = vector ? v.pair[j / 2] >> (16 * (j % 2)) & 0xFFFFu : words[first + j];
      plain += word;
      weighted += word * (static_cast<std::uint32_t>(first + j) * 2654435761u + 1u);
    }
  }
  plain = block_sum(plain, buffers[0]);
  weighted = block_sum(weighted, buffers[1]);
  if (threadIdx.x != 0) return;
  atomicAdd(out, plain);
  atomicAdd(out + 1, weighted);
}

/// partial [4, gridDim.x]: each block's share of the four sums of Correlate.
template <class X, class Y>
__global__ void __launch_bounds__(kElementThreads)
    correlate_kernel(double* partial, const X* x, const Y* y, std::int64_t size, bool vectors) {
  wait_for_work_before();
  __shared__ double buffers[4][kWarp];
  double sums[4] = {};
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kElementThreads * 8;
  for (std::int64_t i = first_element(); i < size; i += stride) {
    float a[8], b[8];
    load_elements(a, x, i, size, vectors);
    load_elements(b, y, i, size, vectors);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float difference = a[j] - b[j];
      sums[0] += a[j] * b[j];
      sums[1] += a[j] * a[j];
      sums[2] += b[j] * b[j];
      sums[3] += difference * difference;
    }
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const double sum = block_sum(sums[k], buffers[k]);
    if (threadIdx.x == 0) partial[k * gridDim.x + blockIdx.x] = sum;
  }
}

}  // namespace

void sum_stage2(float* out, const double* partial, int count, bool accumulate, cudaStream_t stream) {
  sum_stage2_kernel<<<1, kElementThreads, 0, stream>>>(out, partial, count, accumulate);
}

}  // namespace cuda

void CudaDevice::do_zero(const ops::Zero& op) {
  PRECBENCH_CHECK(cudaMemsetAsync(op.x.data, 0, op.x.bytes(), stream()));
  launched("zero");
}

void CudaDevice::do_convert(const ops::Convert& op) {
  if (op.dst.dtype == op.src.dtype) {
    if (op.dst.data != op.src.data)
      PRECBENCH_CHECK(
          cudaMemcpyAsync(op.dst.data, op.src.data, op.src.bytes(), cudaMemcpyDeviceToDevice, stream()));
  } else if (const std::int64_t size = op.dst.size()) {
    const bool vectors = cuda::aligned(op.dst) && cuda::aligned(op.src);
    cuda::with_type(op.dst.dtype, [&](auto to) {
      cuda::with_type(op.src.dtype, [&](auto from) {
        cuda::convert_kernel<<<cuda::element_blocks(size), cuda::kElementThreads, 0, stream()>>>(
            op.dst.as<decltype(to)>(), op.src.as<decltype(from)>(), size, vectors);
      });
    });
  }
  launched("convert");
}

void CudaDevice::do_add(const ops::Add& op) {
  if (const std::int64_t size = op.dst.size()) {
    const bool vectors = cuda::aligned(op.dst) && cuda::aligned(op.src);
    cuda::with_type(op.dst.dtype, [&](auto to) {
      cuda::with_type(op.src.dtype, [&](auto from) {
        cuda::add_kernel<<<cuda::element_blocks(size), cuda::kElementThreads, 0, stream()>>>(
            op.dst.as<decltype(to)>(), op.src.as<decltype(from)>(), size, vectors);
      });
    });
  }
  launched("add");
}

void CudaDevice::do_fill(const ops::Fill& op) {
  if (const std::int64_t size = op.x.size())
    cuda::with_type(op.x.dtype, [&](auto type) {
      cuda::fill_kernel<<<cuda::element_blocks(size), cuda::kElementThreads, 0, stream()>>>(
          op.x.as<decltype(type)>(), op.value, size, cuda::aligned(op.x));
    });
  launched("fill");
}

void CudaDevice::do_init_normal(const ops::InitNormal& op) {
  if (const std::int64_t size = op.x.size())
    cuda::with_type(op.x.dtype, [&](auto type) {
      cuda::init_normal_kernel<<<cuda::element_blocks(size), cuda::kElementThreads, 0, stream()>>>(
          op.x.as<decltype(type)>(), op.std, op.seed, op.index, size, cuda::aligned(op.x));
    });
  launched("init_normal");
}

void CudaDevice::do_sum(const ops::Sum& op) {
  cuda::sum_of(*this, op.out, op.x, op.accumulate, cuda::Itself());
  launched("sum");
}

void CudaDevice::do_fingerprint(const ops::Fingerprint& op) {
  PRECBENCH_CHECK(cudaMemsetAsync(op.out.data, 0, op.out.bytes(), stream()));
  cuda::fingerprint_kernel<<<sm_count() * cuda::kSumBlocksPerSm, cuda::kElementThreads, 0, stream()>>>(
      op.out.as<std::uint32_t>(), op.x.as<std::uint16_t>(), op.x.bytes() / 2);
  launched("fingerprint");
}

void CudaDevice::do_correlate(const ops::Correlate& op) {
  using namespace cuda;
  const int blocks = sm_count() * kSumBlocksPerSm;
  auto* partial = static_cast<double*>(scratch(4 * blocks * sizeof(double)));
  with_type(op.x.dtype, [&](auto x) {
    with_type(op.y.dtype, [&](auto y) {
      using X = decltype(x);
      using Y = decltype(y);
      correlate_kernel<<<blocks, kElementThreads, 0, stream()>>>(partial, op.x.as<X>(), op.y.as<Y>(),
                                                                 op.x.size(), aligned(op.x) && aligned(op.y));
    });
  });
  for (int k = 0; k < 4; ++k)
    sum_stage2(op.out.as<float>() + k, partial + k * blocks, blocks, op.accumulate, stream());
  launched("correlate");
}

}  // namespace precbench
