// FP4 forms of a BF16 matrix: e2m1 codes, two a byte, their blocks' scales and, of e4m3 scales, the tensor's amax. The
// arithmetic is that of numerics/nvfp4.h and fp4.h, so that codes are the CPU device's, bit for bit.
//
// Two kernels for a form:
//   prepare  reads the value; turns it to the form's order, does the Hadamard transform, writes what comes of that in
//            BF16, and finds its amax. Where the form has the value's order and no transform, it finds the amax alone, and
//            where nobody asks for that it does not run.
//   cast     a thread takes a block: its scale and its codes.
// Bytes per element: 4.5 of a plain row form, 6.5 else. A form that is cast in registers as FP8's are would need 2 less,
// of 10 or so that an emulated product moves for an operand, with the transform and the tensor's amax in every producer.
#include "kernels/cuda/quantize/fp4.h"

#include <algorithm>
#include <string>

#include "kernels/base/errors.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/quantize/hadamard.cuh"
#include "kernels/numerics/fp4.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTileRows = 64, kTileK = 128;
constexpr int kTileChunks = kTileK / kChunk;
constexpr int kBlocksPerSm = 4;
// Of a tile's row in shared memory, in BF16: an odd number of words, so that columns spread over the banks.
constexpr int kTilePitch = kTileK + 2;

struct PrepareArgs {
  const std::uint16_t* value;
  std::uint16_t* out;    // [rows, k]; null: the amax alone
  std::uint32_t* parts;  // maxima of the grid's blocks, bits of FP32; null: not wanted
  std::int64_t rows, k;  // of the form
  Transform transform;
  const std::uint32_t* word;  // of random signs; null: 0
  std::uint32_t sign_stream;
};

/// Turns a tile around in shared memory: 64 columns of the value, 128 rows.
__device__ inline void turn_tile(std::uint16_t (&tile)[kTileRows][kTilePitch], const PrepareArgs& a,
                                 std::int64_t row0, std::int64_t k0) {
  constexpr int kVectors = kTileRows / 8;
#pragma unroll
  for (int n = 0; n < kTileK * kVectors / kThreads; ++n) {
    const int i = static_cast<int>(threadIdx.x) + n * kThreads, k = i / kVectors, row = i % kVectors * 8;
    if (k0 + k >= a.k || row0 + row >= a.rows) continue;
    const Bf16x8 v = load_vector(a.value + (k0 + k) * a.rows + row0 + row);
#pragma unroll
    for (int j = 0; j < 8; ++j)
      tile[row + j][k] = static_cast<std::uint16_t>(v.pair[j / 2] >> (16 * (j % 2)));
  }
}

/// A persistent grid over tiles of the form. rows and k are multiples of 16 where kColumns, else k is.
template <bool kColumns>
__global__ void __launch_bounds__(kThreads) prepare_kernel(const PrepareArgs a, int k_tiles, int tiles) {
  __shared__ alignas(16) std::uint16_t tile[kColumns ? kTileRows : 1][kTilePitch];
  __shared__ std::uint32_t buffer[kWarp];
  __shared__ SignBits signs;
  leave_signs(signs, a.transform.signs, a.word, a.sign_stream);
  std::uint32_t largest = 0;
  for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
    const std::int64_t row0 = static_cast<std::int64_t>(t / k_tiles) * kTileRows;
    const std::int64_t k0 = static_cast<std::int64_t>(t % k_tiles) * kTileK;
    if constexpr (kColumns) {
      __syncthreads();  // the tile before has been read
      turn_tile(tile, a, row0, k0);
      __syncthreads();
    }
    for (int i = threadIdx.x; i < kTileRows * kTileChunks; i += kThreads) {
      const int r = i / kTileChunks, c = i % kTileChunks * kChunk;
      // Whole warps stay here, for a transform's exchange between lanes.
      const bool inside = row0 + r < a.rows && k0 + c < a.k;
      const std::int64_t at = (row0 + r) * a.k + k0 + c;
      Chunk x = {};
      if constexpr (kColumns) {
        const auto* words = reinterpret_cast<const std::uint32_t*>(&tile[r][c]);
#pragma unroll
        for (int p = 0; inside && p < 8; ++p) x.half[p / 4].pair[p % 4] = words[p];
      } else if (inside) {
        x = load_chunk(a.value + at);
      }
      if (a.transform) transform(x, a.transform.length, signs, c);
      if (!inside) continue;
      largest = max(largest, max_of(x));
      if (!a.out) continue;
      store_vector(a.out + at, x.half[0]);
      store_vector(a.out + at + 8, x.half[1]);
    }
  }
  if (!a.parts) return;
  largest = block_max(largest, buffer);
  if (threadIdx.x == 0) a.parts[blockIdx.x] = largest << 16;
}

