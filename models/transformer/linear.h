// A linear layer in a recipe: which forms its operands take, and its three GEMMs.
//   fprop  Y = X W^T      dgrad  dX = dY W      wgrad  dW = dY^T X
#pragma once

#include <utility>

#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "kernels/numerics/recipe.h"
#include "models/transformer/weight_amaxes.h"

namespace precbench {

/// Memory for a quantized form of a [rows, k] matrix; BF16 forms need none (see make_quantized_tensor).
GemmOperand push_gemm_operand(Arena& arena, Segment segment, const QuantFormat& format, std::int64_t rows,
                              std::int64_t k);

/// An operand around an existing value, without quantized forms yet: BF16 forms alias the value.
/// `row` and `col` are the formats of the GEMMs that contract over its columns and over its rows.
QuantizedTensor make_quantized_tensor(const Tensor& value, const QuantFormat& row, const QuantFormat& col);

/// The form that wgrad takes of an operand: the columnwise one, or where only codes of rows are there (Recipe::flow) their
/// transposition, in transient memory. `groups`: of experts' rows.
GemmOperand columns_of(Device& device, Arena& arena, const QuantizedTensor& operand,
                       const Groups& groups = {});

/// A weight matrix [N, K] as a linear layer takes it, in one of three ways:
///   value       BF16; each GEMM quantizes it where it uses it
///   rowwise     quantized, of the form that fprop takes; for dgrad it is transposed
///   columnwise  quantized, of the form that dgrad takes; backward has it where each pass has a form of its own
/// Ranks that exchange weights in FP8 have no value.
struct Weight {
  Tensor value;
  GemmOperand rowwise = {}, columnwise = {};
};

/// Which operand of a linear layer.
enum class LinearOperand : std::uint8_t { x, dy, w };
/// "x", "dy", "w"
const char* name_of(LinearOperand operand);

/// What an operand has of its own from step to step. Delayed scaling's amaxes, f32 [1], of a stack of experts'
/// weights [1, experts]: what its scale comes from, and
/// what this step's own raises; empty where the scale is not delayed, `staged` alone where nothing is to be noted. And the
/// random numbers of its rounding.
struct OperandSlot {
  Tensor known = {}, staged = {};
  RandomStream random = {};
};
struct LinearSlots {
  OperandSlot x = {}, w = {}, dy = {};
  bool current = false;  ///< nothing is known yet: `known` is first made from the operand itself
  WeightAmaxes::Slot* w_amax =
      nullptr;  ///< of a weight whose scale comes from itself; null: each GEMM finds it
};

/// Gives a weight the amaxes that its one scale, or each expert's of a stack, is made by in this format, and the slot that its own
/// are noted in; `columns`: for dgrad, which notes none, as both passes see the same weights. quantize(w) runs first where
/// delayed scaling knows none yet. Returns false, and does nothing, where no slot has any.
template <class Quantize>
bool take_amaxes(QuantizedTensor& w, const LinearSlots& slots, const QuantFormat& format, bool columns,
                 Quantize&& quantize) {
  if (format.delayed() && !slots.w.known.empty()) {
    if (slots.current) quantize(QuantizedTensor{.value = w.value, .amax_out = slots.w.known});
    w.amax_in = slots.w.known;
    if (!columns) w.amax_out = slots.w.staged;
    return true;
  }
  if (format.granularity != Granularity::tensor || !slots.w_amax) return false;
  (std::exchange(slots.w_amax->known, true) ? w.amax_in : w.amax_out) = slots.w_amax->amax;
  return true;
}

/// A linear layer without its weight: a recipe, bound to a device and an arena. Weights are quantized into transient
/// memory, because every training step changes them.
class Linear {
 public:
  Linear(Device& device, Arena& arena, const Recipe& recipe, OpClass op_class = OpClass::gemm,
         const LinearSlots& slots = {})
      : device_(device), arena_(arena), recipe_(recipe), op_class_(op_class), slots_(slots) {}

  const Recipe& recipe() const { return recipe_; }
  const LinearSlots& slots() const { return slots_; }
  const QuantFormat& x_rowwise() const { return recipe_.fprop.a; }
  /// BF16 where wgrad takes what fprop's codes stand for, which it makes of the value itself.
  const QuantFormat& x_columnwise() const {
    static constexpr QuantFormat kPlain{};
    return recipe_.wgrad.b.from_fprop ? kPlain : recipe_.wgrad.b;
  }
  const QuantFormat& dy_rowwise() const { return recipe_.dgrad.a; }
  const QuantFormat& dy_columnwise() const { return recipe_.wgrad.a; }

  /// Y[M,N] = X[M,K] W[N,K]^T; reads x.rowwise.
  void fprop(const Tensor& y, const QuantizedTensor& x, const Weight& weight) const;
  /// dX[M,K] = or += dY[M,N] W[N,K]; reads dy.rowwise, and with mask_clipped fprop's X, whose BF16 value is `x`.
  void dgrad(const Tensor& dx, const QuantizedTensor& dy, const Weight& weight, const Tensor& x = {},
             bool accumulate = false) const;
  /// The weight with the form that fprop takes, or with `columns` dgrad, in the arena's stack.
  QuantizedTensor quantized_weight(const Weight& weight, bool columns) const;
  /// dW[N,K] = or += dY[M,N]^T X[M,K]; reads dy.columnwise and x.columnwise, the codes of rows of one that has no
  /// columns, or x.value (x_columnwise), and with mask_clipped the weight.
  void wgrad(const Tensor& dweight, const QuantizedTensor& dy, const QuantizedTensor& x, const Weight& weight,
             bool accumulate) const;

 private:
  /// The form of a weight that a GEMM takes, in transient memory; `columns`: for dgrad.
  GemmOperand quantized(const Weight& weight, const QuantFormat& format, bool columns) const;
  /// The columnwise form of what fprop's codes of a matrix stand for, in transient memory.
  GemmOperand quantized_again(const Tensor& value, const QuantFormat& fprop_format, const QuantFormat& format,
                              const RandomStream& random) const;
  /// A gradient in fprop's transform, turned back: dX or dW, of the operand `value` that fprop had in `format`.
  void turn_back(const Tensor& gradient, const Tensor& turned, const Tensor& value, const QuantFormat& format,
                 bool accumulate) const;

  Device& device_;
  Arena& arena_;
  const Recipe& recipe_;
  OpClass op_class_;
  LinearSlots slots_;
};

}  // namespace precbench
