// Observer of the training step's quantized operands.
#pragma once

#include <cstdint>

#include "kernels/device/moe_ops.h"
#include "models/transformer/linear/linear.h"

namespace precbench {

/// Observes quantization. Called with every operand of a block's linear layers after it has been quantized,
/// while its BF16 value is in memory. Weights that ranks exchange in FP8 are not reported because no rank has
/// their BF16 value. Each quantized copy is reported once per pass; an operand's two copies may come in
/// separate calls.
class QuantizationObserver {
 public:
  virtual ~QuantizationObserver() = default;
  virtual void observe(std::int64_t layer, LinearRole role, LinearOperand operand,
                       const QuantizedTensor& values) = 0;
  /// Reports rowwise quantized data that wgrad transposes. `values.value` is empty if this rank lacks the
  /// source value.
  virtual void observe_codes(LinearRole, LinearOperand, const QuantizedTensor&, const Groups&) {}
};

}  // namespace precbench
