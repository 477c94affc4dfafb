// The linear layers of experts in a recipe: linear.h's three GEMMs for each expert with the rows of its group. Weights are
// stacked, [E * N, K]; each expert's are quantized by themselves.
#pragma once

#include <string>

#include "models/transformer/linear.h"

namespace precbench {

/// Why experts cannot run in a recipe; empty if they can.
std::string why_no_experts(const Recipe& recipe);

/// Rows of a tile of a GPU's kernels, which is never of two experts.
inline constexpr std::int64_t kGpuGroupRows = 128;

/// What groups of rows must be a multiple of.
std::int64_t group_padding(const Recipe& recipe);

class ExpertLinear {
 public:
  /// `slots`: the weights' are of these experts.
  ExpertLinear(Device& device, Arena& arena, const Recipe& recipe, std::int64_t experts,
               const LinearSlots& slots = {})
      : device_(device), arena_(arena), recipe_(recipe), experts_(experts), slots_(slots) {}

  /// A grouped value with memory for the wanted forms of a linear layer's X, or of its dY. `rowwise`, `columnwise`: which. X's
  /// amax is noted by who makes rows.
  QuantizedTensor input(const Tensor& value, bool rowwise, bool columnwise) const;
  QuantizedTensor gradient(const Tensor& value) const;
  /// Codes of rows alone, of X or dY, which wgrad transposes (Recipe::flow).
  GemmOperand codes(std::int64_t rows, std::int64_t cols) const;

  /// Memory for the form of a weight [E * N, K] that dgrad takes; empty where that is the weight itself, or where fprop
  /// has no form to make with it.
  GemmOperand weight_columns(std::int64_t rows, std::int64_t cols) const;

  /// Y[rows,N] = X[rows,K] W_e[N,K]^T. Makes weight.columnwise too, if there is one: the weights are read once for both.
  void fprop(const Tensor& y, const QuantizedTensor& x, const Weight& weight, const Groups& groups) const;
  /// dX[rows,K] = dY[rows,N] W_e[N,K]; with weight.columnwise as fprop has made it, or none.
  void dgrad(const Tensor& dx, const QuantizedTensor& dy, const Weight& weight, const Groups& groups) const;
  /// dW_e[N,K] = or += dY^T X over the rows of e
  void wgrad(const Tensor& dweight, const QuantizedTensor& dy, const QuantizedTensor& x, const Groups& groups,
             bool accumulate) const;

 private:
  QuantizedTensor grouped(const Tensor& value, const QuantFormat& row, const QuantFormat& column,
                          const OperandSlot& slot) const;
  /// A weight's form, made in transient memory; with `also` that one at once.
  GemmOperand quantized(const Weight& weight, const QuantFormat& format, bool columns,
                        const GemmOperand& also = {}) const;
  GemmOperand push_weight(const QuantFormat& format, std::int64_t rows, std::int64_t cols,
                          bool columns) const;

  Device& device_;
  Arena& arena_;
  const Recipe& recipe_;
  std::int64_t experts_;
  LinearSlots slots_;
};

}  // namespace precbench
