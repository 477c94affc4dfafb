// Quantizing and exchanging shards. See fp8_weights.h.
#include "models/fp8_weights.h"

#include <algorithm>

#include "kernels/scale_layout.h"

namespace precbench {
std::string why_not_fp8_weights(const Recipe& recipe) {
  const OperandFormat& f = recipe.fprop.b;
  if (!f.quantized()) return "FP8 gather: the recipe keeps weights in BF16";
  if (!(f == recipe.dgrad.b))
    return "FP8 gather: the recipe takes weights in different formats in fprop and dgrad";
  if (f.granularity != Granularity::tensor && f.granularity != Granularity::block_128x128)
    return "FP8 gather: the recipe scales weights along each GEMM's own direction, so codes gathered for "
           "fprop cannot serve dgrad";
  return "";
}

Fp8Weights::Fp8Weights(Device& device, Comm& comm, Arena& arena, const Layout& layout,
                       const OperandFormat& format, const std::vector<bool>& layers)
    : device_(device), comm_(comm), layout_(layout), format_(format), layers_(layers) {
  const auto blocks = static_cast<std::int64_t>(layers.size());
  const std::array<Layout::Matrix, kMatrices> matrices = layout.block_matrices();
  for (int i = 0; i < kMatrices; ++i) {
    // Every matrix's scales start where a GEMM may read them: at 16 bytes.
    scale_offsets_[i] = scales_per_block_;
    scales_per_block_ += static_cast<int>(
        detail::padded(scale_count(format.granularity, matrices[i].rows, matrices[i].cols), 4));
  }
  const int unit = layout.block_unit(0);
  gains_per_block_ = layout.units()[unit].size - layout.gains_offset();
  codes_ = arena.push(Segment::quantized_weights, format.dtype, blocks, layout.shard_size(unit));
  scales_ = arena.push(Segment::quantized_weights, DType::f32, blocks, scales_per_block_);
  if (from_master()) amaxes_ = arena.push(Segment::workspace, DType::f32, blocks, kMatrices);
  gains_ = arena.push(Segment::weights, DType::bf16, blocks, gains_per_block_);
}

std::pair<std::int64_t, std::int64_t> Fp8Weights::range(int unit, const Layout::Matrix& m) const {
  const auto [first, last] = layout_.shard_range(unit, comm_.rank());
  return {std::max(first, m.offset), std::min(last, m.offset + m.size())};
}

Tensor Fp8Weights::shard(int unit) const { return codes_.slice_rows(layer_of(unit), 1); }

Form Fp8Weights::form(int unit, int matrix, const Tensor& codes) const {
  const Layout::Matrix m = layout_.block_matrices()[matrix];
  const Tensor scale =
      scales_.elements(first_scale(unit, matrix), scale_count(format_.granularity, m.rows, m.cols));
  return {format_, codes.elements(m.offset, m.size()).reshape(m.rows, m.cols), scale, false};
}

void Fp8Weights::refresh(const std::function<Tensor(int)>& shard_of) {
  const auto each_part = [&](auto&& body) {
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      if (!layers_[layer]) continue;
      const int unit = layout_.block_unit(static_cast<std::int64_t>(layer));
      const std::int64_t start = layout_.shard_range(unit, comm_.rank()).first;
      for (int i = 0; i < kMatrices; ++i) {
        const Layout::Matrix m = layout_.block_matrices()[i];
        const auto [first, last] = range(unit, m);
        const std::int64_t count = std::max<std::int64_t>(0, last - first);
        const auto mine = [&](const Tensor& t) {
          return count ? t.elements(first - start, count) : Tensor{nullptr, t.dtype, 0, 0};
        };
        body(unit, i, m, first - m.offset, mine(shard_of(unit)), mine(shard(unit)));
      }
    }
  };
  device_.zero(scales_);
  if (from_master()) {
    const auto amax = [&](int unit, int matrix) {
      return amaxes_.elements(layer_of(unit) * kMatrices + matrix, 1);
    };
    device_.zero(amaxes_);
    each_part([&](int unit, int i, const Layout::Matrix&, std::int64_t, const Tensor& value, const Tensor&) {
      if (!value.empty()) device_.amax(amax(unit, i), value);
    });
    comm_.all_reduce_max(amaxes_);
    each_part(
        [&](int unit, int i, const Layout::Matrix&, std::int64_t, const Tensor& value, const Tensor& codes) {
          device_.quantize_part({format_, codes, scales_.elements(first_scale(unit, i), 1), false}, value,
                                amax(unit, i));
        });
  } else {
    each_part([&](int unit, int i, const Layout::Matrix& m, std::int64_t first, const Tensor& value,
                  const Tensor& codes) {
      if (value.empty()) return;
      const std::int64_t rows = value.size() / m.cols;
      const std::int64_t scale = scale_index(format_.granularity, m.rows, m.cols, first / m.cols, 0);
      Operand operand;
      operand.value = value.reshape(rows, m.cols);
      operand.row = {
          format_, codes.reshape(rows, m.cols),
          scales_.elements(first_scale(unit, i) + scale, scale_count(format_.granularity, rows, m.cols)),
          false};
      device_.quantize(operand);
    });
    comm_.all_reduce(scales_);
  }
  device_.zero(gains_);
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    if (!layers_[layer]) continue;
    const int unit = layout_.block_unit(static_cast<std::int64_t>(layer));
    const auto [first, last] = layout_.shard_range(unit, comm_.rank());
    const std::int64_t begin = std::max(first, layout_.gains_offset());
    if (begin >= last) continue;
    device_.convert(
        gains_.elements(static_cast<std::int64_t>(layer) * gains_per_block_ + begin - layout_.gains_offset(),
                        last - begin),
        shard_of(unit).elements(begin - first, last - begin));
  }
  comm_.all_reduce(gains_);
}

BlockWeights Fp8Weights::block(int unit, const Tensor& codes) const {
  // The gains lie in their own buffer as they would in a whole unit.
  const Tensor gains = gains_.slice_rows(layer_of(unit), 1);
  const BlockTensors norms =
      layout_.block({gains.as<std::uint16_t>() - layout_.gains_offset(), DType::bf16, 1, gains.cols});
  return {{{}, form(unit, 0, codes)},
          {{}, form(unit, 1, codes)},
          {{}, form(unit, 2, codes)},
          {{}, form(unit, 3, codes)},
          norms.norm1,
          norms.norm2,
          norms.q_norm,
          norms.k_norm};
}

}  // namespace precbench
