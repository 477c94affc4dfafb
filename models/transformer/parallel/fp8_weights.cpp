// Quantizes and exchanges shards. See fp8_weights.h.
#include "models/transformer/parallel/fp8_weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/numerics/scale_layout.h"

namespace precbench {
std::optional<std::string> fp8_gather_unsupported_reason(const Recipe& recipe, const ModelConfig& model,
                                                         bool repeats_fprop) {
  const QuantFormat& f = recipe.fprop.b;
  if (!f.quantized()) return "FP8 gather: the recipe has BF16 weights";
  if (model.moe) return "FP8 gather: experts' weights are not supported";
  if (!(f == recipe.dgrad.b)) return "FP8 gather: the recipe has different weight formats in fprop and dgrad";
  if (f.delayed() && !f.history.reduce)
    return "FP8 gather: history.reduce is false, so ranks have no common scale for their weight shards";
  if (f.dtype == DType::e2m1) return "FP8 gather: FP4 weights are not supported";
  if (always_emulated(f))
    return fmt::format("FP8 gather: the recipe's weights are {}, not an FP8 format with its usual scales",
                       describe(f));
  if (f.granularity == Granularity::block_32x32)
    return "FP8 gather: weights in 32x32 blocks are not supported";
  if (f.granularity != Granularity::tensor && f.granularity != Granularity::block_128x128 &&
      f.granularity != Granularity::block_1x32)
    return "FP8 gather: the recipe's row and column scales of a weight span the shards of several ranks";
  if (f.granularity != Granularity::block_1x32) return std::nullopt;
  if (repeats_fprop)
    return "FP8 gather: recompute needs the quantized weights of both directions, more bytes than BF16";
  constexpr std::int64_t kTile = 128;  // scale tile in memory (scale_layout.h): 128 vectors x 4 blocks of 32
  for (const LinearSpec& linear : block_of(model, 0).linears)
    for (const std::int64_t dim : {linear.in, linear.out()})
      if (dim % kTile != 0)
        return fmt::format("FP8 gather: weight dimension {} is not a multiple of {}, the tile of 1x32 scales",
                           dim, kTile);
  return std::nullopt;
}

Fp8Weights::Fp8Weights(Device& device, Comm* comm, Arena& arena, const Layout& layout,
                       const QuantFormat& format, const std::vector<bool>& layers)
    : device_(device), comm_(comm), layout_(layout), format_(format), layers_(layers) {
  const auto blocks = static_cast<std::int64_t>(layers.size());
  for (const LinearMatrix& m : layout.block_linears(0)) {
    // A matrix's scales start at a multiple of 16 bytes, as GEMMs require.
    scale_offsets_.push_back(scales_per_block_);
    if (!by_pass()) scales_per_block_ += detail::padded(scale_count(format.granularity, m.rows, m.cols), 4);
  }
  const int unit = layout.block_unit(0);
  vectors_per_block_ = layout.units()[unit].size - layout.vectors_offset(0);
  const std::int64_t shard = layout.shard_size(unit);
  for (int pass = 0; pass < (by_pass() ? 2 : 1); ++pass) {
    codes_[pass] = arena.push(Segment::quantized_weights, format.dtype, blocks, shard);
    if (by_pass())
      beside_[pass] = arena.push(Segment::quantized_weights, DType::ue8m0, blocks, shard / kCodesPerScale);
  }
  if (!by_pass()) scales_ = arena.push(Segment::quantized_weights, DType::f32, blocks, scales_per_block_);
  if (from_master())
    amaxes_ =
        arena.push(Segment::workspace, DType::f32, blocks, static_cast<std::int64_t>(scale_offsets_.size()));
  vectors_ = arena.push(Segment::weights, DType::bf16, blocks, vectors_per_block_);
}

std::pair<std::int64_t, std::int64_t> Fp8Weights::range(int unit, int shard_rank,
                                                        const LinearMatrix& m) const {
  const auto [first, last] = layout_.shard_range(unit, shard_rank);
  return {std::max(first, m.offset), std::min(last, m.offset + m.size())};
}

Tensor Fp8Weights::codes(int unit, Pass pass) const {
  return codes_[by_pass() ? static_cast<int>(pass) : 0].slice_rows(layer_of(unit), 1);
}

Tensor Fp8Weights::scales(int unit, Pass pass) const {
  return by_pass() ? beside_[static_cast<int>(pass)].slice_rows(layer_of(unit), 1) : Tensor{};
}

GemmOperand Fp8Weights::columns(int unit, const LinearMatrix& m, const Tensor& codes, const Tensor& scales,
                                Arena& arena) const {
  const GemmOperand copy = push_gemm_operand(arena, Segment::quantized_weights, format_, m.cols, m.rows);
  // A line of scale tiles covers 128 rows of the copy and takes 4 bytes per column (512 per 128 x 128 tile).
  const std::int64_t lines = m.cols / 128, per_row = 128 / kCodesPerScale;
  const Tensor copy_scale = copy.scale.reshape(lines, m.rows * per_row);
  for (int shard_rank = 0; shard_rank < layout_.shards(); ++shard_rank) {
    const auto [first, last] = range(unit, shard_rank, m);
    if (first >= last) continue;
    const std::int64_t row = (first - m.offset) / m.cols, rows = (last - first) / m.cols;
    device_.copy_columns({copy.data, row, codes.elements(first, last - first).reshape(m.cols, rows)});
    device_.copy_columns({copy_scale, row * per_row,
                          scales.elements(first / kCodesPerScale, (last - first) / kCodesPerScale)
                              .reshape(lines, rows * per_row)});
  }
  return copy;
}

Weight Fp8Weights::weight(int unit, std::size_t i, Pass pass, const Tensor& codes, const Tensor& scales,
                          Arena& arena) const {
  const LinearMatrix& m = layout_.block_linears(0)[i];
  if (by_pass() && pass == Pass::backward) return {{}, {}, columns(unit, m, codes, scales, arena)};
  const Tensor scale =
      by_pass() ? scales.elements(m.offset / kCodesPerScale, m.size() / kCodesPerScale)
                : scales_.elements(first_scale(unit, i), scale_count(format_.granularity, m.rows, m.cols));
  return {{}, {format_, codes.elements(m.offset, m.size()).reshape(m.rows, m.cols), scale, false}, {}};
}

template <class Body>
void Fp8Weights::for_each_part(Body&& body) const {
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    if (!layers_[layer]) continue;
    const int unit = layout_.block_unit(static_cast<std::int64_t>(layer));
    const std::int64_t start = layout_.shard_range(unit, rank()).first;
    for (std::size_t i = 0; i < layout_.block_linears(0).size(); ++i) {
      const LinearMatrix& m = layout_.block_linears(0)[i];
      const auto [first, last] = range(unit, rank(), m);
      body(Part{unit, i, m, first - m.offset, first - start, std::max<std::int64_t>(0, last - first)});
    }
  }
}

