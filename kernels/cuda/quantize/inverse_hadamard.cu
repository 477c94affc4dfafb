// Inverse Hadamard transform of the gradients of a GEMM with transformed operands: Quartet's dX and dW, 0
// where fprop's cast clipped. Bytes per element: the gradient's, read and written, and 2 of the operand,
// whose transform is recomputed.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/quantize/hadamard.cuh"
#include "kernels/numerics/scale_layout.h"

namespace precbench {
namespace cuda {
namespace {

constexpr int kInverseThreads = 256;

struct InverseArgs {
  const std::uint16_t* value;  // null: no mask
  const std::uint8_t* scales;
  QuantFormat format;
  std::int64_t rows, k;
  bool accumulate;
};

/// One chunk per thread; rows are whole transforms long, so that adjacent lanes have a transform's chunks.
template <class To, class From>
__global__ void __launch_bounds__(kInverseThreads)
    inverse_hadamard_kernel(To* dst, const From* src, const InverseArgs a) {
  wait_for_work_before();
  __shared__ SignBits signs;
  leave_signs(signs, a.format.transform.signs, nullptr, 0);
  const std::int64_t first = (std::int64_t{blockIdx.x} * kInverseThreads + threadIdx.x) * kChunk;
  const bool inside = first < a.rows * a.k;
  const int length = a.format.transform.length, place = static_cast<int>(first % a.k);
  float x[kChunk] = {};
#pragma unroll
  for (int part = 0; inside && part < kChunk; part += 8)
    load_vector(*reinterpret_cast<float(*)[8]>(x + part), src + first + part);
  if (a.value) {  // the same in every thread
    Chunk chunk = {};
    if (inside) chunk = load_chunk(a.value + first);
    transform(chunk, length, ChunkSigns(chunk_signs(signs, length, place)), place);
    float transformed[kChunk];
    unpack(transformed, chunk);
    if (inside) {
      const std::int64_t block = place / block_length(a.format.granularity);
      const std::uint8_t scale = a.scales[scale_index(a.format.granularity, a.rows, a.k, first / a.k, block)];
#pragma unroll
      for (int i = 0; i < kChunk; ++i)
        if (fp4_clips(transformed[i], scale)) x[i] = 0;
    }
  }
  hadamard_sums(x, length, place);
  if (!inside) return;
  const float factor = hadamard_factor(length);
  const std::uint32_t minus = chunk_signs(signs, length, place);
#pragma unroll
  for (int part = 0; part < kChunk; part += 8) {
    float sum[8] = {}, out[8];
    if (a.accumulate) load_vector(sum, dst + first + part);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = sum[i] + x[part + i] * (minus >> (part + i) & 1u ? -factor : factor);
    store_vector(dst + first + part, out);
  }
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_inverse_hadamard(const ops::InverseHadamard& op) {
  using namespace cuda;
  const InverseArgs args{op.value.empty() ? nullptr : op.value.as<std::uint16_t>(),
                         op.value.empty() ? nullptr : op.operand.scale.as<std::uint8_t>(),
                         op.operand.format,
                         op.dst.rows,
                         op.dst.cols,
                         op.accumulate};
  const std::int64_t chunks = op.dst.size() / kChunk;
  const auto blocks = static_cast<unsigned>((chunks + kInverseThreads - 1) / kInverseThreads);
  with_type(op.dst.dtype, [&](auto to) {
    with_type(op.src.dtype, [&](auto from) {
      inverse_hadamard_kernel<<<blocks, kInverseThreads, 0, stream()>>>(op.dst.as<decltype(to)>(),
                                                                        op.src.as<decltype(from)>(), args);
    });
  });
  launched("inverse_hadamard");
}

}  // namespace precbench
