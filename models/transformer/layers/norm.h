// A block's norms as the linear layers after them see them: the output that forward saves for wgrad, and the
// backward GEMMs that read it again. A block with norms on its outputs has none here: the linear layers read the
// residual stream itself, as if through a norm that changes nothing.
#pragma once

#include <cstdint>
#include <functional>

#include "models/transformer/layers/step_context.h"

namespace precbench {

/// Tensors that forward saves of a norm. At most one of `value` and `copy` is kept; if neither is, backward
/// repeats the norm from its input and rstd.
struct NormSaved {
  Tensor value;      ///< output [M, width], if wgrad reads it in BF16
  GemmOperand copy;  ///< quantized output: columnwise, or rowwise if wgrad transposes it
  Tensor rstd;       ///< f32 [stream_rows]
  Tensor mean = {};  ///< f32 [stream_rows], of LayerNorm
};

/// Weights of a norm or their gradients, [width] each: the gain, empty without a norm, and LayerNorm's bias, which
/// may be empty.
struct NormWeights {
  Tensor gain, bias = {};
};

/// A norm's saved output, and the inputs to recompute it.
struct NormOutput {
  NormSaved saved;
  Tensor sum;  ///< residual stream at its input [stream_rows, width]
  NormWeights weights;
  /// KeptActivations::norm_input, if the norm's ops make it from sum (keeps_directly) and read it in place of sum.
  GemmOperand kept = {};
};

/// Users of a norm's output. Experts make the columnwise copy of their own rows in backward, so none of the
/// output is saved for them.
enum class NormConsumer : std::uint8_t { dense, experts };

/// Allocates the statistics of a norm's rows.
void push_norm_statistics(const StepContext& step, NormSaved& saved);
/// Allocates the value or copy that is saved for the wgrad of `layer`.
void push_norm_saved(const StepContext& step, const Linear& layer, NormConsumer consumer, NormSaved& saved);
/// Allocates a norm's output: transient operands for fprop; what is saved for wgrad is written as well.
QuantizedTensor push_norm_output(const StepContext& step, const Linear& layer, const NormSaved& saved);
/// norm.sum = x + branch, and its norm `h`, of all M rows. `branch`: may be empty, then norm.sum is x.
void add_norm(const StepContext& step, QuantizedTensor& h, const NormOutput& norm, const Tensor& x,
              const Tensor& branch);
/// Repeats add_norm from norm.sum, or from norm.kept.
void repeat_norm(const StepContext& step, QuantizedTensor& h, const NormOutput& norm);
/// dx = `dresidual` (may be empty) plus the gradient of its input through the norm, from `dh`, that of its output.
/// `dweights`: the weights' gradients.
void norm_backward(const StepContext& step, QuantizedTensor& dx, const NormWeights& dweights,
                   const Tensor& dresidual, const Tensor& dh, const NormOutput& norm);
/// Repeats a norm for fprop: returns its output as forward made it, in transient memory and without a copy for
/// wgrad. `prepare`: completes the allocated output before the norm writes it.
QuantizedTensor recompute_norm_output(const StepContext& step, const Linear& layer, const NormOutput& norm,
                                      const std::function<void(QuantizedTensor&)>& prepare);
/// Recomputes a norm's BF16 output into transient memory.
Tensor recompute_norm(const StepContext& step, const NormOutput& norm);

/// Run the backward GEMMs of the linear layer that follows a norm. `dx`: of this rank's rows of the residual stream.
void norm_dgrad(const StepContext& step, std::int64_t layer, LinearRole role, const Tensor& dx,
                const QuantizedTensor& dy, const BlockWeights& w, const NormOutput& norm);
void norm_wgrad(const StepContext& step, std::int64_t layer, LinearRole role, const BlockTensors& g,
                const QuantizedTensor& dy, const BlockWeights& w, const NormOutput& norm);

}  // namespace precbench