void Fp8Weights::refresh(const std::function<Tensor(int)>& shard_of,
                         const std::function<Tensor(int)>& leading_of, const DelayedScaling* delayed) {
  if (!by_pass()) device_.zero({scales_});
  if (delayed && format_.delayed())
    cast_with_known_amax(shard_of, *delayed);
  else if (from_master())
    cast_with_common_amax(shard_of);
  else
    quantize_own_rows(shard_of);
  exchange_vectors(leading_of);
}

void Fp8Weights::cast_with_common_amax(const std::function<Tensor(int)>& shard_of) {
  const auto amax = [&](const Part& part) {
    return amaxes_.elements(layer_of(part.unit) * amaxes_.cols + static_cast<std::int64_t>(part.linear), 1);
  };
  device_.zero({amaxes_});
  for_each_part([&](const Part& part) {
    if (part.count > 0) device_.amax({amax(part), part.of(shard_of(part.unit))});
  });
  if (comm_) comm_->all_reduce_max(amaxes_);
  for_each_part([&](const Part& part) {
    const Tensor scale = scales_.elements(first_scale(part.unit, part.linear), 1);
    device_.quantize_with_amax({{format_, part.of(codes(part.unit, Pass::forward)), scale, false},
                                part.of(shard_of(part.unit)),
                                amax(part)});
  });
}

