// The three GEMMs of experts. See expert_linear.h.
#include "models/transformer/moe/expert_linear.h"

#include <fmt/format.h>

#include <algorithm>

namespace precbench {
namespace {

GemmOperand push_form(Arena& arena, Segment segment, const QuantFormat& format, std::int64_t rows,
                      std::int64_t k, std::int64_t scales) {
  return {format, arena.push(segment, format.dtype, rows, k),
          arena.push(segment, scale_dtype(format), 1, scales)};
}

}  // namespace

std::optional<std::string> experts_unsupported_reason(const Recipe& recipe) {
  const auto refuse = [&](const char* what) {
    return fmt::format("experts: {} is not grouped yet: {}", recipe.name, what);
  };
  for (const GemmRole role : kGemmRoles)
    for (const QuantFormat& f : {recipe.gemm(role).a, recipe.gemm(role).b}) {
      if (!f.quantized()) continue;
      if (f.dtype == DType::e2m1) return refuse("FP4");
      if (always_emulated(f)) return refuse("formats that no processor multiplies");
      if (f.from_fprop) return refuse("wgrad from the data of fprop");
      if (f.granularity == Granularity::block_32x32) return refuse("scales of 32x32 blocks");
      if (f.element_rounding == ElementRounding::stochastic || f.transform) return refuse("random numbers");
    }
  return std::nullopt;
}

std::int64_t group_padding(const Recipe& recipe) {
  if (!recipe.quantized()) return 1;
  // FP8 matrix dimensions are multiples of 16. A block of scales along the tokens must not span two groups.
  return std::max(
      {std::int64_t{16}, block_length(recipe.wgrad.a.granularity), block_length(recipe.wgrad.b.granularity)});
}

QuantizedTensor ExpertLinear::grouped(const Tensor& value, const QuantFormat& row, const QuantFormat& column,
                                      const OperandSlot& slot) const {
  QuantizedTensor x = make_quantized_tensor(value, row, column);
  if (row.quantized())
    x.rowwise = push_gemm_operand(arena_, Segment::activations, row, value.rows, value.cols);
  if (column.quantized())
    x.columnwise = push_form(arena_, Segment::activations, column, value.cols, value.rows,
                             grouped_scale_count(column.granularity, experts_, value.cols, value.rows));
  if (!slot.known.empty()) {
    x.amax_in = slot.known;
    x.amax_out = slot.staged;
    return x;
  }
  for (const QuantFormat& format : {row, column})
    if (format.granularity == Granularity::tensor && x.amax_out.empty())
      x.amax_out = arena_.push(Segment::activations, DType::f32, 1, 1);
  return x;
}

QuantizedTensor ExpertLinear::input(const Tensor& value, bool rowwise, bool columnwise) const {
  const QuantFormat none;
  QuantizedTensor x = grouped(value, rowwise ? recipe_.fprop.a : none, columnwise ? recipe_.wgrad.b : none,
                              {slots_.x.known, rowwise ? slots_.x.staged : Tensor{}});
  x.keep_value = (rowwise && !recipe_.fprop.a.quantized()) || (columnwise && !recipe_.wgrad.b.quantized());
  return x;
}

QuantizedTensor ExpertLinear::gradient(const Tensor& value) const {
  QuantizedTensor dy = grouped(value, recipe_.dgrad.a, recipe_.wgrad.a, slots_.dy);
  dy.keep_value = !recipe_.dgrad.a.quantized() || !recipe_.wgrad.a.quantized();
  return dy;
}

GemmOperand ExpertLinear::codes(std::int64_t rows, std::int64_t cols) const {
  return push_gemm_operand(arena_, Segment::activations, recipe_.fprop.a, rows, cols);
}

GemmOperand ExpertLinear::push_weight(const QuantFormat& format, std::int64_t rows, std::int64_t cols,
                                      bool columns) const {
  const std::int64_t N = rows / experts_;
  const std::int64_t of_expert = columns ? cols : N, k = columns ? N : cols;
  return push_form(arena_, Segment::quantized_weights, format, experts_ * of_expert, k,
                   stacked_scale_count(format.granularity, experts_, of_expert, k));
}

GemmOperand ExpertLinear::weight_columns(std::int64_t rows, std::int64_t cols) const {
  if (!recipe_.fprop.b.quantized() || !recipe_.dgrad.b.quantized()) return {};
  return push_weight(recipe_.dgrad.b, rows, cols, true);
}

GemmOperand ExpertLinear::quantized(const Weight& weight, const QuantFormat& format, bool columns,
                                    const GemmOperand& also) const {
  if (recipe_.weight_only.quantized())
    return {{}, dequantized_weight(device_, arena_, recipe_.weight_only, weight), {}, columns};
  const Tensor& value = weight.value;
  if (!format.quantized()) return {format, value, {}, columns};
  const GemmOperand copy = push_weight(format, value.rows, value.cols, columns);
  QuantizedTensor w = make_quantized_tensor(value, {}, {});
  w.columnwise = also;
  (columns ? w.columnwise : w.rowwise) = copy;
  const auto quantize = [&](const QuantizedTensor& made) { device_.quantize_experts({made, experts_}); };
  take_amaxes(w, slots_, format, columns, quantize);
  quantize(w);
  return copy;
}

void ExpertLinear::fprop(const Tensor& y, const QuantizedTensor& x, const Weight& weight,
                         const Groups& groups) const {
  const Scope scope(arena_);
  const GemmOperand w = quantized(weight, recipe_.fprop.b, false, weight.columnwise);
  device_.grouped_matmul({y, x.rowwise, w, groups, {GemmRole::fprop, recipe_.fprop.fast_accum}});
}

void ExpertLinear::dgrad(const Tensor& dx, const QuantizedTensor& dy, const Weight& weight,
                         const Groups& groups) const {
  const Scope scope(arena_);
  const GemmOperand w =
      weight.columnwise.empty() ? quantized(weight, recipe_.dgrad.b, true) : weight.columnwise;
  device_.grouped_matmul({dx, dy.rowwise, w, groups, {GemmRole::dgrad, recipe_.dgrad.fast_accum}});
}

void ExpertLinear::wgrad(const Tensor& dweight, const QuantizedTensor& dy, const QuantizedTensor& x,
                         const Groups& groups, bool accumulate) const {
  const Scope scope(arena_);
  device_.grouped_matmul({dweight,
                          columns_of(device_, arena_, dy, groups),
                          columns_of(device_, arena_, x, groups),
                          groups,
                          {GemmRole::wgrad, recipe_.wgrad.fast_accum, accumulate}});
}

}  // namespace precbench
