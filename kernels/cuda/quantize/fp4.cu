// FP4 forms of a BF16 matrix: e2m1 codes, two a byte, their blocks' scales and the tensor's amax. The arithmetic is
// numerics/nvfp4.h's, so that codes are the CPU device's, bit for bit.
//
// Two kernels for a form:
//   prepare  reads the value; turns it to the form's order, does the Hadamard transform, writes what comes of that in
//            BF16, and finds its amax. Where the form has the value's order and no transform, it finds the amax alone.
//   cast     a thread takes 16 neighbours: their block's amax, its scale, 16 codes of 8 bytes.
// Bytes per element: 4.5 of a plain row form, 6.5 else. A form that is cast in registers as FP8's are would need 2 less,
// of 10 or so that an emulated product moves for an operand, with the transform and the tensor's amax in every producer.
#include "kernels/cuda/quantize/fp4.h"

#include <algorithm>
#include <string>

#include "kernels/base/errors.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/numerics/nvfp4.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChunk = 16;  // elements of a thread: a block of NVFP4
constexpr int kTileRows = 64, kTileK = 128;
constexpr int kTileChunks = kTileK / kChunk;
constexpr int kBlocksPerSm = 4;
// Of a tile's row in shared memory, in BF16: an odd number of words, so that columns spread over the banks.
constexpr int kTilePitch = kTileK + 2;

/// Sixteen neighbouring BF16.
struct Chunk {
  Bf16x8 half[2];
};

__device__ inline Chunk load_chunk(const std::uint16_t* p) { return {{load_vector(p), load_vector(p + 8)}}; }

/// The larger of all magnitudes, as BF16 bits.
__device__ inline std::uint32_t max_of(const Chunk& x) {
  return max_half(max_of_pairs(max_of_pairs(x.half[0]), max_of_pairs(x.half[1])));
}

__device__ inline void unpack(float (&out)[kChunk], const Chunk& x) {
  float low[8], high[8];
  unpack(low, x.half[0]);
  unpack(high, x.half[1]);
#pragma unroll
  for (int i = 0; i < 8; ++i) out[i] = low[i], out[8 + i] = high[i];
}

/// hadamard_transform of a chunk, the butterflies in its order.
__device__ inline void transform(Chunk& chunk, std::uint32_t signs) {
  float x[kChunk];
  unpack(x, chunk);
  hadamard_transform(x, signs);
#pragma unroll
  for (int p = 0; p < 8; ++p) chunk.half[p / 4].pair[p % 4] = pack(x[2 * p], x[2 * p + 1]);
}

struct PrepareArgs {
  const std::uint16_t* value;
  std::uint16_t* out;    // [rows, k]; null: the amax alone
  std::uint32_t* parts;  // maxima of the grid's blocks, bits of FP32; null: not wanted
  std::int64_t rows, k;  // of the form
  bool transformed;
  std::uint32_t signs;
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
      if (row0 + r >= a.rows || k0 + c >= a.k) continue;
      const std::int64_t at = (row0 + r) * a.k + k0 + c;
      Chunk x;
      if constexpr (kColumns) {
        const auto* words = reinterpret_cast<const std::uint32_t*>(&tile[r][c]);
#pragma unroll
        for (int p = 0; p < 8; ++p) x.half[p / 4].pair[p % 4] = words[p];
      } else {
        x = load_chunk(a.value + at);
      }
      if (a.transformed) transform(x, a.signs);
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
  std::uint32_t* amax;         // written: bits of FP32
  const std::uint32_t* parts;  // whose maximum it is
  int count;
  std::int64_t rows, k;
  Granularity granularity;
  // The random bytes of elements, by their place in the value (RandomStream).
  const std::uint32_t* word;
  std::uint32_t stream;
  std::int64_t first_row, width;
  bool columns;
};

