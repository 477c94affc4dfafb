// Linear layers of experts in a recipe: the three GEMMs of linear.h for each expert with the rows of its
// group. Weights are stacked, [E * N, K], and each expert's are quantized separately.
#pragma once

#include <optional>
#include <string>

#include "models/transformer/linear/linear.h"

namespace precbench {

/// Returns why experts cannot run in a recipe; null if they can.
std::optional<std::string> experts_unsupported_reason(const Recipe& recipe);

/// Rows of a GPU kernel's tile. A tile never spans two experts.
inline constexpr std::int64_t kGpuGroupRows = 128;

/// Returns the multiple to which groups of rows are padded.
std::int64_t group_padding(const Recipe& recipe);

class ExpertLinear {
 public:
  /// `slots`: the weight slots must be those of these experts.
  ExpertLinear(Device& device, Arena& arena, const Recipe& recipe, std::int64_t experts,
               const LinearSlots& slots = {})
      : device_(device), arena_(arena), recipe_(recipe), experts_(experts), slots_(slots) {}

  /// Return a grouped value with memory for the copies of X or dY; `rowwise` and `columnwise` select X's.
  /// Only rowwise X records its amax.
  QuantizedTensor input(const Tensor& value, bool rowwise, bool columnwise) const;
  QuantizedTensor gradient(const Tensor& value) const;
  /// Returns memory for rowwise data alone, of X or dY, which wgrad transposes (Recipe::flow).
  GemmOperand codes(std::int64_t rows, std::int64_t cols) const;

  /// Returns memory for dgrad's copy of a weight [E * N, K]; empty if dgrad reads the weight itself or fprop
  /// has no copy to make it with.
  GemmOperand weight_columns(std::int64_t rows, std::int64_t cols) const;

  /// Y[rows,N] = X[rows,K] W_e[N,K]^T. Also makes weight.columnwise, if allocated, so that the weights are
  /// read only once.
  void fprop(const Tensor& y, const QuantizedTensor& x, const Weight& weight, const Groups& groups) const;
  /// dX[rows,K] = dY[rows,N] W_e[N,K]. Reads weight.columnwise as fprop made it, or quantizes the weight if
  /// it is empty.
  void dgrad(const Tensor& dx, const QuantizedTensor& dy, const Weight& weight, const Groups& groups) const;
  /// dW_e[N,K] = or += dY^T X over the rows of expert e.
  void wgrad(const Tensor& dweight, const QuantizedTensor& dy, const QuantizedTensor& x, const Groups& groups,
             bool accumulate) const;

 private:
  QuantizedTensor grouped(const Tensor& value, const QuantFormat& row, const QuantFormat& column,
                          const OperandSlot& slot) const;
  /// Returns a quantized copy of a weight in transient memory, and makes `also` in the same pass.
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
