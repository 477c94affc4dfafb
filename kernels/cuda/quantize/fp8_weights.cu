// FP8 weights exchanged between ranks: the amax of a shard, the cast of a shard with the whole matrix's
// scale, the transposition that makes dgrad's copy from fprop's, and dgrad's copy assembled from shards.
//
// Bytes per element: amax reads the master's 4 (or BF16's 2), the cast reads them again and writes 1, the
// transposition reads 1 and writes 1. A transposition block moves a tile of 128 x 128 codes twice through
// shared memory, four codes per word, so that global memory is read and written in 16-byte vectors.
#include <algorithm>

#include "kernels/cuda/elementwise/elements.cuh"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/quantize/gemm_operands.cuh"

namespace precbench {
namespace cuda {
namespace {

constexpr int kAmaxBlocksPerSm = 8;

/// Raises out, the bits of a non-negative FP32, from zero. Integers order like the magnitudes, with NaN last.
template <class T>
__global__ void __launch_bounds__(kElementThreads)
    amax_kernel(std::uint32_t* out, const T* x, std::int64_t size, bool vectors) {
  wait_for_work_before();
  __shared__ std::uint32_t buffer[kWarp];
  std::uint32_t largest = 0;
  for_elements(x, size, vectors, [&](const float(&v)[8]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) largest = max(largest, __float_as_uint(v[j]) & 0x7FFFFFFFu);
  });
  largest = block_max(largest, buffer);
  if (threadIdx.x == 0) atomicMax(out, largest);
}

template <class T>
__global__ void __launch_bounds__(kElementThreads)
    quantize_with_amax_kernel(const CopyArgs copy, const T* value, const std::uint32_t* amax,
                              std::int64_t size, bool vectors) {
  wait_for_work_before();
  const float multiply = make_scale(copy, *amax, 0, blockIdx.x == 0 && threadIdx.x == 0);
  const std::int64_t i = first_element();
  if (i >= size) return;
  float v[8];
  load_elements(v, value, i, size, vectors);
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] *= multiply;
  std::uint32_t low = 0, high = 0;
  with_fp8(copy.dtype, copy.dropped_bits, [&](auto dtype) {
    low = fp8x4(v[0], v[1], v[2], v[3], dtype);
    high = fp8x4(v[4], v[5], v[6], v[7], dtype);
  });
  if (vectors && i + 8 <= size) {
    *reinterpret_cast<uint2*>(copy.data + i) = make_uint2(low, high);
    return;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j)
    if (i + j < size) copy.data[i + j] = static_cast<std::uint8_t>((j < 4 ? low : high) >> (8 * (j % 4)));
}

constexpr int kSide = 128;         // codes along a tile's edge
constexpr int kWords = kSide / 4;  // the same in words
constexpr int kTransposeThreads = 256;

/// Scales: one per tensor, or one per tile.
__global__ void __launch_bounds__(kTransposeThreads)
    transpose_kernel(std::uint8_t* dst, float* dst_scale, const std::uint8_t* src, const float* src_scale,
                     std::int64_t rows, std::int64_t k, bool blocks) {
  wait_for_work_before();
  __shared__ std::uint32_t in[kSide][kWords + 1], out[kSide][kWords + 1];
  const std::int64_t row0 = static_cast<std::int64_t>(blockIdx.y) * kSide;
  const std::int64_t k0 = static_cast<std::int64_t>(blockIdx.x) * kSide;
  if (threadIdx.x == 0 && (blocks || (blockIdx.x == 0 && blockIdx.y == 0))) {
    const Granularity g = blocks ? Granularity::block_128x128 : Granularity::tensor;
    dst_scale[scale_index(g, k, rows, k0, blockIdx.y)] = src_scale[scale_index(g, rows, k, row0, blockIdx.x)];
  }
  for (int i = threadIdx.x; i < kSide * kSide / 16; i += kTransposeThreads) {
    const int r = i / (kSide / 16), word = i % (kSide / 16) * 4;
    uint4 v = {};
    if (row0 + r < rows && k0 + word * 4 < k)
      v = *reinterpret_cast<const uint4*>(src + (row0 + r) * k + k0 + word * 4);
    in[r][word] = v.x, in[r][word + 1] = v.y, in[r][word + 2] = v.z, in[r][word + 3] = v.w;
  }
  __syncthreads();
  // Squares of 4 x 4 codes: four words of four rows become four words of four columns.
  for (int i = threadIdx.x; i < kWords * kWords; i += kTransposeThreads) {
    const int rw = i / kWords, kw = i % kWords;
    std::uint32_t word[4] = {in[4 * rw][kw], in[4 * rw + 1][kw], in[4 * rw + 2][kw], in[4 * rw + 3][kw]};
    transpose_4x4(word);
#pragma unroll
    for (int c = 0; c < 4; ++c) out[4 * kw + c][rw] = word[c];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kSide * kSide / 16; i += kTransposeThreads) {
    const int c = i / (kSide / 16), word = i % (kSide / 16) * 4;
    if (k0 + c < k && row0 + word * 4 < rows)
      *reinterpret_cast<uint4*>(dst + (k0 + c) * rows + row0 + word * 4) =
          make_uint4(out[c][word], out[c][word + 1], out[c][word + 2], out[c][word + 3]);
  }
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_amax(const ops::Amax& op) {
  using namespace cuda;
  PRECBENCH_CHECK(cudaMemsetAsync(op.out.data, 0, sizeof(float), stream()));
  if (const std::int64_t size = op.x.size()) {
    const unsigned blocks =
        std::min(element_blocks(size), static_cast<unsigned>(sm_count() * kAmaxBlocksPerSm));
    with_type(op.x.dtype, [&](auto type) {
      amax_kernel<<<blocks, kElementThreads, 0, stream()>>>(op.out.as<std::uint32_t>(),
                                                            op.x.as<decltype(type)>(), size, aligned(op.x));
    });
  }
  launched("amax");
}

void CudaDevice::do_quantize_with_amax(const ops::QuantizeWithAmax& op) {
  using namespace cuda;
  CopyArgs args;
  args.data = op.operand.data.as<std::uint8_t>();
  args.scale = op.operand.scale.data;
  args.dtype = op.operand.format.dtype;
  args.scale_type = op.operand.format.scale;
  args.dropped_bits = op.operand.format.dropped_bits;
  args.delayed = op.operand.format.delayed();
  args.margin = op.operand.format.history.margin;
  const std::int64_t size = op.value.size();
  const bool vectors = aligned(op.value) && aligned(op.operand.data);
  with_type(op.value.dtype, [&](auto type) {
    quantize_with_amax_kernel<<<std::max(1u, element_blocks(size)), kElementThreads, 0, stream()>>>(
        args, op.value.as<decltype(type)>(), op.amax.as<std::uint32_t>(), size, vectors);
  });
  launched("quantize_with_amax");
}

void CudaDevice::do_transpose(const ops::Transpose& op) {
  using namespace cuda;
  const std::int64_t rows = op.src.data.rows, k = op.src.data.cols;
  const bool blocks = op.src.format.granularity == Granularity::block_128x128;
  if (blocks)
    PRECBENCH_CHECK(cudaMemsetAsync(op.dst.scale.data, 0, op.dst.scale.bytes(), stream()));  // its padding
  const dim3 grid(static_cast<unsigned>((k + kSide - 1) / kSide),
                  static_cast<unsigned>((rows + kSide - 1) / kSide));
  transpose_kernel<<<grid, kTransposeThreads, 0, stream()>>>(
      op.dst.data.as<std::uint8_t>(), op.dst.scale.as<float>(), op.src.data.as<std::uint8_t>(),
      op.src.scale.as<float>(), rows, k, blocks);
  launched("transpose");
}

void CudaDevice::do_copy_columns(const ops::CopyColumns& op) {
  const bool into = op.dst.cols >= op.src.cols;
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<std::size_t>(bytes_of(op.src.dtype, elements));
  };
  PRECBENCH_CHECK(cudaMemcpy2DAsync(op.dst.as<std::byte>() + (into ? bytes(op.first) : 0), bytes(op.dst.cols),
                                    op.src.as<std::byte>() + (into ? 0 : bytes(op.first)), bytes(op.src.cols),
                                    bytes(std::min(op.dst.cols, op.src.cols)),
                                    static_cast<std::size_t>(op.src.rows), cudaMemcpyDeviceToDevice,
                                    stream()));
  launched("copy_columns");
}

}  // namespace precbench
