// Rows of tokens into groups. What a token's rows have as it stands, its BF16 or its codes, a warp reads once and writes to
// each of them; other warps write the padding. Scales are gathered in another launch, in the order in which they lie. What
// depends on the groups (columns), and everything where rows are weighted, is made by the quantizing engine from rows that it
// gathers.
#include <string>
#include <utility>

#include "kernels/cuda/experts/router.cuh"
#include "kernels/cuda/quantize/produce.cuh"

namespace precbench {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRowsToZero = 8;  // that a warp looks at

/// Rows of the source in their groups; with weights, times their slots'.
struct GatherSource {
  static constexpr int kOutputs = 1, kBatch = 8;
  struct Column {};
  struct Raw {
    Bf16x8 x;
    float weight;
  };
  Matrix x;
  const std::int32_t* slots;
  const float* weights;  // may be null
  int top_k;
  std::int64_t rows, cols = x.cols;

  bool vectors() const { return x.vectors; }
  template <bool kFull>
  __device__ Column column(std::int64_t) const {
    return {};
  }
  template <bool kFull>
  __device__ Raw fetch(std::int64_t row, std::int64_t col) const {
    const int slot = kFull || row < rows ? slots[row] : -1;
    if (slot < 0) return {};
    return {load<kFull>(x, slot / top_k, col), weights ? weights[slot] : 1.0f};
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
  std::int64_t vectors = 0;
};

struct PermuteArgs {
  RowMove value, codes;
  FormArgs form;  // of the codes; data null: none
  const void* scales;
  const std::int32_t *row_of, *source;
  std::int64_t tokens, rows;
  int top_k;
};

/// `row`: lane k's is where slot k goes; -1: nowhere.
__device__ inline void move_row(const RowMove& move, std::int64_t token, int row, int top_k) {
  constexpr int kBatch = 8;
  const int lane = threadIdx.x % kWarp;
  const uint4* from = move.from + token * move.vectors;
  for (std::int64_t first = 0; first < move.vectors; first += kBatch * kWarp) {
    uint4 v[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (const std::int64_t at = first + i * kWarp + lane; at < move.vectors) v[i] = from[at];
    for (int k = 0; k < top_k; ++k) {
      const std::int64_t to = __shfl_sync(kAllLanes, row, k);
      if (to < 0) continue;
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        if (const std::int64_t at = first + i * kWarp + lane; at < move.vectors)
          move.to[to * move.vectors + at] = v[i];
    }
  }
}

__device__ inline void zero_row(const RowMove& move, std::int64_t row) {
  for (std::int64_t i = threadIdx.x % kWarp; i < move.vectors; i += kWarp)
    move.to[row * move.vectors + i] = make_uint4(0, 0, 0, 0);
}

/// The row and block whose scale, or the four of 1x32 that lie together, stand in this word of a form's scales.
struct ScalePlace {
  std::int64_t row, block;
};
__device__ inline ScalePlace scale_place(const FormArgs& form, std::int64_t word) {
  if (!form.in_blocks_of_32()) {
    const std::int64_t pitch =
        form.granularity == Granularity::row ? form.rows : detail::padded(form.rows, 4);
    return {word % pitch, word / pitch};
  }
  constexpr int kWords = 128;  // of a tile of 128 rows and four blocks (scale_layout.h)
  const std::int64_t tiles = detail::blocks_of(scale_blocks(form.granularity, form.k), 4);
  const std::int64_t tile = word / kWords, within = word % kWords;
  return {tile / tiles * 128 + within % 4 * 32 + within / 4, tile % tiles * 4};
}

/// A thread for each word of the scales, as they lie: what the token of a row has there, or what zeros quantize to.
__global__ void __launch_bounds__(kThreads) permute_scales_kernel(const PermuteArgs a, std::int64_t words) {
  const std::int64_t word = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (word >= words) return;
  auto* const to = static_cast<std::uint32_t*>(a.form.scale) + word;
  const auto* const from = static_cast<const std::uint32_t*>(a.scales);
  const Granularity g = a.form.granularity;
  const ScalePlace place = g == Granularity::tensor ? ScalePlace{} : scale_place(a.form, word);
  const int step = a.form.in_blocks_of_32() ? 4 : 1;
  const int slot = place.row < a.rows ? a.source[place.row] : -1;
  if (g == Granularity::tensor) {
    *to = *from;
  } else if (slot >= 0) {
    *to = from[scale_index(g, a.tokens, a.form.k, slot / a.top_k, place.block) / step];
  } else if (place.row >= a.rows) {
    *to = 0;
  } else {
    *to = 0;  // of blocks that are not there
    for (int block = 0; block < step && place.block + block < scale_blocks(g, a.form.k); ++block)
      make_scale(a.form, 0, word * step + block, true);
  }
}

/// A warp for each token, and behind them one for every few rows.
__global__ void __launch_bounds__(kThreads) permute_kernel(const PermuteArgs a) {
  const int lane = threadIdx.x % kWarp;
  const std::int64_t warp = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  if (warp < a.tokens) {
    const int row = lane < a.top_k ? a.row_of[warp * a.top_k + lane] : -1;
    if (a.value.to) move_row(a.value, warp, row, a.top_k);
    if (a.codes.to) move_row(a.codes, warp, row, a.top_k);
    return;
  }
  const std::int64_t first = (warp - a.tokens) * kRowsToZero;
  const bool padding = lane < kRowsToZero && first + lane < a.rows && a.source[first + lane] < 0;
  for (std::uint32_t rest = __ballot_sync(kAllLanes, padding); rest != 0; rest &= rest - 1) {
    const std::int64_t row = first + __ffs(static_cast<int>(rest)) - 1;
    if (a.value.to) zero_row(a.value, row);
    if (a.codes.to) zero_row(a.codes, row);
  }
}

RowMove row_move(const Tensor& to, const Tensor& from) {
  const std::int64_t bytes = bytes_of(to.dtype, to.cols);
  if (bytes % std::int64_t{sizeof(uint4)} != 0)
    throw Unsupported("the CUDA device moves rows of whole 16 bytes, not of " + std::to_string(bytes));
  return {to.as<uint4>(), from.as<uint4>(), bytes / std::int64_t{sizeof(uint4)}};
}

/// The tokens' own amax, as the rowwise form has it.
void amax_of_tokens(CudaDevice& device, const Tensor& out, const QuantizedTensor& tokens) {
  if (tokens.amax_in.empty() && !tokens.amax_out.empty())
    device.do_convert({out, tokens.amax_out});
  else
    device.do_amax({.out = out, .x = tokens.value});
}

/// The rows that go as they stand.
void move_rows(CudaDevice& device, const ops::Permute& op) {
  const Groups& groups = op.groups;
  PermuteArgs args{};
  if (writes_value(op.x)) args.value = row_move(op.x.value, op.src.value);
  if (wanted(op.x.rowwise)) {
    args.codes = row_move(op.x.rowwise.data, op.src.rowwise.data);
    args.form = read_form(op.x.rowwise);
    args.scales = op.src.rowwise.scale.data;
  }
  if (!args.value.to && !args.form.data) return;
  args.row_of = groups.row_of.as<std::int32_t>();
  args.source = groups.source.as<std::int32_t>();
  args.tokens = groups.row_of.rows;
  args.rows = groups.rows_capacity();
  args.top_k = static_cast<int>(groups.top_k());
  const std::int64_t warps = args.tokens + (args.rows + kRowsToZero - 1) / kRowsToZero;
  const auto blocks = [](std::int64_t threads) {
    return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
  };
  permute_kernel<<<blocks(warps * kWarp), kThreads, 0, device.stream()>>>(args);
  if (!args.form.data) return;
  const std::int64_t words = op.x.rowwise.scale.bytes() / std::int64_t{sizeof(std::uint32_t)};
  permute_scales_kernel<<<blocks(words), kThreads, 0, device.stream()>>>(args, words);
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_permute(const ops::Permute& op) {
  using namespace cuda;
  const Groups& groups = op.groups;
  check_rule({.experts = groups.experts(), .top_k = groups.top_k()});
  const bool weighted = !op.weights.empty();
  QuantizedTensor x = op.x;  // what is left to the engine
  if (!weighted) {
    move_rows(*this, op);
    x.keep_value = false;
    x.rowwise = {};
    if (!x.amax_out.empty()) {
      amax_of_tokens(*this, x.amax_out, op.src);
      x.amax_in = std::exchange(x.amax_out, {});
    }
  }
  void* amaxes = scratch(amax_scratch_bytes(*this, x, &groups));
  const TileOutput output = tile_output(*this, x, weighted && writes_value(x), amaxes, &groups);
  const GatherSource source{matrix(op.src.value), groups.source.as<std::int32_t>(), op.weights.as<float>(),
                            static_cast<int>(groups.top_k()), groups.rows_capacity()};
  if (output.wants_amax() || output.wants_cast()) produce(*this, source, TileOutputs<1>{{output}});
  quantize_from_value(*this, x);
  launched("permute");
}

}  // namespace precbench
