// FP4 copies of a BF16 matrix: e2m1 codes, two per byte, their block scales and, for e4m3 scales, the
// tensor's amax. The arithmetic is that of numerics/nvfp4.h and fp4.h, so that codes equal the CPU device's,
// bit for bit.
//
// Two kernels per copy:
//   prepare  reads the value, converts it to the copy's order, applies the Hadamard transform, writes the
//            result in BF16, and computes its amax. Without transposition and transform it computes only the
//            amax, and is skipped if that is not needed.
//   cast     one thread per block: its scale and its codes.
// Bytes per element: 4.5 for a plain rowwise copy, 6.5 otherwise. Casting in registers, as for FP8, would
// save 2 of about 10 that an emulated GEMM moves per operand, but would put the transform and the tensor's
// amax into every producer.
#include "kernels/cuda/quantize/fp4_kernels.h"

#include <algorithm>
#include <string>

#include "kernels/base/errors.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/quantize/fp4_block.cuh"
#include "kernels/cuda/quantize/fp4_prepare.cuh"
#include "kernels/numerics/custom_format.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench::cuda {
namespace {

struct CastArgs {
  const std::uint16_t* x;  // [rows, k]
  std::uint8_t *codes, *scales;
  std::uint32_t* amax;         // output: FP32 bits; null: not requested
  const std::uint32_t* parts;  // partial maxima
  int count;
  std::int64_t rows, k;
  QuantFormat format;
  // Random numbers of elements, by their position in the value (RandomStream).
  const std::uint32_t* word;
  std::uint32_t stream;
  RowMap value_rows;  // in the matrix of all ranks
  std::int64_t width;
  bool columns;

  __device__ std::uint64_t place(std::int64_t row, std::int64_t k_index) const {
    return place_of_element(value_rows, width, columns, row, k_index);
  }
};

/// Draws the random bytes of a row's elements from k on, four per word. The whole warp must call it. For a
/// columnwise copy, four adjacent lanes have consecutive rows, the first a multiple of 4: their bytes share
/// words, and each lane draws every fourth word.
template <int kBlock>
__device__ inline void draw(std::uint32_t (&words)[kBlock / 4], const CastArgs& a, std::uint64_t seed,
                            std::int64_t row, std::int64_t k) {
  if (!a.columns) {
    const std::uint64_t first = a.place(row, k) / 4;
#pragma unroll
    for (int i = 0; i < kBlock / 4; ++i) words[i] = random_bits(seed, first + i);
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % kWarp, mine = lane % 4;
  std::uint32_t drawn[kBlock / 4];
#pragma unroll
  for (int n = 0; n < kBlock / 4; ++n)
    drawn[n] = random_bits(seed, a.place(row - mine, k + 4 * n + mine) / 4);
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    const std::uint32_t word = __shfl_sync(kAllLanes, drawn[i / 4], lane - mine + i % 4);
    const std::uint32_t byte = (word >> (8 * mine) & 0xFFu) << (8 * (i % 4));
    words[i / 4] = i % 4 == 0 ? byte : words[i / 4] | byte;
  }
}

/// Returns the sum over `lanes` adjacent lanes, whose blocks share a correction, in order. The whole warp
/// must call it.
__device__ inline EdenSums sum_of_group(const EdenSums& own, int lanes) {
  const int first = static_cast<int>(threadIdx.x) % kWarp / lanes * lanes;
  EdenSums all;
  for (int i = 0; i < lanes; ++i)
    all.add(
        {__shfl_sync(kAllLanes, own.squares, first + i), __shfl_sync(kAllLanes, own.products, first + i)});
  return all;
}

/// A thread's block.
template <int kBlock>
struct Block {
  static constexpr int kChunks = kBlock / kChunk;

  Chunk x[kChunks];
  float amax;           // of its square, if blocks are square
  std::int64_t row, k;  // of the first element
  std::uint8_t scale;   // the resulting scale
  std::uint32_t words[2 * kChunks];
};

/// Computes the codes of an NVFP4 or MXFP4 block. With finite amax and factor these are fp4.h's without its
/// special cases. `random`: bytes for stochastic rounding.
template <bool kStochastic, int kBlock>
__device__ inline void cast_plainly(Block<kBlock>& block, float factor,
                                    const std::uint32_t (&random)[kBlock / 4]) {
#pragma unroll
  for (int part = 0; part < Block<kBlock>::kChunks; ++part) {
    const Chunk x = magnitudes_of(block.x[part]);
    SixteenCodes codes;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const float scaled = element(x, i) * factor;
      if constexpr (kStochastic)
        codes.put(i, E2m1Magnitude(scaled, random[(part * kChunk + i) / 4] >> (8 * (i % 4)) & 0xFFu));
      else
        codes.put(i, E2m1Magnitude(scaled));
    }
    codes.put_signs(block.x[part]);
    block.words[2 * part] = codes.words[0];
    block.words[2 * part + 1] = codes.words[1];
  }
}

