// Tensors stored as codes with a per-tensor scale: encode, decode, sum_codes, commit_scale, and the sum of
// their squares. Eight elements per thread.
#include "kernels/cuda/elementwise/scaled_values.cuh"

#include <algorithm>

#include "kernels/cuda/hopper/early_start.cuh"

namespace precbench {
namespace cuda {
namespace {

constexpr int kEncodeBlocksPerSm = 8;

/// Loads eight codes times `factor`; those beyond the end are 0.
template <int kBytes>
__device__ inline void load_codes(float (&x)[8], const void* codes, std::int64_t i, std::int64_t size,
                                  float factor, bool vectors) {
  EightStored eight;
  fetch_eight<kBytes>(eight, codes, i, size, vectors);
  decode_eight<kBytes>(x, eight);
#pragma unroll
  for (int j = 0; j < 8; ++j) x[j] *= factor;
}

template <int kBytes, class Source>
__global__ void __launch_bounds__(kElementThreads)
    encode_kernel(const StoredArgs a, const Source* src, std::int64_t size, bool vectors, bool accumulate,
                  bool measure) {
  wait_for_work_before();
  __shared__ std::uint32_t buffer[kWarp];
  const float kept = kept_factor(a), factor = measure ? 0.0f : new_factor(a);
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kElementThreads * 8;
  std::uint32_t amax = 0;
  for (std::int64_t i = first_element(); i < size; i += stride) {
    EightStored eight;
    if (accumulate) fetch_eight<kBytes>(eight, a.codes, i, size, a.vectors);
    float x[8];
    load_elements(x, src, i, size, vectors);
    if (accumulate) {
      float before[8];
      decode_eight<kBytes>(before, eight);
#pragma unroll
      for (int j = 0; j < 8; ++j) x[j] += before[j] * kept;
    }
    if (measure)
      amax = amax_of(amax, x);
    else
      store_stored(a, i, size, x, factor);
  }
  if (measure) raise_amax(a, block_max(amax, buffer));
}

template <int kBytes, class To>
__global__ void __launch_bounds__(kElementThreads)
    decode_kernel(To* dst, const StoredArgs a, std::int64_t size, bool vectors) {
  wait_for_work_before();
  const std::int64_t i = first_element();
  float x[8];
  load_codes<kBytes>(x, a.codes, i, size, kept_factor(a), a.vectors);
  store_elements(dst, x, i, size, vectors);
}

/// `vectors`: alignment of the sum; code_vectors: of every row. kRound: sums are rounded to the codes' format
/// before unscaling.
template <int kBytes, bool kRound>
__global__ void __launch_bounds__(kElementThreads)
    sum_codes_kernel(float* dst, const StoredArgs a, std::int64_t rows, std::int64_t pitch_bytes,
                     std::int64_t size, bool vectors, bool code_vectors) {
  wait_for_work_before();
  const std::int64_t i = first_element();
  const float factor = kept_factor(a), of_code = kRound ? 1.0f : factor;
  float sum[8] = {};
  for (std::int64_t row = 0; row < rows; ++row) {
    float x[8];
    load_codes<kBytes>(x, static_cast<const char*>(a.codes) + row * pitch_bytes, i, size, of_code,
                       code_vectors);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] = row == 0 ? x[j] : sum[j] + x[j];
    if constexpr (kRound) {
      EightStored rounded;
      encode_eight<kBytes>(rounded, sum);
      decode_eight<kBytes>(sum, rounded);
    }
  }
#pragma unroll
  for (int j = 0; kRound && j < 8; ++j) sum[j] *= factor;
  store_elements(dst, sum, i, size, vectors);
}

template <int kBytes>
__global__ void __launch_bounds__(kElementThreads)
    code_squares_kernel(double* partial, const StoredArgs a, std::int64_t size) {
  wait_for_work_before();
  __shared__ double buffer[kWarp];
  const float factor = kept_factor(a);
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kElementThreads * 8;
  double sum = 0;
  for (std::int64_t i = first_element(); i < size; i += stride) {
    float x[8];
    load_codes<kBytes>(x, a.codes, i, size, factor, a.vectors);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += static_cast<double>(x[j]) * x[j];
  }
  sum = block_sum(sum, buffer);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kElementThreads)
    commit_scale_kernel(float* scale, float* amax, float max, std::int64_t count) {
  wait_for_work_before();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kElementThreads + threadIdx.x;
  if (i >= count) return;
  scale[i] = state_scale(amax[i], max, scale[i]);
  amax[i] = 0;
}

/// Calls body with the bytes per code as a constant.
template <class Body>
void with_codes(DType dtype, Body&& body) {
  if (dtype == DType::f16)
    body(std::integral_constant<int, 2>());
  else
    body(std::integral_constant<int, 1>());
}

}  // namespace

void sum_code_squares(CudaDevice& device, const ops::SumOfSquares& op) {
  const int blocks = device.sm_count() * kSumBlocksPerSm;
  auto* partial = static_cast<double*>(device.scratch(blocks * sizeof(double)));
  with_codes(op.x.dtype, [&](auto bytes) {
    code_squares_kernel<bytes><<<blocks, kElementThreads, 0, device.stream()>>>(
        partial, stored_args(op.x, {op.scale, {}}), op.x.size());
  });
  sum_stage2(op.out.as<float>(), partial, blocks, op.accumulate, device.stream());
}

}  // namespace cuda

void CudaDevice::do_encode(const ops::Encode& op) {
  using namespace cuda;
  const std::int64_t size = op.src.size();
  const unsigned blocks =
      std::min(element_blocks(size), static_cast<unsigned>(sm_count() * kEncodeBlocksPerSm));
  StoredArgs args = stored_args(op.codes, op.scale);
  args.max /= op.headroom;
  if (size > 0)
    with_codes(op.codes.dtype, [&](auto bytes) {
      with_type(op.src.dtype, [&](auto source) {
        using Source = decltype(source);
        encode_kernel<bytes, Source><<<blocks, kElementThreads, 0, stream()>>>(
            args, op.src.as<Source>(), size, aligned(op.src), op.accumulate, op.measure);
      });
    });
  launched("encode");
}

void CudaDevice::do_decode(const ops::Decode& op) {
  using namespace cuda;
  if (const std::int64_t size = op.dst.size())
    with_codes(op.codes.dtype, [&](auto bytes) {
      with_type(op.dst.dtype, [&](auto to) {
        decode_kernel<bytes><<<element_blocks(size), kElementThreads, 0, stream()>>>(
            op.dst.as<decltype(to)>(), stored_args(op.codes, {op.scale, {}}), size, aligned(op.dst));
      });
    });
  launched("decode");
}

void CudaDevice::do_sum_codes(const ops::SumCodes& op) {
  using namespace cuda;
  if (const std::int64_t size = op.dst.size())
    with_codes(op.codes.dtype, [&](auto bytes) {
      const Tensor first_row = op.codes.elements(op.first, size);
      const StoredArgs args = stored_args(first_row, {op.scale, {}});
      const std::int64_t pitch = bytes_of(op.codes.dtype, op.codes.cols);
      const auto launch = [&](auto round) {
        sum_codes_kernel<bytes, round><<<element_blocks(size), kElementThreads, 0, stream()>>>(
            op.dst.as<float>(), args, op.codes.rows, pitch, size, aligned(op.dst),
            args.vectors && pitch % 16 == 0);
      };
      if (op.round)
        launch(std::true_type());
      else
        launch(std::false_type());
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
