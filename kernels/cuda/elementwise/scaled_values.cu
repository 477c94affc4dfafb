// Tensors that are kept as codes with one scale: encode, decode, sum_codes, commit_scale, and the sum of their squares.
// Eight elements per thread, codes by one access where they are aligned.
#include "kernels/cuda/elementwise/scaled_values.cuh"

#include <algorithm>

namespace precbench {
namespace cuda {
namespace {

constexpr int kEncodeBlocksPerSm = 8;

__device__ inline float decoded(std::uint16_t code) { return f16_decode(code); }
__device__ inline float decoded(std::uint8_t code) { return e4m3_decode(code); }
__device__ inline void encode(std::uint16_t& code, float x) { code = f16_encode(x); }
__device__ inline void encode(std::uint8_t& code, float x) { code = e4m3_encode(x); }

/// Eight codes as one access has them.
template <class Code>
struct alignas(8 * sizeof(Code)) Codes8 {
  Code code[8];
};

/// Elements [i, i + 8) times `factor`; those behind the end are 0.
template <class Code>
__device__ inline void load_codes(float (&x)[8], const Code* codes, std::int64_t i, std::int64_t size,
                                  float factor) {
  Codes8<Code> eight = {};
  if (i + 8 <= size && reinterpret_cast<std::uintptr_t>(codes + i) % sizeof eight == 0) {
    eight = *reinterpret_cast<const Codes8<Code>*>(codes + i);
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (i + j < size) eight.code[j] = codes[i + j];
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) x[j] = decoded(eight.code[j]) * factor;
}

template <class Code>
__device__ inline void store_codes(Code* codes, const float (&x)[8], std::int64_t i, std::int64_t size,
                                   float factor) {
  Codes8<Code> eight;
#pragma unroll
  for (int j = 0; j < 8; ++j) encode(eight.code[j], x[j] * factor);
  if (i + 8 <= size && reinterpret_cast<std::uintptr_t>(codes + i) % sizeof eight == 0) {
    *reinterpret_cast<Codes8<Code>*>(codes + i) = eight;
    return;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j)
    if (i + j < size) codes[i + j] = eight.code[j];
}

template <class Code, class Source>
__global__ void __launch_bounds__(kElementThreads)
    encode_kernel(const StoredArgs a, const Source* src, std::int64_t size, bool vectors, bool accumulate,
                  bool measure) {
  __shared__ std::uint32_t buffer[kWarp];
  Code* codes = static_cast<Code*>(a.codes);
  const float before = *a.scale, kept_factor = __fdiv_rn(1.0f, before);
  const float factor = measure ? 0.0f : state_scale(*a.amax, a.max, before);
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kElementThreads * 8;
  std::uint32_t amax = 0;
  for (std::int64_t i = first_element(); i < size; i += stride) {
    float x[8];
    load_elements(x, src, i, size, vectors);
    if (accumulate) {
      float kept[8];
      load_codes(kept, codes, i, size, kept_factor);
#pragma unroll
      for (int j = 0; j < 8; ++j) x[j] += kept[j];
    }
    if (!measure) {
      store_codes(codes, x, i, size, factor);
      continue;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) amax = max(amax, static_cast<std::uint32_t>(abs_bits(x[j])));
  }
  if (measure) raise_amax(a, block_max(amax, buffer));
}

template <class Code, class To>
__global__ void __launch_bounds__(kElementThreads)
    decode_kernel(To* dst, const Code* codes, const float* scale, std::int64_t size, bool vectors) {
  const std::int64_t i = first_element();
  float x[8];
  load_codes(x, codes, i, size, __fdiv_rn(1.0f, *scale));
  store_elements(dst, x, i, size, vectors);
}

template <class Code>
__global__ void __launch_bounds__(kElementThreads)
    sum_codes_kernel(float* dst, const Code* codes, std::int64_t rows, std::int64_t cols, const float* scale,
                     std::int64_t size, bool vectors) {
  const std::int64_t i = first_element();
  const float factor = __fdiv_rn(1.0f, *scale);
  float sum[8] = {};
  for (std::int64_t row = 0; row < rows; ++row) {
    float x[8];
    load_codes(x, codes + row * cols, i, size, factor);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] = row == 0 ? x[j] : sum[j] + x[j];
  }
  store_elements(dst, sum, i, size, vectors);
}

template <class Code>
__global__ void __launch_bounds__(kElementThreads)
    code_squares_kernel(double* partial, const Code* codes, const float* scale, std::int64_t size) {
  __shared__ double buffer[kWarp];
  const float factor = __fdiv_rn(1.0f, *scale);
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kElementThreads * 8;
  double sum = 0;
  for (std::int64_t i = first_element(); i < size; i += stride) {
    float x[8];
    load_codes(x, codes, i, size, factor);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += static_cast<double>(x[j]) * x[j];
  }
  sum = block_sum(sum, buffer);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kElementThreads)
    commit_scale_kernel(float* scale, float* amax, float max, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kElementThreads + threadIdx.x;
  if (i >= count) return;
  scale[i] = state_scale(amax[i], max, scale[i]);
  amax[i] = 0;
}

/// body(Code{}) for the type of the codes.
template <class Body>
void with_codes(DType dtype, Body&& body) {
  if (dtype == DType::f16)
    body(std::uint16_t{});
  else
    body(std::uint8_t{});
}

}  // namespace

void sum_code_squares(CudaDevice& device, const ops::SumOfSquares& op) {
  const int blocks = device.sm_count() * kSumBlocksPerSm;
  auto* partial = static_cast<double*>(device.scratch(blocks * sizeof(double)));
  with_codes(op.x.dtype, [&](auto code) {
    code_squares_kernel<<<blocks, kElementThreads, 0, device.stream()>>>(partial, op.x.as<decltype(code)>(),
                                                                         op.scale.as<float>(), op.x.size());
  });
  sum_stage2(op.out.as<float>(), partial, blocks, op.accumulate, device.stream());
}

}  // namespace cuda

