// State and helpers that all parts of the training step share: device, arena, parameters, the model and its
// options, the micro-step, and the GEMMs and quantized operands of a linear layer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "models/transformer/layers/transformer_options.h"
#include "models/transformer/linear/linear.h"
#include "models/transformer/linear/quantization_observer.h"
#include "models/transformer/parallel/parameters.h"

namespace precbench {

/// Returns true if the format has one scale per tensor, which is derived from the tensor's amax.
inline bool has_tensor_scale(const QuantFormat& format) { return format.granularity == Granularity::tensor; }

/// Returns true if the columnwise copy of a tensor is the transposed data of its rowwise one: FP8 rounded to nearest,
/// with one scale from the tensor's own amax.
inline bool is_one_cast(const QuantFormat& rowwise, const QuantFormat& columnwise) {
  return has_tensor_scale(rowwise) && rowwise == columnwise && bits_of(rowwise.dtype) == 8 &&
         !rowwise.delayed() && !rowwise.transform && rowwise.element_rounding == ElementRounding::rne;
}

/// Returns true if a copy of the layer's X is scaled by X's own amax.
bool has_amax_of_x(const Linear& linear);

/// Binds the operand to its slot: random numbers and the amaxes of delayed scaling.
void use_slot(QuantizedTensor& operand, const OperandSlot& slot);

/// Copies of a gradient to allocate: those of dgrad and wgrad, or dgrad's alone.
enum class GradientCopies : std::uint8_t { all, rowwise };

/// Allocates operands' quantized copies in the arena's stack; BF16 formats need none.
class OperandBuilder {
 public:
  explicit OperandBuilder(Arena& arena) : arena_(arena) {}

  /// Allocate the rowwise or columnwise copy, and f32 [1] for the amax if its scale needs one.
  void push_rowwise(QuantizedTensor& operand, const QuantFormat& format) const;
  void push_columnwise(QuantizedTensor& operand, const QuantFormat& format) const;
  void push_amax(QuantizedTensor& operand, const QuantFormat& format) const;
  /// Returns a gradient with memory for the copies of dY, without the columnwise one if wgrad transposes
  /// rowwise data.
  QuantizedTensor push_gradient(const Tensor& value, const Linear& consumer,
                                GradientCopies copies = GradientCopies::all) const;
  /// Allocates one quantized copy of a [rows, k] matrix.
  GemmOperand push(const QuantFormat& format, std::int64_t rows, std::int64_t k) const {
    return push_gemm_operand(arena_, Segment::activations, format, rows, k);
  }

 private:
  Arena& arena_;
};

/// A block's full forward pass, or its repetition in backward, which reuses the routing and ends before
/// SwiGLU.
enum class ForwardKind : std::uint8_t { full, recompute };

/// Source of a per-tensor scale: the operand's own amax, or the amaxes of previous steps.
enum class ScaleSource : std::uint8_t { current, delayed };

class LoraLayers;

/// Input of M positions: tokens, and their documents if several share a sequence.
struct Tokens {
  Tensor ids;  ///< i32 [M]
  Tensor first_key =
      {};  ///< i32 [M]: where in its sequence the document of each position begins; may be empty
  Tensor positions = {};  ///< i32 [M]: in the document; given with first_key

  Tokens(const Tensor& ids_) : ids(ids_) {}  // NOLINT(google-explicit-constructor): tokens alone
  Tokens(const Tensor& ids_, const Tensor& first_key_, const Tensor& positions_)
      : ids(ids_), first_key(first_key_), positions(positions_) {}

  Tokens slice_rows(std::int64_t first, std::int64_t rows) const {
    if (first_key.empty()) return {ids.slice_rows(first, rows)};
    return {ids.slice_rows(first, rows), first_key.slice_rows(first, rows),
            positions.slice_rows(first, rows)};
  }
};

struct StepContext {
  StepContext(Device& device, Arena& arena, Parameters& parameters, const ModelConfig& config,
              const TransformerOptions& options);
  ~StepContext();
  StepContext(const StepContext&) = delete;
  StepContext& operator=(const StepContext&) = delete;

  Device& device;
  Arena& arena;
  Parameters& parameters;
  const ModelConfig config;  ///< of this rank's share of the model, if tensor ranks divide it
  const TransformerOptions options;
  const SequencePart sequence;  ///< this rank's part of each sequence
  /// Shape of one attention call: all rows, or with context ranks those of one half (sequence_part.h).
  const AttentionShape attention_shape;
  const std::int64_t M;  ///< tokens of one micro-step on one rank: the rows of GEMMs
  Comm* const tensor;    ///< ranks that share these rows (tensor parallelism); null for one
  /// Rows of the residual stream that this rank has, adds to and norms (sequence parallelism): M divided by the tensor
  /// ranks, consecutive and in rank order.
  const std::int64_t stream_rows;
  const OperandBuilder operands;
  std::uint32_t micro_step = 0;
  float loss_scale = 0;                      ///< of this micro-step
  Tensor first_key, positions;               ///< of this micro-step (Tokens)
  QuantizationObserver* observer = nullptr;  ///< null: nobody observes
  const std::unique_ptr<LoraLayers> lora;    ///< adapters of the linear layers; null: the model is trained

  /// Returns true if a layer's input is read in BF16 beside its recipe's copies: by an observer or by adapters.
  bool reads_values() const { return observer || lora; }

  /// Returns a linear layer with its recipe and slots. `layer`: config.layers for lm_head.
  Linear linear(std::int64_t layer, LinearRole role) const;
  const Recipe& recipe(std::int64_t layer, LinearRole role) const { return options.recipe_of(layer, role); }

