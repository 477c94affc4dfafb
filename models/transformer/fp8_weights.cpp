// Quantizing and exchanging shards. See fp8_weights.h.
#include "models/transformer/fp8_weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/numerics/scale_layout.h"

namespace precbench {
std::string why_not_fp8_weights(const Recipe& recipe, const ModelConfig& model, bool recompute) {
  const QuantFormat& f = recipe.fprop.b;
  if (!f.quantized()) return "FP8 gather: the recipe keeps weights in BF16";
  if (!(f == recipe.dgrad.b))
    return "FP8 gather: the recipe takes weights in different formats in fprop and dgrad";
  if (f.granularity != Granularity::tensor && f.granularity != Granularity::block_128x128 &&
      f.granularity != Granularity::block_1x32)
    return "FP8 gather: the recipe scales whole rows and columns of weights, so that no rank has what a "
           "column's scale needs";
  if (f.granularity != Granularity::block_1x32) return "";
  if (recompute)
    return "FP8 gather: with recompute, backward takes weights in the codes of both directions, which are more "
           "bytes than BF16";
  constexpr std::int64_t kTile = 128;  // of scales in memory (scale_layout.h): 128 vectors x 4 blocks of 32
  for (const std::int64_t dim :
       {model.width, model.ffn, model.q_width(), model.q_width() + 2 * model.kv_width()})
    if (dim % kTile != 0)
      return fmt::format("FP8 gather: a weight's dimension {} is no multiple of {}, in which 1x32 scales lie",
                         dim, kTile);
  return "";
}

Fp8Weights::Fp8Weights(Device& device, Comm& comm, Arena& arena, const Layout& layout,
                       const QuantFormat& format, const std::vector<bool>& layers)
    : device_(device), comm_(comm), layout_(layout), format_(format), layers_(layers) {
  const auto blocks = static_cast<std::int64_t>(layers.size());
  const std::array<Layout::Matrix, kMatrices> matrices = layout.block_matrices();
  for (int i = 0; i < kMatrices; ++i) {
    // Every matrix's scales start where a GEMM may read them: at 16 bytes.
    scale_offsets_[i] = scales_per_block_;
    if (!by_pass())
      scales_per_block_ += static_cast<int>(
          detail::padded(scale_count(format.granularity, matrices[i].rows, matrices[i].cols), 4));
  }
  const int unit = layout.block_unit(0);
  vectors_per_block_ = layout.units()[unit].size - layout.vectors_offset();
  const std::int64_t shard = layout.shard_size(unit);
  for (int pass = 0; pass < (by_pass() ? 2 : 1); ++pass) {
    codes_[pass] = arena.push(Segment::quantized_weights, format.dtype, blocks, shard);
    if (by_pass())
      beside_[pass] = arena.push(Segment::quantized_weights, DType::ue8m0, blocks, shard / kCodesPerScale);
  }
  if (!by_pass()) scales_ = arena.push(Segment::quantized_weights, DType::f32, blocks, scales_per_block_);
  if (from_master()) amaxes_ = arena.push(Segment::workspace, DType::f32, blocks, kMatrices);
  vectors_ = arena.push(Segment::weights, DType::bf16, blocks, vectors_per_block_);
}

std::pair<std::int64_t, std::int64_t> Fp8Weights::range(int unit, int shard_rank,
                                                        const Layout::Matrix& m) const {
  const auto [first, last] = layout_.shard_range(unit, shard_rank);
  return {std::max(first, m.offset), std::min(last, m.offset + m.size())};
}

Tensor Fp8Weights::codes(int unit, Pass pass) const {
  return codes_[by_pass() ? static_cast<int>(pass) : 0].slice_rows(layer_of(unit), 1);
}

Tensor Fp8Weights::scales(int unit, Pass pass) const {
  return by_pass() ? beside_[static_cast<int>(pass)].slice_rows(layer_of(unit), 1) : Tensor{};
}

GemmOperand Fp8Weights::columns(int unit, const Layout::Matrix& m, const Tensor& codes, const Tensor& scales,
                                Arena& arena) const {
  const GemmOperand form = push_gemm_operand(arena, Segment::quantized_weights, format_, m.cols, m.rows);
  // A line of scale tiles belongs to 128 of the form's rows: 4 bytes for each of the 128 columns of a tile.
  const std::int64_t lines = m.cols / 128, per_row = 128 / kCodesPerScale;
  const Tensor form_scale = form.scale.reshape(lines, m.rows * per_row);
  for (int shard_rank = 0; shard_rank < layout_.shards(); ++shard_rank) {
    const auto [first, last] = range(unit, shard_rank, m);
    if (first >= last) continue;
    const std::int64_t row = (first - m.offset) / m.cols, rows = (last - first) / m.cols;
    device_.copy_columns({form.data, row, codes.elements(first, last - first).reshape(m.cols, rows)});
    device_.copy_columns({form_scale, row * per_row,
                          scales.elements(first / kCodesPerScale, (last - first) / kCodesPerScale)
                              .reshape(lines, rows * per_row)});
  }
  return form;
}

Weight Fp8Weights::weight(int unit, int matrix, Pass pass, const Tensor& codes, const Tensor& scales,
                          Arena& arena) const {
  const Layout::Matrix m = layout_.block_matrices()[matrix];
  if (by_pass() && pass == Pass::backward) return {{}, {}, columns(unit, m, codes, scales, arena)};
  const Tensor scale = by_pass() ? scales.elements(m.offset / kCodesPerScale, m.size() / kCodesPerScale)
                                 : scales_.elements(first_scale(unit, matrix),
                                                    scale_count(format_.granularity, m.rows, m.cols));
  return {{}, {format_, codes.elements(m.offset, m.size()).reshape(m.rows, m.cols), scale, false}, {}};
}

void Fp8Weights::refresh(const std::function<Tensor(int)>& shard_of) {
  const auto each_part = [&](auto&& body) {
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      if (!layers_[layer]) continue;
      const int unit = layout_.block_unit(static_cast<std::int64_t>(layer));
      const std::int64_t start = layout_.shard_range(unit, comm_.rank()).first;
      for (int i = 0; i < kMatrices; ++i) {
        const Layout::Matrix m = layout_.block_matrices()[i];
        const auto [first, last] = range(unit, comm_.rank(), m);
        const std::int64_t count = std::max<std::int64_t>(0, last - first);
        const auto mine = [&, at = first - start](const Tensor& t, std::int64_t per = 1) {
          return count ? t.elements(at / per, count / per) : Tensor{nullptr, t.dtype, 0, 0};
        };
        body(unit, i, m, first - m.offset, mine);
      }
    }
  };
  if (!by_pass()) device_.zero({scales_});
  if (from_master()) {
    const auto amax = [&](int unit, int matrix) {
      return amaxes_.elements(layer_of(unit) * kMatrices + matrix, 1);
    };
    device_.zero({amaxes_});
    each_part([&](int unit, int i, const Layout::Matrix&, std::int64_t, auto&& mine) {
      if (const Tensor value = mine(shard_of(unit)); !value.empty()) device_.amax({amax(unit, i), value});
    });
    comm_.all_reduce_max(amaxes_);
    each_part([&](int unit, int i, const Layout::Matrix&, std::int64_t, auto&& mine) {
      const Tensor scale = scales_.elements(first_scale(unit, i), 1);
      device_.quantize_with_amax(
          {{format_, mine(codes(unit, Pass::forward)), scale, false}, mine(shard_of(unit)), amax(unit, i)});
    });
  } else {
    each_part([&](int unit, int i, const Layout::Matrix& m, std::int64_t first, auto&& mine) {
      const Tensor value = mine(shard_of(unit));
      if (value.empty()) return;
      const std::int64_t rows = value.size() / m.cols;
      const auto form = [&](Pass pass, std::int64_t form_rows, std::int64_t k) {
        const std::int64_t count = scale_count(format_.granularity, form_rows, k);
        const std::int64_t at = scale_index(format_.granularity, m.rows, m.cols, first / m.cols, 0);
        const Tensor scale = by_pass() ? mine(scales(unit, pass), kCodesPerScale)
                                       : scales_.elements(first_scale(unit, i) + at, count);
        return GemmOperand{format_, mine(codes(unit, pass)).reshape(form_rows, k), scale, false};
      };
      QuantizedTensor operand;
      operand.value = value.reshape(rows, m.cols);
      operand.rowwise = form(Pass::forward, rows, m.cols);
      if (by_pass()) operand.columnwise = form(Pass::backward, m.cols, rows);
      device_.quantize({operand});
    });
    if (!by_pass()) comm_.all_reduce(scales_);
  }
  device_.zero({vectors_});
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    if (!layers_[layer]) continue;
    const int unit = layout_.block_unit(static_cast<std::int64_t>(layer));
    const auto [first, last] = layout_.shard_range(unit, comm_.rank());
    const std::int64_t begin = std::max(first, layout_.vectors_offset());
    if (begin >= last) continue;
    device_.convert({vectors_.elements(static_cast<std::int64_t>(layer) * vectors_per_block_ + begin -
                                           layout_.vectors_offset(),
                                       last - begin),
                     shard_of(unit).elements(begin - first, last - begin)});
  }
  comm_.all_reduce(vectors_);
}

BlockWeights Fp8Weights::block(int unit, Pass pass, const Tensor& codes, const Tensor& scales,
                               Arena& arena) const {
  // The vectors lie in their own buffer as they would in a whole unit.
  const Tensor vectors = vectors_.slice_rows(layer_of(unit), 1);
  const BlockTensors t =
      layout_.block({vectors.as<std::uint16_t>() - layout_.vectors_offset(), DType::bf16, 1, vectors.cols});
  const auto matrix = [&](int i) { return weight(unit, i, pass, codes, scales, arena); };
  return {matrix(0), matrix(1), matrix(2), matrix(3), t.norm1, t.norm2, t.q_norm, t.k_norm, t.qkv_bias};
}

}  // namespace precbench