/// Computes scale and codes of a block in fp4.h's order. The whole warp must call it, except if kScheme has a
/// fast path.
template <Scheme kScheme, bool kStochastic, int kBlock>
__device__ inline void cast_block(Block<kBlock>& block, const CastArgs& a, const QuantFormat& format,
                                  float amax, std::uint64_t seed) {
  float x[kBlock];
#pragma unroll
  for (int part = 0; part < Block<kBlock>::kChunks; ++part) unpack(x + part * kChunk, block.x[part]);
  float of_block[1] = {block.amax};  // one block: other lanes have the others
  std::uint8_t scale[1], four[1] = {};
  fp4_scales_of_amax(scale, format, of_block, amax);
  if (of_quartet2(kScheme)) {
    of_block[0] *= 1.5f;
    fp4_scales_of_amax(four, format, of_block, amax);
  }
  Fp4Block made[1];
  fp4_blocks<kBlock>(made, format, x, scale, four, amax);
  if (of_quartet2(kScheme) && format.eden) {
    EdenSums sums[1];
    float scaled[kBlock];  // declared here: kept for the codes below, it would take registers in every scheme
#pragma unroll
    for (int e = 0; e < kBlock; ++e) scaled[e] = made[0].scaled(x[e]);
    eden_sums<kBlock>(sums, scaled);
    if (kScheme == Scheme::quartet2) sums[0] = sum_of_group(sums[0], format.eden / kBlock);
    block.scale =
        eden_scale(made[0].scale, sums[0].correction(), random_bits(seed, a.place(block.row, block.k)));
  } else {
    block.scale = made[0].scale;
  }
  std::uint32_t random[kBlock / 4] = {};
  if (kStochastic) draw<kBlock>(random, a, seed, block.row, block.k);
  if (!of_quartet2(kScheme) && abs_bits(block.amax) < detail::kInfBits &&
      abs_bits(made[0].factor) < detail::kInfBits)
    return cast_plainly<kStochastic>(block, made[0].factor, random);
#pragma unroll
  for (int w = 0; w < kBlock / 8; ++w) {
    block.words[w] = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int e = w * 8 + j;
      const float scaled = made[0].scaled(x[e]);
      const std::uint32_t code =
          kStochastic ? e2m1_encode_stochastic(scaled, random[e / 4] >> (8 * (e % 4))) : e2m1_encode(scaled);
      block.words[w] |= code << (4 * j);
    }
  }
}

/// Fast path of the same; returns false if it does not apply.
template <Scheme kScheme>
__device__ inline bool cast_shortly(Block<kChunk>& block, const CastArgs& a, const Quartet2Tensor& tensor,
                                    std::uint64_t seed) {
  const Chunk x = magnitudes_of(block.x[0]);
  if (!tensor.plain || !none_is_tiny(x)) return false;
  MadeBlock made;
  if (kScheme == Scheme::four_over_six
          ? !cast_four_over_six(made, x, block.amax, tensor)
          : !cast_eden(made, x, block.amax, tensor, random_bits(seed, a.place(block.row, block.k))))
    return false;
  made.codes.put_signs(block.x[0]);
  block.scale = made.scale;
  block.words[0] = made.codes.words[0];
  block.words[1] = made.codes.words[1];
  return true;
}

/// Returns the format with the scheme's properties as constants.
template <Scheme kScheme, bool kSquare>
__device__ inline QuantFormat format_of(QuantFormat format) {
  format.granularity = kScheme == Scheme::mxfp4 ? Granularity::block_1x32
                       : kSquare                ? Granularity::block_16x16
                                                : Granularity::block_1x16;
  format.scale = kScheme == Scheme::mxfp4 ? ScaleType::ue8m0 : ScaleType::e4m3;
  if (kScheme == Scheme::nvfp4) format.global_scale = 448;
  if (kScheme == Scheme::four_over_six || kScheme == Scheme::eden) {
    format.four_over_six = kScheme == Scheme::four_over_six;
    format.eden = kScheme == Scheme::eden ? 16 : 0;
  }
  return format;
}