/// The random bytes of a row's elements from k on, four to a word.
__device__ inline void draw(std::uint32_t (&words)[kChunk / 4], const CastArgs& a, std::uint64_t seed,
                            std::int64_t row, std::int64_t k) {
  if (!a.columns) {
    const auto first = static_cast<std::uint64_t>((a.first_row + row) * a.width + k) / 4;
#pragma unroll
    for (int i = 0; i < kChunk / 4; ++i) words[i] = random_bits(seed, first + i);
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    const auto at = static_cast<std::uint64_t>((a.first_row + k + i) * a.width + row);
    const std::uint32_t byte = random_byte(seed, at) << (8 * (i % 4));
    words[i / 4] = i % 4 == 0 ? byte : words[i / 4] | byte;
  }
}

/// A persistent grid over chunks. kSquare: 16 neighbouring lanes have the rows of a 16 x 16 block.
template <bool kSquare, bool kStochastic>
__global__ void __launch_bounds__(kThreads) cast_kernel(const CastArgs a) {
  __shared__ std::uint32_t buffer[kWarp];
  std::uint32_t amax = 0;
  for (int i = threadIdx.x; i < a.count; i += kThreads) amax = max(amax, a.parts[i]);
  amax = block_max(amax, buffer);
  if (blockIdx.x == 0 && threadIdx.x == 0) *a.amax = amax;
  const float tensor_scale = nvfp4_tensor_scale(__uint_as_float(amax));
  const std::uint64_t seed = kStochastic ? stream_seed(a.word ? *a.word : 0, a.stream) : 0;

  const auto blocks = static_cast<std::uint32_t>(a.k / kChunk);
  const auto padded_rows = static_cast<std::uint32_t>(kSquare ? (a.rows + 15) / 16 * 16 : a.rows);
  const std::uint32_t chunks = padded_rows * blocks, stride = gridDim.x * kThreads;
  // Whole warps stay in the loop, for the exchange between lanes.
  for (std::uint32_t first = blockIdx.x * kThreads + threadIdx.x / kWarp * kWarp; first < chunks;
       first += stride) {
    const std::uint32_t i = first + threadIdx.x % kWarp;
    const std::int64_t row = kSquare ? i / 16 / blocks * 16 + i % 16 : i / blocks;
    const std::int64_t block = kSquare ? i / 16 % blocks : i % blocks;
    const bool inside = i < chunks && row < a.rows;
    const std::int64_t at = row * a.k + block * kChunk;
    Chunk chunk = {};
    if (inside) chunk = load_chunk(a.x + at);
    std::uint32_t largest = max_of(chunk);
    if (kSquare) {
#pragma unroll
      for (int step = 1; step < 16; step *= 2)
        largest = max(largest, __shfl_xor_sync(kAllLanes, largest, step));
    }
    if (!inside) continue;
    const std::uint8_t scale = nvfp4_block_scale(__uint_as_float(largest << 16), tensor_scale);
    const float multiply = nvfp4_multiplier(scale, tensor_scale);
    a.scales[scale_index(a.granularity, a.rows, a.k, row, block)] = scale;
    float x[kChunk];
    unpack(x, chunk);
    std::uint32_t words[kChunk / 4];
    if (kStochastic) draw(words, a, seed, row, block * kChunk);
    std::uint32_t codes[2] = {};
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const float scaled = x[j] * multiply;
      const std::uint32_t code =
          kStochastic ? e2m1_encode_stochastic(scaled, words[j / 4] >> (8 * (j % 4))) : e2m1_encode(scaled);
      codes[j / 8] |= code << (4 * (j % 8));
    }
    *reinterpret_cast<uint2*>(a.codes + at / 2) = make_uint2(codes[0], codes[1]);
  }
}

int grid_of(const CudaDevice& device, std::int64_t needed) {
  return static_cast<int>(std::min<std::int64_t>(needed, std::int64_t{kBlocksPerSm} * device.sm_count()));
}

