// Gathers token rows into groups. Data copied unchanged, BF16 or quantized, is read once per token: a warp
// reads one piece of a row and writes it to each destination. Other warps of the same launch write the
// padding, and threads with one row each gather the scales. Rows after the last group are not written: nobody
// reads them. Copies that depend on the groups (columnwise), and all copies with weights, are made by the
// quantization engine from gathered rows.
#include <algorithm>
#include <string>
#include <utility>

#include "kernels/cuda/experts/router.cuh"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/quantize/produce.cuh"

namespace precbench {
namespace cuda {
namespace {

constexpr int kPermuteThreads = 256;
constexpr int kWarps = kPermuteThreads / kWarp;
constexpr int kVectors = 4;     // 16-byte vectors of a piece per lane
constexpr int kRowsToZero = 8;  // rows that a warp checks
constexpr int kScaleWords = 4;  // words of a row that a thread gathers

/// Division of numbers below 2^31 by a divisor known on the host.
class Divisor {
 public:
  explicit Divisor(int by) {
    while ((1 << shift_) < by) ++shift_;
    multiply_ = static_cast<std::uint32_t>(((std::uint64_t{1} << (31 + shift_)) + by - 1) / by);
  }
  __device__ int divide(int n) const {
    return static_cast<int>(__umulhi(static_cast<std::uint32_t>(n) * 2u, multiply_) >> shift_);
  }

 private:
  std::uint32_t multiply_;
  int shift_ = 0;
};

/// Rows of the source in their groups; with weights, times their slots'.
struct GatherSource : NoColumns {
  static constexpr int kOutputs = 1, kBatch = 8;
  using ColumnByColumn = void;  // a token's row is read for each of its experts
  struct Raw {
    Bf16x8 x;
    float weight;
  };
  Matrix x;
  const std::int32_t* slots;
  const float* weights;  // may be null
  Divisor top_k;
  const std::int32_t* end;  // the row after the last group
  std::int64_t rows, cols = x.cols;