struct CastArgs {
  const std::uint16_t* x;  // [rows, k]
  std::uint8_t *codes, *scales;
  std::uint32_t* amax;         // written: bits of FP32; null: not wanted
  const std::uint32_t* parts;  // whose maximum it is
  int count;
  std::int64_t rows, k;
  QuantFormat format;
  // The random numbers of elements, by their place in the value (RandomStream).
  const std::uint32_t* word;
  std::uint32_t stream;
  std::int64_t first_row, width;
  bool columns;

  __device__ std::uint64_t place(std::int64_t row, std::int64_t k_index) const {
    return static_cast<std::uint64_t>(columns ? (first_row + k_index) * width + row
                                              : (first_row + row) * width + k_index);
  }
};

/// The random bytes of a row's elements from k on, four to a word.
template <int kBlock>
__device__ inline void draw(std::uint32_t (&words)[kBlock / 4], const CastArgs& a, std::uint64_t seed,
                            std::int64_t row, std::int64_t k) {
  if (!a.columns) {
    const std::uint64_t first = a.place(row, k) / 4;
#pragma unroll
    for (int i = 0; i < kBlock / 4; ++i) words[i] = random_bits(seed, first + i);
    return;
  }
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    const std::uint32_t byte = random_byte(seed, a.place(row, k + i)) << (8 * (i % 4));
    words[i / 4] = i % 4 == 0 ? byte : words[i / 4] | byte;
  }
}

/// The sum over so many neighbouring lanes, whose blocks share a correction, in their order. The whole warp calls it.
__device__ inline EdenSums sum_of_group(const EdenSums& own, int lanes) {
  const int first = static_cast<int>(threadIdx.x) % kWarp / lanes * lanes;
  EdenSums all;
  for (int i = 0; i < lanes; ++i)
    all.add(
        {__shfl_sync(kAllLanes, own.squares, first + i), __shfl_sync(kAllLanes, own.products, first + i)});
  return all;
}

/// The kinds of scales, known where a kernel is compiled.
enum class Scheme { nvfp4, quartet2, mxfp4 };

/// A persistent grid over blocks. kSquare: 16 neighbouring lanes have the rows of a 16 x 16 block.
template <Scheme kScheme, bool kSquare, bool kStochastic>
__global__ void __launch_bounds__(kThreads) cast_kernel(const CastArgs a) {
  constexpr int kBlock = kScheme == Scheme::mxfp4 ? 32 : 16;
  __shared__ std::uint32_t buffer[kWarp];
  QuantFormat format = a.format;
  format.scale = kScheme == Scheme::mxfp4 ? ScaleType::ue8m0 : ScaleType::e4m3;
  if (kScheme == Scheme::nvfp4) format.global_scale = 448;
  std::uint32_t amax = 0;
  if (kScheme != Scheme::mxfp4) {
    for (int i = threadIdx.x; i < a.count; i += kThreads) amax = max(amax, a.parts[i]);
    amax = block_max(amax, buffer);
    if (blockIdx.x == 0 && threadIdx.x == 0) *a.amax = amax;
  }
  const bool random = kStochastic || (kScheme == Scheme::quartet2 && format.eden);
  const std::uint64_t seed = random ? stream_seed(a.word ? *a.word : 0, a.stream) : 0;

  const auto blocks = static_cast<std::uint32_t>(a.k / kBlock);
  const auto padded_rows = static_cast<std::uint32_t>(kSquare ? (a.rows + 15) / 16 * 16 : a.rows);
  const std::uint32_t total = padded_rows * blocks, stride = gridDim.x * kThreads;
  // Whole warps stay in the loop, for the exchange between lanes.
  for (std::uint32_t first = blockIdx.x * kThreads + threadIdx.x / kWarp * kWarp; first < total;
       first += stride) {
    const std::uint32_t i = first + threadIdx.x % kWarp;
    const std::int64_t row = kSquare ? i / 16 / blocks * 16 + i % 16 : i / blocks;
    const std::int64_t block = kSquare ? i / 16 % blocks : i % blocks, k = block * kBlock;
    const bool inside = i < total && row < a.rows;
    const std::int64_t at = row * a.k + k;
    float x[kBlock];
    std::uint32_t largest = 0;
#pragma unroll
    for (int part = 0; part < kBlock / kChunk; ++part) {
      Chunk chunk = {};
      if (inside) chunk = load_chunk(a.x + at + part * kChunk);
      largest = max(largest, max_of(chunk));
      unpack(x + part * kChunk, chunk);
    }
    if (kSquare) {
#pragma unroll
      for (int step = 1; step < 16; step *= 2)
        largest = max(largest, __shfl_xor_sync(kAllLanes, largest, step));
    }
    float of_block[1] = {__uint_as_float(largest << 16)};  // one block: lanes have the others
    const float of_tensor = __uint_as_float(amax);
    std::uint8_t scale[1], four[1] = {};
    fp4_scales_of_amax(scale, format, of_block, of_tensor);
    if (kScheme == Scheme::quartet2) {
      of_block[0] *= 1.5f;
      fp4_scales_of_amax(four, format, of_block, of_tensor);
    }
    Fp4Block made[1];
    fp4_blocks<kBlock>(made, format, x, scale, four, of_tensor);
    EdenSums sums[1];
    if (kScheme == Scheme::quartet2 && format.eden) {
      float scaled[kBlock];  // here alone: kept for the codes below, it takes registers of every scheme
#pragma unroll
      for (int e = 0; e < kBlock; ++e) scaled[e] = made[0].scaled(x[e]);
      eden_sums<kBlock>(sums, scaled);
      sums[0] = sum_of_group(sums[0], format.eden / kBlock);
    }
    if (!inside) continue;
    if (kScheme == Scheme::quartet2 && format.eden)
      made[0].scale = eden_scale(made[0].scale, sums[0].correction(), random_bits(seed, a.place(row, k)));
    a.scales[scale_index(format.granularity, a.rows, a.k, row, block)] = made[0].scale;
    std::uint32_t words[kBlock / 4];
    if (kStochastic) draw<kBlock>(words, a, seed, row, k);
#pragma unroll
    for (int part = 0; part < kBlock / kChunk; ++part) {
      std::uint32_t codes[2] = {};
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        const int e = part * kChunk + j;
        const float scaled = made[0].scaled(x[e]);
        const std::uint32_t code =
            kStochastic ? e2m1_encode_stochastic(scaled, words[e / 4] >> (8 * (e % 4))) : e2m1_encode(scaled);
        codes[j / 8] |= code << (4 * (j % 8));
      }
      *reinterpret_cast<uint2*>(a.codes + (at + part * kChunk) / 2) = make_uint2(codes[0], codes[1]);
    }
  }
}