void CudaDevice::do_encode(const ops::Encode& op) {
  using namespace cuda;
  const std::int64_t size = op.src.size();
  const unsigned blocks =
      std::min(element_blocks(size), static_cast<unsigned>(sm_count() * kEncodeBlocksPerSm));
  if (size > 0)
    with_codes(op.codes.dtype, [&](auto code) {
      with_type(op.src.dtype, [&](auto source) {
        using Code = decltype(code);
        using Source = decltype(source);
        encode_kernel<Code, Source>
            <<<blocks, kElementThreads, 0, stream()>>>(stored_args(op.codes, op.scale), op.src.as<Source>(),
                                                       size, aligned(op.src), op.accumulate, op.measure);
      });
    });
  launched("encode");
}

void CudaDevice::do_decode(const ops::Decode& op) {
  using namespace cuda;
  if (const std::int64_t size = op.dst.size())
    with_codes(op.codes.dtype, [&](auto code) {
      with_type(op.dst.dtype, [&](auto to) {
        decode_kernel<<<element_blocks(size), kElementThreads, 0, stream()>>>(
            op.dst.as<decltype(to)>(), op.codes.as<decltype(code)>(), op.scale.as<float>(), size,
            aligned(op.dst));
      });
    });
  launched("decode");
}

void CudaDevice::do_sum_codes(const ops::SumCodes& op) {
  using namespace cuda;
  if (const std::int64_t size = op.dst.size())
    with_codes(op.codes.dtype, [&](auto code) {
      using Code = decltype(code);
      sum_codes_kernel<<<element_blocks(size), kElementThreads, 0, stream()>>>(
          op.dst.as<float>(), op.codes.as<Code>() + op.first, op.codes.rows, op.codes.cols,
          op.scale.as<float>(), size, aligned(op.dst));
    });
  launched("sum_codes");
}

void CudaDevice::do_commit_scale(const ops::CommitScale& op) {
  using namespace cuda;
  if (const std::int64_t count = op.scale.size())
    commit_scale_kernel<<<static_cast<unsigned>((count + kElementThreads - 1) / kElementThreads),
                          kElementThreads, 0, stream()>>>(op.scale.as<float>(), op.amax.as<float>(), op.max,
                                                          count);
  launched("commit_scale");
}

}  // namespace precbench
