// A linear layer in a recipe: the quantized copies of its operands and its three GEMMs.
//   fprop  Y = X W^T      dgrad  dX = dY W      wgrad  dW = dY^T X
#pragma once

#include <utility>

#include "kernels/comm/comm.h"
#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "kernels/numerics/recipe.h"
#include "models/transformer/linear/weight_amaxes.h"

namespace precbench {

/// Allocates a quantized copy of a [rows, k] matrix. BF16 formats need none (see make_quantized_tensor).
GemmOperand push_gemm_operand(Arena& arena, Segment segment, const QuantFormat& format, std::int64_t rows,
                              std::int64_t k);

/// Returns an operand around an existing value, without quantized copies yet; BF16 copies alias the value.
/// `row` and `col` are the formats of the GEMMs that contract over its columns and over its rows.
QuantizedTensor make_quantized_tensor(const Tensor& value, const QuantFormat& row, const QuantFormat& col);

/// Returns the copy that wgrad reads: the columnwise one, or if only rowwise data exists (Recipe::flow) its
/// transposition in transient memory. `groups`: of experts' rows.
GemmOperand columns_of(Device& device, Arena& arena, const QuantizedTensor& operand,
                       const Groups& groups = {});

/// A weight matrix [N, K] as a linear layer reads it, in one of three ways:
///   value       BF16; each GEMM quantizes it on use
///   rowwise     quantized for fprop; dgrad transposes it
///   columnwise  quantized for dgrad; used in backward if each pass has a copy of its own
/// With weight-only quantization both passes dequantize rowwise. Ranks that exchange weights in FP8 have no value.
struct Weight {
  Tensor value;
  GemmOperand rowwise = {}, columnwise = {};
};

/// Returns a weight as Recipe::weight_only stores it, or stacked weights of experts as one matrix; quantized now in
/// transient memory unless it is kept so.
GemmOperand stored_weight(Device& device, Arena& arena, const QuantFormat& format, const Weight& weight);
/// Returns the dequantized value of a stored weight, in transient memory.
Tensor dequantized_weight(Device& device, Arena& arena, const QuantFormat& format, const Weight& weight);

/// An operand of a linear layer.
enum class LinearOperand : std::uint8_t { x, dy, w };
/// Returns "x", "dy" or "w".
const char* name_of(LinearOperand operand);

/// Persistent state of an operand: the random numbers of its rounding and, with delayed scaling, its amaxes:
/// f32 [1], or [1, experts] of stacked expert weights. `known` determines the scale and `staged` collects
/// this step's amax. `known` is empty without delayed scaling; `staged` is empty if nothing is to be
/// recorded.
struct OperandSlot {
  Tensor known = {}, staged = {};
  RandomStream random = {};
};
struct LinearSlots {
  OperandSlot x = {}, w = {}, dy = {};
  bool current = false;  ///< no history yet: `known` is first computed from the operand itself
  WeightAmaxes::Slot* w_amax =
      nullptr;  ///< amax of a weight that is scaled by its own amax; null: each GEMM computes it
  Comm* w_ranks = nullptr;  ///< ranks with slices of the weight, which share w_amax; null: none
};

/// Sets where the weight's amaxes are read from and recorded, for a per-tensor scale (per expert if stacked).
/// `columns`: for dgrad, which records nothing because both passes see the same weights. Calls quantize(w)
/// first if delayed scaling has no history yet. Returns false and does nothing if no slot provides an amax.
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
  if (slots.w_ranks && !std::exchange(slots.w_amax->known, true)) {
    quantize(QuantizedTensor{.value = w.value, .amax_out = slots.w_amax->amax});
    slots.w_ranks->all_reduce_max(slots.w_amax->amax);
  }
  (std::exchange(slots.w_amax->known, true) ? w.amax_in : w.amax_out) = slots.w_amax->amax;
  return true;
}

/// A linear layer without its weight: a recipe bound to a device and an arena. Weights are quantized into
/// transient memory because every training step changes them.
class Linear {
 public:
  Linear(Device& device, Arena& arena, const Recipe& recipe, OpClass op_class = OpClass::gemm,
         const LinearSlots& slots = {})
      : device_(device), arena_(arena), recipe_(recipe), op_class_(op_class), slots_(slots) {}

  const Recipe& recipe() const { return recipe_; }
  const LinearSlots& slots() const { return slots_; }
  const QuantFormat& x_rowwise() const { return recipe_.fprop.a; }
  /// BF16 if wgrad quantizes dequantized fprop data again, which it makes from the value itself.
  const QuantFormat& x_columnwise() const {
    static constexpr QuantFormat kPlain{};
    return recipe_.wgrad.b.from_fprop ? kPlain : recipe_.wgrad.b;
  }
  const QuantFormat& dy_rowwise() const { return recipe_.dgrad.a; }
  const QuantFormat& dy_columnwise() const { return recipe_.wgrad.a; }

  /// Y[M,N] = X[M,K] W[N,K]^T; reads x.rowwise.
  void fprop(const Tensor& y, const QuantizedTensor& x, const Weight& weight) const;
  /// dX[M,K] = or += dY[M,N] W[N,K]; reads dy.rowwise. With mask_clipped also reads `x`, the BF16 value of
  /// fprop's X.
  void dgrad(const Tensor& dx, const QuantizedTensor& dy, const Weight& weight, const Tensor& x = {},
             bool accumulate = false) const;
  /// Returns the weight with the copy for fprop, or for dgrad with `columns`, in the arena's stack. With weight-only
  /// quantization the only copy is that for fprop.
  QuantizedTensor quantized_weight(const Weight& weight, bool columns) const;
  /// dW[N,K] = or += dY[M,N]^T X[M,K]; reads the columnwise copies of dy and x, or transposes their rowwise
  /// data, or reads x.value (see x_columnwise). With mask_clipped also reads the weight.
  void wgrad(const Tensor& dweight, const QuantizedTensor& dy, const QuantizedTensor& x, const Weight& weight,
             bool accumulate) const;

 private:
  /// Returns the weight's copy for a GEMM, in transient memory; `columns`: for dgrad.
  GemmOperand quantized(const Weight& weight, const QuantFormat& format, bool columns) const;
  /// Dequantizes fprop's data of a matrix and quantizes it columnwise, in transient memory.
  GemmOperand quantized_again(const Tensor& value, const QuantFormat& fprop_format, const QuantFormat& format,
                              const RandomStream& random) const;
  /// Applies the inverse of fprop's transform to a gradient, dX or dW. `value`: the operand that fprop
  /// quantized to `format`.
  void inverse_hadamard(const Tensor& gradient, const Tensor& turned, const Tensor& value,
                        const QuantFormat& format, bool accumulate) const;

  Device& device_;
  Arena& arena_;
  const Recipe& recipe_;
  OpClass op_class_;
  LinearSlots slots_;
};

}  // namespace precbench