int grid_of(const CudaDevice& device, std::int64_t needed) {
  return static_cast<int>(std::min<std::int64_t>(needed, std::int64_t{kBlocksPerSm} * device.sm_count()));
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
  const int k_tiles = static_cast<int>(detail::blocks_of(k, kTileK));
  const int tiles = static_cast<int>(detail::blocks_of(rows, kTileRows)) * k_tiles;
  const int grid = grid_of(device, tiles);
  (columns ? prepare_kernel<true> : prepare_kernel<false>)<<<grid, kThreads, 0, device.stream()>>>(
      args, k_tiles, tiles);
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
  if (in_order_of_quartet2(format)) return cast_kernel<Scheme::quartet2, false, false>;
  if (block_rows(format.granularity) > 1)
    return stochastic ? cast_kernel<Scheme::nvfp4, true, true> : cast_kernel<Scheme::nvfp4, true, false>;
  return stochastic ? cast_kernel<Scheme::nvfp4, false, true> : cast_kernel<Scheme::nvfp4, false, false>;
}

void quantize_form(CudaDevice& device, const GemmOperand& form, const Tensor& value,
                   const RandomStream& random, bool columns) {
  const QuantFormat& format = form.format;
  check_shape(format, value, columns);
  const std::int64_t rows = form.data.rows, k = form.data.cols, block = block_length(format.granularity);
  const std::size_t matrix_bytes = stands_ready(format, columns) ? 0 : prepared_bytes(value);
  auto* scratch = static_cast<std::byte*>(
      device.scratch(matrix_bytes + kBlocksPerSm * device.sm_count() * sizeof(std::uint32_t)));
  auto* out = matrix_bytes ? reinterpret_cast<std::uint16_t*>(scratch) : nullptr;
  auto* parts = form.amax.empty() ? nullptr : reinterpret_cast<std::uint32_t*>(scratch + matrix_bytes);
  const int count = out || parts ? launch_prepare(device, format, value, random, columns, out, parts) : 0;
  if (form.scale.size() != rows * (k / block))  // its padding
    PRECBENCH_CHECK(cudaMemsetAsync(form.scale.data, 0, form.scale.bytes(), device.stream()));
  const CastArgs args{out ? out : value.as<std::uint16_t>(),
                      form.data.as<std::uint8_t>(),
                      form.scale.as<std::uint8_t>(),
                      form.amax.empty() ? nullptr : form.amax.as<std::uint32_t>(),
                      parts,
                      count,
                      rows,
                      k,
                      format,
                      word_of(random),
                      random.stream + (columns ? 1u : 0u),
                      random.first_row,
                      value.cols,
                      columns};
  const std::int64_t blocks = detail::padded(rows, block_rows(format.granularity)) * (k / block);
  kernel_of(format)<<<grid_of(device, detail::blocks_of(blocks, kThreads)), kThreads, 0, device.stream()>>>(
      args);
}

}  // namespace

void quantize_fp4(CudaDevice& device, const QuantizedTensor& x) {
  if (is_fp4(x.rowwise)) quantize_form(device, x.rowwise, x.value, x.random, false);
  if (is_fp4(x.columnwise)) quantize_form(device, x.columnwise, x.value, x.random, true);
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