  bool vectors() const { return x.vectors; }
  template <bool kFull>
  __device__ Raw fetch(std::int64_t row, std::int64_t col) const {
    const int slot = kFull || row < rows ? slots[row] : -1;
    if (slot < 0) return {};
    return {load<kFull>(x, top_k.divide(slot), col), weights ? weights[slot] : 1.0f};
  }
  __device__ void make(Bf16x8 (&out)[1], const Raw& raw, const Column&, std::int64_t, std::int64_t) const {
    out[0] = raw.x;
    if (!weights) return;
    float values[8];
    unpack(values, raw.x);
#pragma unroll
    for (float& v : values) v *= raw.weight;
    out[0] = pack(values);
  }
};

/// Rows of whole 16-byte vectors; `to` null: none.
struct RowMove {
  uint4* to = nullptr;
  const uint4* from = nullptr;
  int vectors = 0, pieces = 0;
};

struct PermuteArgs {
  RowMove value, quantized;
  CopyArgs copy;  // of the quantized data; data null: none
  const void* scales;
  const std::int32_t *row_of, *source;
  const std::int32_t* end;  // the row after the last group
  const float* amax;        // of the tokens, if it is copied to amax_out
  float* amax_out;
  int tokens, rows, top_k;
  int source_rows;                             // of the quantized data; may exceed the number of tokens
  Divisor by_top_k, by_pieces, by_row_blocks;  // pieces: per token
  int padding_blocks, scale_blocks;            // of the grid; later blocks move rows
  int row_blocks;                              // with one thread per row of the scales
};

/// Copies a warp's piece of a token's row to the `row` of each lane k; -1: no destination.
template <bool kFull>
__device__ inline void move_piece(const RowMove& move, int token, int piece, int row, int top_k) {
  const int first = piece * kVectors * kWarp + threadIdx.x % kWarp;
  const uint4* from = move.from + static_cast<std::int64_t>(token) * move.vectors + first;
  uint4* const to = move.to + first;
  uint4 v[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i)
    if (kFull || first + i * kWarp < move.vectors) v[i] = from[i * kWarp];
#pragma unroll 2
  for (int k = 0; k < top_k; ++k) {
    const int at = __shfl_sync(kAllLanes, row, k);
    if (at < 0) continue;
    uint4* const there = to + static_cast<std::int64_t>(at) * move.vectors;
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      if (kFull || first + i * kWarp < move.vectors) __stcs(there + i * kWarp, v[i]);
  }
}

__device__ inline void move_piece(const RowMove& move, int token, int piece, int row, int top_k) {
  if ((piece + 1) * kVectors * kWarp <= move.vectors)
    move_piece<true>(move, token, piece, row, top_k);
  else
    move_piece<false>(move, token, piece, row, top_k);
}

__device__ inline void zero_row(const RowMove& move, int row) {
  uint4* const to = move.to + static_cast<std::int64_t>(row) * move.vectors;
  for (int i = threadIdx.x % kWarp; i < move.vectors; i += kWarp) __stcs(to + i, make_uint4(0, 0, 0, 0));
}

/// Zeroes padding among a few rows.
__device__ inline void zero_padding(const PermuteArgs& a, int first) {
  const int lane = threadIdx.x % kWarp;
  const bool padding = lane < kRowsToZero && first + lane < *a.end && a.source[first + lane] < 0;
  for (std::uint32_t rest = __ballot_sync(kAllLanes, padding); rest != 0; rest &= rest - 1) {
    const int row = first + __ffs(static_cast<int>(rest)) - 1;
    if (a.value.to) zero_row(a.value, row);
    if (a.quantized.to) zero_row(a.quantized, row);
  }
}

__host__ __device__ inline int scales_of_word(const CopyArgs& copy) { return copy.in_blocks_of_32() ? 4 : 1; }
__host__ __device__ inline int words_of_row(const CopyArgs& copy) {
  const int step = scales_of_word(copy);
  return (static_cast<int>(scale_blocks(copy.granularity, copy.k)) + step - 1) / step;
}

/// Returns the rows in a copy's scale buffer, including padding.
__host__ __device__ inline int padded_rows(const CopyArgs& copy) {
  return static_cast<int>(copy.in_blocks_of_32()                         ? detail::padded(copy.rows, 128)
                          : copy.granularity == Granularity::block_1x128 ? detail::padded(copy.rows, 4)
                                                                         : copy.rows);
}

/// Returns true if the tokens have their own amax, not an earlier one.
bool has_amax(const QuantizedTensor& tokens) { return tokens.amax_in.empty() && !tokens.amax_out.empty(); }

const std::int32_t* end_of(const Groups& groups) {
  return groups.offsets.as<std::int32_t>() + groups.experts();
}

/// Writes a thread's part of a row of the scales: its token's, or those of quantized zeros. For 1x32 scales,
/// four per word, threads have the rows in the order of their words (scale_layout.h).
__device__ inline void move_scales(const PermuteArgs& a, int block) {
  const Granularity g = a.copy.granularity;
  const auto* from = static_cast<const std::uint32_t*>(a.scales);
  auto* const scales = static_cast<std::uint32_t*>(a.copy.scale);
  const int part = a.by_row_blocks.divide(block);
  const int thread = (block - part * a.row_blocks) * kPermuteThreads + static_cast<int>(threadIdx.x);
  if (block == 0 && thread == 0 && a.amax_out) *a.amax_out = *a.amax;
  if (g == Granularity::tensor) {
    if (thread == 0) *scales = *from;
    return;
  }
  const int step = scales_of_word(a.copy);
  const int row = step == 4 ? thread / 128 * 128 + thread % 4 * 32 + thread % 128 / 4 : thread;
  if (row >= padded_rows(a.copy)) return;
  const int blocks = static_cast<int>(scale_blocks(g, a.copy.k));
  const int begin = part * kScaleWords, words = min(kScaleWords, words_of_row(a.copy) - begin);
  const int slot = row < a.rows ? a.source[row] : -1;
  // The thread's first word, and the distance between a row's words.
  const std::int64_t first = scale_index(g, a.copy.rows, a.copy.k, row, begin * step) / step,
                     pitch = scale_index(g, a.copy.rows, a.copy.k, 0, step) / step;
  if (slot < 0) {
    if (row >= *a.end && row < a.rows) return;
    for (int word = 0; word < words; ++word) {
      const std::int64_t at = first + word * pitch;
      scales[at] = 0;  // also for rows and blocks beyond the end
      for (int i = 0; row < a.rows && i < step && (begin + word) * step + i < blocks; ++i)
        make_scale(a.copy, 0, at * step + i, true);
    }
    return;
  }
  from += scale_index(g, a.source_rows, a.copy.k, a.by_top_k.divide(slot), begin * step) / step;
  const std::int64_t from_pitch = scale_index(g, a.source_rows, a.copy.k, 0, step) / step;
  std::uint32_t v[kScaleWords];
#pragma unroll
  for (int i = 0; i < kScaleWords; ++i)
    if (i < words) v[i] = from[i * from_pitch];
#pragma unroll
  for (int i = 0; i < kScaleWords; ++i)
    if (i < words) scales[first + i * pitch] = v[i];
}

/// Blocks that write padding come first, then those for scales, then those with a warp per piece of a token's
/// row.
__global__ void __launch_bounds__(kPermuteThreads, 6) permute_kernel(const PermuteArgs a) {
  wait_for_work_before();
  int block = static_cast<int>(blockIdx.x);
  const int warp_of_block = threadIdx.x / kWarp;
  if (block < a.padding_blocks) return zero_padding(a, (block * kWarps + warp_of_block) * kRowsToZero);
  block -= a.padding_blocks;
  if (block < a.scale_blocks) return move_scales(a, block);
  block -= a.scale_blocks;
  const int warp = block * kWarps + warp_of_block, token = a.by_pieces.divide(warp);
  if (token >= a.tokens) return;
  const int piece = warp - token * (a.value.pieces + a.quantized.pieces), lane = threadIdx.x % kWarp;
  const int row = lane < a.top_k ? a.row_of[token * a.top_k + lane] : -1;
  if (piece < a.value.pieces)
    move_piece(a.value, token, piece, row, a.top_k);
  else
    move_piece(a.quantized, token, piece - a.value.pieces, row, a.top_k);
}

int blocks_for(std::int64_t threads) { return static_cast<int>((threads + kPermuteThreads - 1) / kPermuteThreads); }

RowMove row_move(const Tensor& to, const Tensor& from) {
  const std::int64_t bytes = bytes_of(to.dtype, to.cols);
  if (bytes % std::int64_t{sizeof(uint4)} != 0)
    throw Unsupported("the CUDA device moves rows of whole 16 bytes, not of " + std::to_string(bytes));
  const int vectors = static_cast<int>(bytes / std::int64_t{sizeof(uint4)});
  constexpr int kPiece = kVectors * kWarp;
  return {to.as<uint4>(), from.as<uint4>(), vectors, (vectors + kPiece - 1) / kPiece};
}

/// Writes the tokens' own amax, as for the rowwise copy.
void amax_of_tokens(CudaDevice& device, const Tensor& out, const QuantizedTensor& tokens) {
  if (has_amax(tokens))
    device.do_convert({out, tokens.amax_out});
  else
    device.do_amax({.out = out, .x = tokens.value});
}

/// Copies the rows that stay unchanged. Returns true if amax_out is written too.
bool move_rows(CudaDevice& device, const ops::Permute& op) {
  const Groups& groups = op.groups;
  const int top_k = static_cast<int>(groups.top_k());
  RowMove value, quantized;
  if (writes_value(op.x)) value = row_move(op.x.value, op.src.value);
  if (wanted(op.x.rowwise)) quantized = row_move(op.x.rowwise.data, op.src.rowwise.data);
  if (!value.to && !quantized.to) return false;
  const std::int64_t rows = groups.rows_capacity(), tokens = groups.row_of.rows;
  const int pieces = value.pieces + quantized.pieces;
  PermuteArgs args{.value = value,
                   .quantized = quantized,
                   .copy = {},
                   .scales = nullptr,
                   .row_of = groups.row_of.as<std::int32_t>(),
                   .source = groups.source.as<std::int32_t>(),
                   .end = end_of(groups),
                   .amax = nullptr,
                   .amax_out = nullptr,
                   .tokens = static_cast<int>(tokens),
                   .rows = static_cast<int>(rows),
                   .top_k = top_k,
                   .source_rows = quantized.to ? static_cast<int>(op.src.rowwise.rows()) : 0,
                   .by_top_k = Divisor(top_k),
                   .by_pieces = Divisor(pieces),
                   .by_row_blocks = Divisor(1),
                   .padding_blocks = blocks_for((rows + kRowsToZero - 1) / kRowsToZero * kWarp),
                   .scale_blocks = 0,
                   .row_blocks = 1};
  if (quantized.to) {
    args.copy = copy_args(op.x.rowwise);
    args.scales = op.src.rowwise.scale.data;
    args.row_blocks = args.copy.granularity == Granularity::tensor ? 1 : blocks_for(padded_rows(args.copy));
    args.by_row_blocks = Divisor(args.row_blocks);
    args.scale_blocks = args.row_blocks * ((words_of_row(args.copy) + kScaleWords - 1) / kScaleWords);
    if (!op.x.amax_out.empty() && has_amax(op.src)) {
      args.amax = op.src.amax_out.as<float>();
      args.amax_out = op.x.amax_out.as<float>();
    }
  }
  const int blocks = args.padding_blocks + args.scale_blocks + blocks_for(tokens * pieces * kWarp);
  permute_kernel<<<blocks, kPermuteThreads, 0, device.stream()>>>(args);
  return args.amax_out;
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_permute(const ops::Permute& op) {
  using namespace cuda;
  const Groups& groups = op.groups;
  check_rule({.experts = groups.experts(), .top_k = groups.top_k()});
  const bool weighted = !op.weights.empty();
  QuantizedTensor x = op.x;  // work left to the engine
  if (!weighted) {
    const bool made = move_rows(*this, op);
    x.keep_value = false;
    x.rowwise = {};
    if (!x.amax_out.empty()) {
      if (!made) amax_of_tokens(*this, x.amax_out, op.src);
      x.amax_in = std::exchange(x.amax_out, {});
    }
  }
  void* amaxes = scratch(amax_scratch_bytes(*this, x, &groups));
  const TileOutput output = tile_output(*this, x, weighted && writes_value(x), amaxes, &groups);
  const GatherSource source{{},
                            matrix(op.src.value),
                            groups.source.as<std::int32_t>(),
                            op.weights.as<float>(),
                            Divisor(static_cast<int>(groups.top_k())),
                            end_of(groups),
                            groups.rows_capacity()};
  if (output.wants_amax() || output.wants_cast()) produce(*this, source, TileOutputs<1>{{output}});
  quantize_from_value(*this, x);
  launched("permute");
}

}  // namespace precbench