void Fp8Weights::cast_with_known_amax(const std::function<Tensor(int)>& shard_of,
                                      const DelayedScaling& delayed) {
  const auto slot = [&](const Part& part) { return delayed.slots(layer_of(part.unit), part.matrix.role).w; };
  for_each_part([&](const Part& part) {
    if (part.count > 0 && !slot(part).staged.empty())
      device_.amax({slot(part).staged, part.of(shard_of(part.unit))});
  });
  if (delayed.current()) {
    if (comm_) comm_->all_reduce_max(delayed.staged());
    for_each_part([&](const Part& part) { device_.convert({slot(part).known, slot(part).staged}); });
  }
  for_each_part([&](const Part& part) {
    const Tensor scale = scales_.elements(first_scale(part.unit, part.linear), 1);
    device_.quantize_with_amax({{format_, part.of(codes(part.unit, Pass::forward)), scale, false},
                                part.of(shard_of(part.unit)),
                                slot(part).known});
  });
}

void Fp8Weights::quantize_own_rows(const std::function<Tensor(int)>& shard_of) {
  for_each_part([&](const Part& part) {
    if (part.count == 0) return;
    const LinearMatrix& m = part.matrix;
    const std::int64_t rows = part.count / m.cols;
    const auto copy = [&](Pass pass, std::int64_t copy_rows, std::int64_t k) {
      const std::int64_t count = scale_count(format_.granularity, copy_rows, k);
      const std::int64_t at = scale_index(format_.granularity, m.rows, m.cols, part.first / m.cols, 0);
      const Tensor scale = by_pass() ? part.of(scales(part.unit, pass), kCodesPerScale)
                                     : scales_.elements(first_scale(part.unit, part.linear) + at, count);
      return GemmOperand{format_, part.of(codes(part.unit, pass)).reshape(copy_rows, k), scale, false};
    };
    QuantizedTensor operand;
    operand.value = part.of(shard_of(part.unit)).reshape(rows, m.cols);
    operand.rowwise = copy(Pass::forward, rows, m.cols);
    if (by_pass()) operand.columnwise = copy(Pass::backward, m.cols, rows);
    device_.quantize({operand});
  });
  if (!by_pass() && comm_) comm_->all_reduce(scales_);
}

void Fp8Weights::exchange_vectors(const std::function<Tensor(int)>& leading_of) {
  device_.zero({vectors_});
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    if (!layers_[layer]) continue;
    const int unit = layout_.block_unit(static_cast<std::int64_t>(layer));
    const auto [first, last] = layout_.shard_range(unit, rank());
    const std::int64_t begin = std::max(first, layout_.vectors_offset(0));
    if (begin >= last) continue;
    const Tensor block_vectors = vectors_.slice_rows(static_cast<std::int64_t>(layer), 1);
    device_.convert({block_vectors.elements(begin - layout_.vectors_offset(0), last - begin),
                     leading_of(unit).elements(begin - first, last - begin)});
  }
  if (comm_) comm_->all_reduce(vectors_);
}

BlockWeights Fp8Weights::block(int unit, Pass pass, const Tensor& codes, const Tensor& scales,
                               Arena& arena) const {
  BlockWeights block{layout_.block_vectors(0, vectors_.slice_rows(layer_of(unit), 1))};
  for (std::size_t i = 0; i < layout_.block_linears(0).size(); ++i)
    block[layout_.block_linears(0)[i].role] = weight(unit, i, pass, codes, scales, arena);
  return block;
}

}  // namespace precbench