/// A persistent grid over blocks. kSquare: 16 adjacent lanes have the rows of a 16 x 16 block.
template <Scheme kScheme, bool kSquare, bool kStochastic>
__global__ void __launch_bounds__(kFp4Threads, kFp4BlocksPerSm) cast_kernel(const CastArgs a) {
  wait_for_work_before();
  constexpr int kBlock = kScheme == Scheme::mxfp4 ? 32 : 16;
  constexpr bool kShort = kScheme == Scheme::four_over_six || kScheme == Scheme::eden;
  __shared__ std::uint32_t buffer[kWarp];
  const QuantFormat format = format_of<kScheme, kSquare>(a.format);
  float amax = 0;
  if (kScheme != Scheme::mxfp4) {
    std::uint32_t largest = 0;
    for (int i = threadIdx.x; i < a.count; i += kFp4Threads) largest = max(largest, a.parts[i]);
    largest = block_max(largest, buffer);
    if (blockIdx.x == 0 && threadIdx.x == 0) *a.amax = largest;
    amax = __uint_as_float(largest);
  }
  const bool random = kStochastic || (of_quartet2(kScheme) && format.eden);
  const std::uint64_t seed = random ? stream_seed(a.word ? *a.word : 0, a.stream) : 0;
  const Quartet2Tensor tensor(format, amax);

  // log2 of the number of adjacent lanes that have rows of one block.
  const int together = kSquare ? 4 : kStochastic && a.columns ? 2 : 0;
  const auto blocks = static_cast<std::uint32_t>(a.k / kBlock);
  const auto padded_rows = static_cast<std::uint32_t>(kSquare ? (a.rows + 15) / 16 * 16 : a.rows);
  const std::uint32_t total = padded_rows * blocks, stride = gridDim.x * kFp4Threads;
  // Whole warps stay in the loop, for the exchange between lanes.
  for (std::uint32_t first = blockIdx.x * kFp4Threads + threadIdx.x / kWarp * kWarp; first < total;
       first += stride) {
    const std::uint32_t i = first + threadIdx.x % kWarp;
    Block<kBlock> block;
    block.row = (i >> together) / blocks << together | (i & ((1u << together) - 1));
    const std::int64_t of_row = (i >> together) % blocks;
    block.k = of_row * kBlock;
    const bool inside = i < total && block.row < a.rows;
    const std::int64_t at = block.row * a.k + block.k;
    std::uint32_t largest = 0;
#pragma unroll
    for (int part = 0; part < kBlock / kChunk; ++part) {
      block.x[part] = {};
      if (inside) block.x[part] = load_chunk(a.x + at + part * kChunk);
      largest = max(largest, max_of(block.x[part]));
    }
    if (kSquare) {
#pragma unroll
      for (int step = 1; step < 16; step *= 2)
        largest = max(largest, __shfl_xor_sync(kAllLanes, largest, step));
    }
    block.amax = __uint_as_float(largest << 16);
    if constexpr (kShort) {
      if (!cast_shortly<kScheme>(block, a, tensor, seed))
        cast_block<kScheme, kStochastic>(block, a, format, amax, seed);
    } else {
      cast_block<kScheme, kStochastic>(block, a, format, amax, seed);
    }
    if (!inside) continue;
    a.scales[scale_index(format.granularity, a.rows, a.k, block.row, of_row)] = block.scale;
#pragma unroll
    for (int part = 0; part < kBlock / kChunk; ++part)
      *reinterpret_cast<uint2*>(a.codes + (at + part * kChunk) / 2) =
          make_uint2(block.words[2 * part], block.words[2 * part + 1]);
  }
}

int grid_of(const CudaDevice& device, std::int64_t needed) {
  return static_cast<int>(std::min<std::int64_t>(needed, std::int64_t{kFp4BlocksPerSm} * device.sm_count()));
}

const std::uint32_t* word_of(const RandomStream& random) {
  return random.word.empty() ? nullptr : random.word.as<std::uint32_t>();
}

/// Launches prepare_kernel and returns its grid.
int launch_prepare(CudaDevice& device, const QuantFormat& format, const Tensor& value,
                   const RandomStream& random, bool columns, std::uint16_t* out, std::uint32_t* parts) {
  const std::int64_t rows = columns ? value.cols : value.rows, k = columns ? value.rows : value.cols;
  const PrepareArgs args{value.as<std::uint16_t>(),
                         out,
                         parts,
                         rows,
                         k,
                         format.transform,
                         word_of(random),
                         random.sign_stream(format.transform.signs, columns)};
  const int k_tiles = static_cast<int>(detail::blocks_of(k, kFp4TileK));
  const int tiles = static_cast<int>(detail::blocks_of(rows, kFp4TileRows)) * k_tiles;
  const int grid = grid_of(device, tiles);
  const auto launch = [&](auto length) {
    (columns
         ? prepare_kernel<true, length>
         : prepare_kernel<false, length>)<<<grid, kFp4Threads, 0, device.stream()>>>(args, k_tiles, tiles);
  };
  if (format.transform)
    with_length(format.transform.length, launch);
  else
    launch(std::integral_constant<int, 0>());
  return grid;
}