  /// Allocate activations: [M, cols] in the activations' dtype, or any matrix.
  Tensor push(std::int64_t cols) const { return push(options.activations, M, cols); }
  Tensor push(DType dtype, std::int64_t rows, std::int64_t cols) const {
    return arena.push(Segment::activations, dtype, rows, cols);
  }

  /// Allocates this rank's rows of the residual stream or its gradient.
  Tensor push_stream() const { return push(options.activations, stream_rows, config.width); }
  /// Returns this rank's rows of the residual stream among all M.
  Tensor own_rows(const Tensor& rows) const {
    return tensor ? rows.slice_rows(tensor->rank() * stream_rows, stream_rows) : rows;
  }
  /// Writes the value and the quantized copies of `x` [M, cols] from each tensor rank's own rows of the value. With
  /// TransformerOptions::tensor_fp8 the value of `x` is not written where FP8 data of one scale takes its place.
  void gather_over_tensor(QuantizedTensor& x, const Tensor& own) const;
  /// Runs op(partial), which writes this rank's part of a sum over tensor ranks, [M, cols], and puts this rank's rows
  /// of the sum into `rows`. Without tensor ranks `partial` is `rows`.
  void sum_over_tensor(const Tensor& rows, const std::function<void(const Tensor& partial)>& op) const;
  /// Returns the first token of this rank's part of the vocabulary.
  std::int64_t first_token() const { return tensor ? tensor->rank() * config.vocab : 0; }

  /// Returns what a norm adds to its weights.
  float gain_offset() const { return config.block.gains_minus_one ? 1.0f : 0.0f; }
  /// Returns attention_shape with the window and the softcap of a layer. A window of all keys is none.
  AttentionShape attention_shape_of(std::int64_t layer) const;
  /// Returns the documents of `rows` tokens from `first` on, whose attention in a layer has the shape.
  DocumentMask documents_of(const AttentionShape& shape, std::int64_t first, std::int64_t rows) const;

  /// x *= factor, unless it is 1.
  void scale(const Tensor& x, double factor) const;
  /// Runs op(x), which writes x's value and quantized copies. If the scale needs an amax of other ranks or a
  /// delayed scale has no history, runs it in two parts: first the amax, then, after share_amax(),
  /// quantization.
  void produce_quantized(QuantizedTensor& x, const std::function<void(QuantizedTensor&)>& op) const;
  /// All-reduces (max) an amax over the ranks that share it; that of a delayed scale over all, and only if
  /// its recipe shares them.
  void share_amax(const Tensor& amax, ScaleSource source) const;

  /// Run the GEMMs of a block's linear layer, selected by role, and those of its adapters. With adapters x and dy need
  /// their value as well, and wgrad computes gradients of the adapters alone.
  void fprop(std::int64_t layer, LinearRole role, const Tensor& y, const QuantizedTensor& x,
             const BlockWeights& w) const;
  /// Computes columns [first, first + count) of y alone, for which weight_slice_unsupported_reason() must give none.
  void fprop_columns(std::int64_t layer, LinearRole role, const Tensor& y, std::int64_t first,
                     std::int64_t count, const QuantizedTensor& x, const BlockWeights& w) const;
  /// Returns true if selective recomputation keeps outputs of the layer's GEMM.
  bool keeps_output(std::int64_t layer, LinearRole role) const {
    return !recipe(layer, role).quantized() || options.kept.gemm_output == KeptAs::value;
  }
  /// `x`: the layer's input in BF16, read if the recipe masks what fprop's cast has clipped.
  void dgrad(std::int64_t layer, LinearRole role, const Tensor& dx, const QuantizedTensor& dy,
             const BlockWeights& w, const Tensor& x) const;
  /// Commits the gradient's memory, then adds to what earlier micro-steps left there.
  void wgrad(std::int64_t layer, LinearRole role, const BlockTensors& g, const QuantizedTensor& dy,
             const QuantizedTensor& x, const BlockWeights& w) const;

  /// Allocates the quantized copy of an activation [M, cols] that is kept in a format other than BF16; empty for BF16.
  GemmOperand push_kept(const QuantFormat& format, std::int64_t cols) const {
    return format.quantized() ? operands.push(format, M, cols) : GemmOperand{};
  }
  /// Quantizes an activation into what is kept of it, and reads that back as forward and backward see it.
  void keep(const GemmOperand& kept, const Tensor& value) const;
  void read_back(const Tensor& value, const GemmOperand& kept) const { device.dequantize({value, kept}); }
  /// Returns the layer's X with the copy that a GEMM reads, fprop or wgrad, made from its BF16 value in transient
  /// memory. `amax`: that of the value if forward has saved it.
  QuantizedTensor quantized_for(GemmRole gemm, std::int64_t layer, LinearRole role, const Tensor& value,
                                const Tensor& amax = {}) const;

  void observe(std::int64_t layer, LinearRole role, LinearOperand operand,
               const QuantizedTensor& values) const;
  /// Reports the data if the layer's recipe has wgrad transpose it.
  void observe_codes(std::int64_t layer, LinearRole role, LinearOperand operand,
                     const QuantizedTensor& values, const Groups& groups = {}) const;
  /// Quantizes the weight again for the observer, in memory that the GEMM's own copy has just freed. `gemm`:
  /// fprop or dgrad.
  void observe_weight(std::int64_t layer, LinearRole role, const Weight& weight, GemmRole gemm) const;

 private:
  /// Gathers the FP8 data of `x`, all of whose copies have this format.
  void gather_codes(const QuantizedTensor& x, const Tensor& own, const QuantFormat& format) const;
  /// Returns an operand's random numbers in this micro-step. A recomputation draws the same ones.
  RandomStream random_of(std::int64_t layer, LinearRole role, LinearOperand operand) const;
};

}  // namespace precbench
