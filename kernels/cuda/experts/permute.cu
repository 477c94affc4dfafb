// Rows of tokens into groups. What a token's rows have as it stands, its BF16 or its codes and scales, a warp reads once
// and writes to each of them; other warps write the padding. What depends on the groups (columns), and everything where rows
// are weighted, is made by the quantizing engine from rows that it gathers.
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

/// Of one row: of whole words where four blocks of 32 have one, which lie together (scale_layout.h).
__device__ inline void move_scales(const PermuteArgs& a, std::int64_t token, std::int64_t row) {
  const FormArgs& form = a.form;
  const Granularity g = form.granularity;
  const int step = form.in_blocks_of_32() ? 4 : 1;
  const std::int64_t blocks = g == Granularity::tensor ? 0 : scale_blocks(g, form.k);
  for (std::int64_t kb = threadIdx.x % kWarp * step; kb < blocks; kb += kWarp * step) {
    const std::int64_t from = scale_index(g, a.tokens, form.k, token, kb);
    const std::int64_t to = scale_index(g, form.rows, form.k, row, kb);
    static_cast<std::uint32_t*>(form.scale)[to / step] =
        static_cast<const std::uint32_t*>(a.scales)[from / step];
  }
}

/// What zeros quantize to.
__device__ inline void zero_scales(const FormArgs& form, std::int64_t row) {
  const Granularity g = form.granularity;
  const std::int64_t blocks = g == Granularity::tensor ? 0 : scale_blocks(g, form.k);
  for (std::int64_t kb = threadIdx.x % kWarp; kb < blocks; kb += kWarp)
    make_scale(form, 0, scale_index(g, form.rows, form.k, row, kb), true);
}

/// A warp for each token, and behind them one for every few rows.
__global__ void __launch_bounds__(kThreads) permute_kernel(const PermuteArgs a) {
  const int lane = threadIdx.x % kWarp;
  const std::int64_t warp = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  if (warp == 0 && lane == 0 && a.form.data && a.form.granularity == Granularity::tensor)
    *static_cast<std::uint32_t*>(a.form.scale) = *static_cast<const std::uint32_t*>(a.scales);
  if (warp < a.tokens) {
    const int row = lane < a.top_k ? a.row_of[warp * a.top_k + lane] : -1;
    if (a.value.to) move_row(a.value, warp, row, a.top_k);
    if (!a.form.data) return;
    move_row(a.codes, warp, row, a.top_k);
    for (int k = 0; k < a.top_k; ++k)
      if (const int to = __shfl_sync(kAllLanes, row, k); to >= 0) move_scales(a, warp, to);
    return;
  }
  const std::int64_t first = (warp - a.tokens) * kRowsToZero;
  const bool padding = lane < kRowsToZero && first + lane < a.rows && a.source[first + lane] < 0;
  for (std::uint32_t rest = __ballot_sync(kAllLanes, padding); rest != 0; rest &= rest - 1) {
    const std::int64_t row = first + __ffs(static_cast<int>(rest)) - 1;
    if (a.value.to) zero_row(a.value, row);
    if (!a.form.data) continue;
    zero_row(a.codes, row);
    zero_scales(a.form, row);
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
    args.form = form_args(op.x.rowwise, device.stream());
    args.scales = op.src.rowwise.scale.data;
  }
  if (!args.value.to && !args.form.data) return;
  args.row_of = groups.row_of.as<std::int32_t>();
  args.source = groups.source.as<std::int32_t>();
  args.tokens = groups.row_of.rows;
  args.rows = groups.rows_capacity();
  args.top_k = static_cast<int>(groups.top_k());
  const std::int64_t warps = args.tokens + (args.rows + kRowsToZero - 1) / kRowsToZero;
  permute_kernel<<<static_cast<unsigned>((warps * kWarp + kThreads - 1) / kThreads), kThreads, 0,
                   device.stream()>>>(args);
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