bool stands_ready(const QuantFormat& format, bool columns) { return !columns && !format.transform; }

void check_shape(const QuantFormat& format, const Tensor& value, bool columns) {
  const std::string what = "the CUDA device makes FP4 of matrices whose ";
  const std::int64_t k = columns ? value.rows : value.cols;
  if (value.cols % kChunk != 0) throw Unsupported(what + "columns are a multiple of 16");
  if (k % std::max<std::int64_t>(block_length(format.granularity), format.transform.length) != 0)
    throw Unsupported(what + "contracted length is a multiple of blocks and transforms");
  if (value.size() / kChunk >= std::int64_t{1} << 31)
    throw Unsupported(what + "elements are fewer than 2^35");
}

using CastKernel = void (*)(CastArgs);

CastKernel kernel_of(const QuantFormat& format) {
  const bool stochastic = format.element_rounding == ElementRounding::stochastic;
  if (format.scale == ScaleType::ue8m0)
    return stochastic ? cast_kernel<Scheme::mxfp4, false, true> : cast_kernel<Scheme::mxfp4, false, false>;
  if (in_order_of_quartet2(format)) {
    if (format.four_over_six && !format.eden) return cast_kernel<Scheme::four_over_six, false, false>;
    if (!format.four_over_six && format.eden == 16) return cast_kernel<Scheme::eden, false, false>;
    return cast_kernel<Scheme::quartet2, false, false>;
  }
  if (block_rows(format.granularity) > 1)
    return stochastic ? cast_kernel<Scheme::nvfp4, true, true> : cast_kernel<Scheme::nvfp4, true, false>;
  return stochastic ? cast_kernel<Scheme::nvfp4, false, true> : cast_kernel<Scheme::nvfp4, false, false>;
}

void quantize_copy(CudaDevice& device, const GemmOperand& operand, const Tensor& value,
                   const RandomStream& random, bool columns) {
  const QuantFormat& format = operand.format;
  check_shape(format, value, columns);
  const std::int64_t rows = operand.data.rows, k = operand.data.cols,
                     block = block_length(format.granularity);
  const std::size_t matrix_bytes = stands_ready(format, columns) ? 0 : prepared_bytes(value);
  auto* scratch = static_cast<std::byte*>(
      device.scratch(matrix_bytes + kFp4BlocksPerSm * device.sm_count() * sizeof(std::uint32_t)));
  auto* out = matrix_bytes ? reinterpret_cast<std::uint16_t*>(scratch) : nullptr;
  auto* parts = operand.amax.empty() ? nullptr : reinterpret_cast<std::uint32_t*>(scratch + matrix_bytes);
  const int count = out || parts ? launch_prepare(device, format, value, random, columns, out, parts) : 0;
  if (operand.scale.size() != rows * (k / block))  // its padding
    PRECBENCH_CHECK(cudaMemsetAsync(operand.scale.data, 0, operand.scale.bytes(), device.stream()));
  const CastArgs args{out ? out : value.as<std::uint16_t>(),
                      operand.data.as<std::uint8_t>(),
                      operand.scale.as<std::uint8_t>(),
                      operand.amax.empty() ? nullptr : operand.amax.as<std::uint32_t>(),
                      parts,
                      count,
                      rows,
                      k,
                      format,
                      word_of(random),
                      random.stream + (columns ? 1u : 0u),
                      random.rows,
                      value.cols,
                      columns};
  const std::int64_t blocks = detail::padded(rows, block_rows(format.granularity)) * (k / block);
  kernel_of(
      format)<<<grid_of(device, detail::blocks_of(blocks, kFp4Threads)), kFp4Threads, 0, device.stream()>>>(
      args);
}

}  // namespace

void quantize_fp4(CudaDevice& device, const QuantizedTensor& x) {
  if (is_fp4(x.rowwise)) quantize_copy(device, x.rowwise, x.value, x.random, false);
  if (is_fp4(x.columnwise)) quantize_copy(device, x.columnwise, x.value, x.random, true);
}

std::size_t prepared_bytes(const Tensor& value) {
  return static_cast<std::size_t>(detail::padded(value.size(), 128)) * sizeof(std::uint16_t);
}

const std::uint16_t* prepared_fp4(CudaDevice& device, const QuantFormat& format, const Tensor& value,
                                  const RandomStream& random, bool columns, void* scratch) {
  if (stands_ready(format, columns)) return value.as<std::uint16_t>();
  check_shape(format, value, columns);
  auto* out = static_cast<std::uint16_t*>(scratch);
  launch_prepare(device, format, value, random, columns, out, nullptr);
  return out;
}

}  // namespace precbench::cuda