/// Launches prepare_kernel and returns its grid.
int launch_prepare(CudaDevice& device, const QuantFormat& format, const Tensor& value, bool columns,
                   std::uint16_t* out, std::uint32_t* parts) {
  const std::int64_t rows = columns ? value.cols : value.rows, k = columns ? value.rows : value.cols;
  const PrepareArgs args{value.as<std::uint16_t>(),
                         out,
                         parts,
                         rows,
                         k,
                         format.transform != Transform::none,
                         format.transform == Transform::hadamard_te ? kHadamardSigns : 0};
  const int k_tiles = static_cast<int>(detail::blocks_of(k, kTileK));
  const int tiles = static_cast<int>(detail::blocks_of(rows, kTileRows)) * k_tiles;
  const int grid = grid_of(device, tiles);
  (columns ? prepare_kernel<true> : prepare_kernel<false>)<<<grid, kThreads, 0, device.stream()>>>(
      args, k_tiles, tiles);
  return grid;
}

bool stands_ready(const QuantFormat& format, bool columns) {
  return !columns && format.transform == Transform::none;
}

void check_shape(const Tensor& value, bool columns) {
  const std::string what = "the CUDA device makes FP4 of matrices whose ";
  if (value.cols % kChunk != 0) throw Unsupported(what + "columns are a multiple of 16");
  if (columns && value.rows % kChunk != 0) throw Unsupported(what + "rows are a multiple of 16");
  if (value.size() / kChunk >= std::int64_t{1} << 31)
    throw Unsupported(what + "elements are fewer than 2^35");
}

void quantize_form(CudaDevice& device, const GemmOperand& form, const Tensor& value,
                   const RandomStream& random, bool columns) {
  check_shape(value, columns);
  const QuantFormat& format = form.format;
  const std::int64_t rows = form.data.rows, k = form.data.cols;
  const std::size_t matrix_bytes = stands_ready(format, columns) ? 0 : prepared_bytes(value);
  auto* scratch = static_cast<std::byte*>(
      device.scratch(matrix_bytes + kBlocksPerSm * device.sm_count() * sizeof(std::uint32_t)));
  auto* out = matrix_bytes ? reinterpret_cast<std::uint16_t*>(scratch) : nullptr;
  auto* parts = reinterpret_cast<std::uint32_t*>(scratch + matrix_bytes);
  const int count = launch_prepare(device, format, value, columns, out, parts);
  if (form.scale.size() != rows * (k / kChunk))  // its padding
    PRECBENCH_CHECK(cudaMemsetAsync(form.scale.data, 0, form.scale.bytes(), device.stream()));

  const CastArgs args{out ? out : value.as<std::uint16_t>(),
                      form.data.as<std::uint8_t>(),
                      form.scale.as<std::uint8_t>(),
                      form.amax.as<std::uint32_t>(),
                      parts,
                      count,
                      rows,
                      k,
                      format.granularity,
                      random.word.empty() ? nullptr : random.word.as<std::uint32_t>(),
                      random.stream + (columns ? 1u : 0u),
                      random.first_row,
                      value.cols,
                      columns};
  const bool square = format.granularity == Granularity::block_16x16;
  const bool stochastic = format.element_rounding == ElementRounding::stochastic;
  const auto kernel = square ? (stochastic ? cast_kernel<true, true> : cast_kernel<true, false>)
                             : (stochastic ? cast_kernel<false, true> : cast_kernel<false, false>);
  const std::int64_t chunks = detail::padded(rows, square ? 16 : 1) * (k / kChunk);
  kernel<<<grid_of(device, detail::blocks_of(chunks, kThreads)), kThreads, 0, device.stream()>>>(args);
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
                                  bool columns, void* scratch) {
  if (stands_ready(format, columns)) return value.as<std::uint16_t>();
  check_shape(value, columns);
  auto* out = static_cast<std::uint16_t*>(scratch);
  launch_prepare(device, format, value, columns, out, nullptr);
  return out;
}

}  // namespace precbench::cuda
