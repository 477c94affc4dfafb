// Transposes codes with power-of-two scales: codes are shifted and rounded instead of being quantized twice.
//
// A code is read once and written once. A block processes a tile of 128 x 128, whose 16 KB of loads are
// issued before the rows' scales arrive. Blocks go down the rows, so that adjacent memory is written at about
// the same time. A thread has 16 codes of each of 4 rows: it casts them with their rows' factors, two at a
// time, transposes squares of 4 x 4, and writes words of a column to shared memory, from which columns are
// written as vectors. Neither side has bank conflicts: a word's position is shifted by four words for each 16
// columns.
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/numerics/scale_layout.h"

namespace precbench {
namespace cuda {
namespace {

constexpr int kCodeSide = 128, kCodeThreads = 256;
constexpr int kRowsOfThread = 4, kWordsOfThread = 4;  // 16 codes of a row
constexpr int kChunks = kCodeSide / (4 * kWordsOfThread);
constexpr std::uint32_t kCodeOfNan = 0x7F7F7F7Fu;

/// Returns the factor on the codes of a row, a power of two of at most 1, as FP16 if the hardware casts that;
/// NaN for a non-finite scale. Below 2^-24 every result is rounded to 0, as it is at 2^-24.
__device__ inline float factor_of(float scale, std::uint32_t largest) {
  const std::uint32_t bits = __float_as_uint(scale);
  if (bits >= static_cast<std::uint32_t>(detail::kInfBits)) return __uint_as_float(detail::kNanBits);
  const int down = static_cast<int>(largest >> 23) - static_cast<int>(bits >> 23);
  return __uint_as_float(static_cast<std::uint32_t>(127 - min(down, 24)) << 23);
}

/// Returns four codes times a factor, cast again.
__device__ inline std::uint32_t scaled_codes(std::uint32_t codes, float factor) {
#if __CUDA_ARCH__ >= 890
  const __half2 by = __float2half2_rn(factor);
  const auto half = [by](std::uint32_t pair) {
    const __half2_raw values = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
    const __half2_raw product = __hmul2(__half2(values), by);
    return static_cast<std::uint32_t>(__nv_cvt_halfraw2_to_fp8x2(product, __NV_SATFINITE, __NV_E4M3));
  };
  return half(codes & 0xFFFFu) | half(codes >> 16) << 16;
#else
  float x[4];
  for (int i = 0; i < 4; ++i) x[i] = e4m3_decode(static_cast<std::uint8_t>(codes >> (8 * i))) * factor;
  return fp8x4(x[0], x[1], x[2], x[3], DType::e4m3);
#endif
}

/// `end`: the row after the last group; null: all rows are used.
__global__ void __launch_bounds__(kCodeThreads)
    transpose_codes_kernel(std::uint8_t* dst, float* dst_scale, const std::uint8_t* src,
                           const float* src_scale, std::int64_t rows, std::int64_t cols,
                           const std::int32_t* end) {
  wait_for_work_before();
  __shared__ __align__(16) std::uint32_t out[kCodeSide * kCodeSide / 4];
  __shared__ std::uint32_t largest_of_warp[kCodeSide / kWarp];
  __shared__ float scales[kCodeSide];
  const std::int64_t row0 = static_cast<std::int64_t>(blockIdx.x) * kCodeSide;
  const std::int64_t col0 = static_cast<std::int64_t>(blockIdx.y) * kCodeSide;
  if (end && row0 >= *end) return;
  const int chunk = threadIdx.x % kChunks, quad = threadIdx.x / kChunks;
  const std::uint8_t* from = src + (row0 + quad * kRowsOfThread) * cols + col0 + chunk * 4 * kWordsOfThread;
  uint4 codes[kRowsOfThread];
#pragma unroll
  for (int r = 0; r < kRowsOfThread; ++r) codes[r] = *reinterpret_cast<const uint4*>(from + r * cols);

  if (threadIdx.x < kCodeSide) {
    const float scale =
        src_scale[scale_index(Granularity::block_1x128, rows, cols, row0, blockIdx.y) + threadIdx.x];
    const std::uint32_t bits = __float_as_uint(scale);
    const std::uint32_t finite = bits < static_cast<std::uint32_t>(detail::kInfBits) ? bits : 0u;
    scales[threadIdx.x] = scale;
    const std::uint32_t largest = __reduce_max_sync(kAllLanes, finite);
    if (threadIdx.x % kWarp == 0) largest_of_warp[threadIdx.x / kWarp] = largest;
  }
  __syncthreads();
  std::uint32_t largest =
      max(max(largest_of_warp[0], largest_of_warp[1]), max(largest_of_warp[2], largest_of_warp[3]));
  if (largest == 0) largest = __float_as_uint(1.0f);
  if (threadIdx.x < kCodeSide)
    dst_scale[scale_index(Granularity::block_1x128, cols, rows, col0, blockIdx.x) + threadIdx.x] =
        __uint_as_float(largest);

  std::uint32_t word[kWordsOfThread][kRowsOfThread];
#pragma unroll
  for (int r = 0; r < kRowsOfThread; ++r) {
    const float factor = factor_of(scales[quad * kRowsOfThread + r], largest);
    const std::uint32_t in[kWordsOfThread] = {codes[r].x, codes[r].y, codes[r].z, codes[r].w};
#pragma unroll
    for (int w = 0; w < kWordsOfThread; ++w)
      word[w][r] = isnan(factor) ? kCodeOfNan : scaled_codes(in[w], factor);
  }
  std::uint32_t* columns = out + chunk * 16 * (kCodeSide / 4) + (quad ^ (chunk * 4));
#pragma unroll
  for (int w = 0; w < kWordsOfThread; ++w) {
    transpose_4x4(word[w]);
#pragma unroll
    for (int c = 0; c < 4; ++c) columns[(4 * w + c) * (kCodeSide / 4)] = word[w][c];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kRowsOfThread; ++i) {
    const int c = i * (kCodeThreads / kChunks) + quad;
    const int at = c * (kCodeSide / 4) + ((chunk * 4) ^ (c / 16 * 4));
    *reinterpret_cast<uint4*>(dst + (col0 + c) * rows + row0 + chunk * 16) =
        *reinterpret_cast<const uint4*>(out + at);
  }
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_transpose_codes(const ops::TransposeCodes& op) {
  using namespace cuda;
  const std::int64_t rows = op.src.data.rows, cols = op.src.data.cols;
  const std::int32_t* end =
      op.groups.counts.empty() ? nullptr : op.groups.offsets.as<std::int32_t>() + op.groups.experts();
  const dim3 grid(static_cast<unsigned>(rows / kCodeSide), static_cast<unsigned>(cols / kCodeSide));
  transpose_codes_kernel<<<grid, kCodeThreads, 0, stream()>>>(
      op.dst.data.as<std::uint8_t>(), op.dst.scale.as<float>(), op.src.data.as<std::uint8_t>(),
      op.src.scale.as<float>(), rows, cols, end);
  launched("transpose_codes");
}

}  // namespace precbench
