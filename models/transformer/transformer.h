// Forward and backward of the training step, written once for every device, recipe and rank count.
//
//   embedding; per block: RMSNorm, qkv, (QK-norm) RoPE, attention, o, RMSNorm, gate|up, SwiGLU, down (or
//   their MoE counterparts, mixture.cpp); RMSNorm, lm_head, cross-entropy; then backward in reverse order.
//
// Forward saves a norm's output in the representation that wgrad reads: the columnwise FP8 copy if wgrad is
// quantized, the rowwise FP8 data that wgrad transposes (Recipe::flow), or the BF16 value. With
// recompute_norms the BF16 value is not saved and backward repeats the norm. SwiGLU's output is never saved.
// With recompute only the residual stream at each block's input is saved. A forward pass alone keeps only the
// residual stream from block to block.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "models/transformer/expert_linear.h"
#include "models/transformer/linear.h"
#include "models/transformer/parameters.h"

namespace precbench {

/// Exchange of tokens with the ranks that have their experts (mixture_exchange.cpp).
struct ExpertExchange {
  enum class Mode : std::uint8_t { gather, slots, sync } mode = Mode::gather;
  bool codes = false;      ///< sends the recipe's 8-bit data and scales if it has rowwise ones, else BF16
  std::int64_t slots = 0;  ///< Mode::slots: rows per destination rank
};

struct TransformerOptions {
  std::int64_t B = 1, T = 128;  ///< sequences and tokens per sequence of one micro-step on one rank
  /// Returns the recipe of a linear layer, which must outlive the transformer. `layer`: the block, or
  /// config.layers for lm_head; `role`: a role that selects a recipe (recipe_role). All quantized down layers
  /// must share one recipe. If q, k or v is quantized, qkv is not, and the three run as separate GEMMs.
  std::function<const Recipe&(std::int64_t layer, LinearRole role)> recipe_of;
  bool recompute = false;           ///< per block: save only the block's input
  bool recompute_norms = false;     ///< repeat a norm for wgrad instead of saving its BF16 output
  bool reduce_amax = false;         ///< per-tensor scales use the amax over all ranks
  DType activations = DType::bf16;  ///< f32: the FP32 reference model of the tests
  Tensor random_word = {};          ///< random word of stochastic rounding (RandomStream); empty: 0
  /// Index of this rank's first token among a micro-step's tokens on all ranks.
  std::int64_t first_token = 0;
  /// MoE capacity factor: an expert takes at most ceil(capacity * tokens * top_k / experts) of this rank's
  /// slots; 0: no limit.
  double capacity = 0;
  std::int64_t group_rows = 1;    ///< alignment of an expert's first row: at least kGpuGroupRows on a GPU
  float balance = 0, z_loss = 0;  ///< coefficients of the router losses, which the reported loss excludes
  ExpertExchange exchange = {};
  /// For tests of expert parallelism by all-gather: i32 [tokens, top_k] holding 0, 1, 2, ... If set, every
  /// slot's row is returned separately and a token's rows are summed as on one rank. If empty, each rank
  /// returns its partial sum.
  Tensor slot_numbers = {};
};

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

/// Tokens per chunk of the head: logits are computed in chunks so that they are never in memory whole. A
/// quantized head runs as a single chunk because its scales may span all tokens.
inline constexpr std::int64_t kHeadRun = 2048;

class Transformer {
 public:
  Transformer(Device& device, Arena& arena, Parameters& parameters, const ModelConfig& config,
              const TransformerOptions& options);

  /// Runs forward and backward of one micro-step over tokens and targets (i32 [M]). `loss_scale` weights each
  /// token's loss (1 / all tokens of the optimizer step). Writes the sum of the tokens' losses in nats to
  /// loss_sum (f32 [1]); the first micro-step overwrites it, later ones add. Gradient reductions over ranks
  /// are started but not finished: call parameters().complete(unit) before reading a gradient.
  void forward_backward(const Tensor& loss_sum, const Tensor& tokens, const Tensor& targets, float loss_scale,
                        bool first_micro_step);

  /// Runs forward only, with the training step's arithmetic. Writes every token's loss in nats to `losses`
  /// (f32 [M]). Needs no more memory than a training step with these or coarser formats. Call after
  /// parameters().begin_step().
  void forward(const Tensor& losses, const Tensor& tokens, const Tensor& targets);

  void set_quantization_observer(QuantizationObserver* observer) { quantization_observer_ = observer; }

 private:
  using Role = LinearRole;

  /// A token tensor received from other ranks: BF16 rows, or quantized data with scales.
  struct Arrived {
    Tensor value;
    GemmOperand codes;
  };
  /// A router's decisions of one block. Recomputation reuses them.
  struct SavedRouting {
    Tensor z, index, weights, report;  // see ops::Route
    Groups groups;                     // of the rows that this rank's experts compute
    Tensor group_weights;              // routing weights of the tokens those rows come from
    Tensor x_amax;  // f32 [1], amax over all ranks of the experts' X, where its scale is derived from it
    // With expert parallelism only:
    Arrived x;     // the received tokens
    Groups peers;  // this rank's tokens grouped by destination rank; unused with all-gather
    std::vector<std::int64_t> out, in;  // rows sent to and received from each rank
  };
  /// Tensors that a block's forward saves for its backward.
  struct Saved {
    Tensor x;             // residual stream at the block's input [M, C]
    Tensor rstd1, rstd2;  // f32 [M]
    Tensor raw_qkv;       // with QK-norm: qkv before norm and RoPE, which backward repeats; else after RoPE
    Tensor attention;     // [M, H D]
    Tensor lse;           // f32 [H, M]
    Tensor mid;           // residual stream after attention [M, C]
    Tensor gate_up;       // [M, 2F]; of experts [rows_capacity, 2F]
    Tensor h1, h2;        // outputs of the norms, if wgrad reads them in BF16
    GemmOperand h1_form,
        h2_form;  // if wgrad reads them quantized: columnwise, or rowwise if it transposes them
    GemmOperand attention_codes;  // rowwise output of attention, if wgrad transposes it
    Tensor attention_amax;        // f32 [1], if both copies of attention's output have one scale per tensor
    Tensor swiglu_amax;           // f32 [1], if SwiGLU's output has one scale per tensor
    SavedRouting routing;
    // Expert weights for dgrad; empty: dgrad quantizes them itself.
    GemmOperand gate_up_columns, down_columns;
    Tensor shared_gate_up, shared_swiglu_amax;
  };
  /// The linear layers around a SwiGLU, its width, and its saved tensors.
  struct SwigluLayers {
    Role gate_up, down;
    std::int64_t ffn;
    Tensor saved_gate_up, saved_amax;
  };
  Linear linear(std::int64_t layer, Role role) const;
  /// Returns an operand's random numbers in this micro-step. A recomputation draws the same ones.
  RandomStream random_of(std::int64_t layer, Role role, LinearOperand operand) const;
  Tensor push(std::int64_t cols) { return push(options_.activations, M_, cols); }
  Tensor push(DType dtype, std::int64_t rows, std::int64_t cols) {
    return arena_.push(Segment::activations, dtype, rows, cols);
  }
  /// Binds the operand to its slot: random numbers and the amaxes of delayed scaling.
  static void use_slot(QuantizedTensor& operand, const OperandSlot& slot);
  /// Allocate the quantized copies that the operand's formats need; BF16 formats need none.
  void push_row(QuantizedTensor& operand, const QuantFormat& format);
  void push_amax(QuantizedTensor& operand, const QuantFormat& format);
  void push_col(QuantizedTensor& operand, const QuantFormat& format);
  /// Returns a gradient with memory for the copies of dY, without the columnwise one if wgrad transposes
  /// rowwise data.
  QuantizedTensor push_gradient(const Tensor& value, const Linear& consumer, bool columns = true);
  /// Returns true if the block reads the residual gradient's columnwise copy. Routed experts make their own.
  bool takes_columns(std::int64_t layer) const;
  /// Allocates what all blocks share in a pass. `dx0` [M, width]: gradient of the embedded tokens.
  void push_shared(const Tensor& dx0);
  /// Returns the residual stream's gradient in `slot` with the copies that block `consumer_layer` reads (-1:
  /// the embedding, which reads none).
  QuantizedTensor gradient_in(int slot, std::int64_t consumer_layer) const;
  void push_saved(std::int64_t layer, Saved& saved);
  void push_inner(std::int64_t layer, Saved& saved);
  /// Drops the columnwise expert weights of a forward pass whose backward, if any, makes its own.
  static void leave_weight_columns(Saved& saved) { saved.gate_up_columns = saved.down_columns = {}; }
  void observe(std::int64_t layer, Role role, LinearOperand operand, const QuantizedTensor& values);
  /// Reports the data if the layer's recipe has wgrad transpose it.
  void observe_codes(std::int64_t layer, Role role, LinearOperand operand, const QuantizedTensor& values,
                     const Groups& groups = {});
  /// Quantizes the weight again for the observer, in memory that the GEMM's own copy has just freed.
  void observe_weight(std::int64_t layer, Role role, const Weight& weight, bool columns);
  /// Runs op(x). If the scale needs an amax over all ranks or a delayed scale has no history, runs it in two
  /// parts: first the amax, then, after share_amax(), quantization.
  void produce(QuantizedTensor& x, const std::function<void(QuantizedTensor&)>& op);
  /// All-reduces (max) an amax over all ranks; the amax of a delayed scale only if its recipe shares them.
  void share_amax(const Tensor& amax, bool delayed) const;

  /// Run the GEMMs of a block's linear layer, selected by role.
  void fprop(std::int64_t layer, Role role, const Tensor& y, const QuantizedTensor& x, const BlockWeights& w);
  /// `x`: the layer's input in BF16, read if the recipe masks what fprop's cast has clipped.
  void dgrad(std::int64_t layer, Role role, const Tensor& dx, const QuantizedTensor& dy,
             const BlockWeights& w, const Tensor& x);
  /// Commits the gradient's memory, then adds to what earlier micro-steps left there.
  void wgrad(std::int64_t layer, Role role, const BlockTensors& g, const QuantizedTensor& dy,
             const QuantizedTensor& x, const BlockWeights& w);
  // RoPE (qkv_turn.cpp)
  RopeOptions rope_options(const BlockWeights& w) const;
  /// Computes attention's input `qkv` from saved.raw_qkv: bias, QK-norm, RoPE. In place without QK-norm.
  void turn(const Tensor& qkv, const Saved& saved, const BlockWeights& w);
  /// Computes dqkv, the gradient of raw_qkv with its quantized copies, and those of the QK-norm gains.
  void turn_backward(QuantizedTensor& dqkv, const Tensor& dturned, const Saved& saved, const BlockWeights& w,
                     const BlockTensors& g);
  /// Separate q, k and v GEMMs (qkv_apart.cpp). qkv_apart() returns true if a block uses them; `x` and `dqkv`
  /// are BF16.
  bool qkv_apart(std::int64_t layer) const;
  void fprop_apart(std::int64_t layer, const Tensor& y, const QuantizedTensor& x, const BlockWeights& w);
  void backward_apart(std::int64_t layer, const Tensor& dx, const Tensor& dqkv, const BlockWeights& w,
                      const BlockTensors& g, const Tensor& x);
  /// `again`: recomputation in backward, which needs neither the first residual sum nor the output.
  void block_forward(std::int64_t layer, Saved& saved, const BlockWeights& w, const Tensor& x, bool again);
  void block_backward(std::int64_t layer, Saved& saved);
  void ffn_backward(std::int64_t layer, const Saved& saved, const BlockWeights& w, const BlockTensors& g,
                    const QuantizedTensor& dx, QuantizedTensor& dmid);
  SwigluLayers dense_layers(const Saved& saved) const;
  /// Computes `out`, the output of the down layer, from the saved gate_up.
  void swiglu_forward(std::int64_t layer, const SwigluLayers& layers, const BlockWeights& w,
                      const Tensor& out);
  void attention_backward(std::int64_t layer, const Saved& saved, const BlockWeights& w,
                          const BlockTensors& g, const QuantizedTensor& dmid);
  /// Allocates a norm's output: transient operands for fprop; `value` or `form` is saved for wgrad.
  QuantizedTensor normed(const Linear& consumer, const Tensor& value, const GemmOperand& form);
  /// A norm's output as it was saved (at most one of value and form), and the inputs to recompute it.
  struct NormOutput {
    Tensor value;
    GemmOperand form;  ///< the columnwise copy, or the rowwise one if wgrad transposes it
    Tensor sum, rstd, gain;
  };
  /// Recomputes its BF16 value into transient memory.
  Tensor normed_again(const NormOutput& norm);
  /// Returns the gradient of the norm's output. It and further temporaries are freed by the caller's scope.
  Tensor swiglu_backward(std::int64_t layer, const SwigluLayers& layers, const BlockWeights& w,
                         const BlockTensors& g, const QuantizedTensor& dx, const NormOutput& norm);
  /// Run the backward GEMMs of the linear layer that follows a norm.
  void norm_dgrad(std::int64_t layer, Role role, const Tensor& dx, const QuantizedTensor& dy,
                  const BlockWeights& w, const NormOutput& norm);
  void norm_wgrad(std::int64_t layer, Role role, const BlockTensors& g, const QuantizedTensor& dy,
                  const BlockWeights& w, const NormOutput& norm);
  // Expert parallelism (mixture_exchange.cpp)
  /// expert_ranks(): ranks that share a block's experts; group_tokens(): maximum token rows that this rank
  /// receives.
  int expert_ranks() const { return parameters_.expert_comm() ? parameters_.expert_comm()->size() : 1; }
  std::int64_t group_tokens() const { return peer_rows() * expert_ranks(); }
  /// Returns the rows of the receive buffer per source rank.
  std::int64_t peer_rows() const {
    return options_.exchange.mode == ExpertExchange::Mode::slots ? options_.exchange.slots : M_;
  }
  bool gathers() const { return options_.exchange.mode == ExpertExchange::Mode::gather; }
  /// Number and first index of this rank's experts of a block.
  std::int64_t own_experts() const { return config_.moe.rule.experts / expert_ranks(); }
  std::int64_t first_expert() const {
    return expert_ranks() > 1 ? parameters_.expert_comm()->rank() * own_experts() : 0;
  }
  /// Returns the experts of all received tokens' slots (i32 [rows, top_k]) and sets routing.group_weights.
  /// `mine`: those of this rank's own tokens, returned unchanged without expert parallelism.
  Tensor gather_routing(SavedRouting& routing, const Tensor& mine);
  void push_peers(SavedRouting& routing);
  /// Reads on the host how many rows are sent to and received from every rank.
  void count_peers(SavedRouting& routing);
  /// Allocates the receive buffer of tokens in a GEMM's format.
  Arrived push_arrived(const QuantFormat& format);
  /// Work to overlap with the exchange of rows; may be empty.
  using Beside = std::function<void()>;
  /// Sends token rows to their experts. Returns the received rows in `format`, quantized here if they came in
  /// BF16, and also in BF16 if `value`.
  QuantizedTensor dispatch(const SavedRouting& routing, const QuantizedTensor& x, const QuantFormat& format,
                           const Arrived& to, bool value, const Beside& beside = {});
  /// Returns the rows received in `x` in the same way. `known`: amax for their scale; empty: their own.
  QuantizedTensor arrived(const SavedRouting& routing, const Arrived& x, const QuantFormat& format,
                          bool value, const Tensor& known = {});
  /// Allocates f32, one number for every received slot.
  Tensor push_arrived_weights(const SavedRouting& routing) {
    return push(DType::f32, group_tokens(), config_.moe.rule.top_k).slice_rows(0, arrived_rows(routing));
  }
  /// Returns the number of received token rows.
  std::int64_t arrived_rows(const SavedRouting& routing) const;
  void send_rows(const SavedRouting& routing, const Tensor& to, const Tensor& from, const Beside& beside);
  void send_codes(const SavedRouting& routing, const GemmOperand& to, const QuantizedTensor& x,
                  const Beside& beside);
  void send_scales(const GemmOperand& to, const GemmOperand& from, const Beside& beside);
  bool as_codes(const QuantFormat& format) const;
  /// Overlapped work that returns a tensor to add; may be empty, as may the tensor.
  using MadeBeside = std::function<Tensor()>;
  /// Sums the experts' rows per token, returns the sums to their ranks and adds the addend. In `op`, groups
  /// and rows belong to this rank's experts and everything else to its own tokens.
  void combine(const SavedRouting& routing, ops::Unpermute op, const MadeBeside& addend);
  /// mine = sum of the ranks' partial results `all` for this rank's tokens + the addend.
  void bring_back(const SavedRouting& routing, const Tensor& mine, const Tensor& all,
                  const MadeBeside& addend = {});
  // Experts (mixture.cpp)
  ExpertLinear experts(std::int64_t layer, Role role) const;
  /// produce() for grouped rows. Runs op(x) twice if an amax must be exchanged: amax, then quantization.
  void produce_grouped(QuantizedTensor& x, const std::function<void(QuantizedTensor&)>& op);
  /// Returns x, made by produce(), with its all-reduced amax as the known amax.
  QuantizedTensor with_shared_amax(QuantizedTensor x) const;
  /// Permutes token rows into expert groups. Tokens without a BF16 value yield no value. Unweighted rows
  /// inherit a known scale of the tokens.
  void permute_rows(QuantizedTensor& x, const QuantizedTensor& tokens, const Tensor& weights,
                    const Groups& groups);
  /// Returns the role whose delayed-scaling slot the second norm's output uses. Experts with weighted input
  /// have a slot of their own, so the norm then uses the shared expert's, even in a model without one.
  Role normed_role(std::int64_t layer) const {
    const bool weighted = config_.has_experts(layer) && config_.moe.weight_at == WeightAt::input;
    return weighted ? Role::shared_gate_up : Role::gate_up;
  }
  /// Return the maximum number of rows of one expert and of all experts of this rank.
  std::int64_t most_rows() const;
  std::int64_t most_rows_of_all() const;
  Tensor push_rows(const Groups& groups, std::int64_t cols) {
    return push(options_.activations, groups.rows_capacity(), cols);
  }
  void push_routing(std::int64_t layer, SavedRouting& saved);
  /// Returns the expert of each slot, or -1 for slots beyond the capacity, before anything is sent. `report`:
  /// as in ops::Group.
  Tensor keep_slots(const Tensor& index, const Tensor& report);
  void route(std::int64_t layer, SavedRouting& saved, const BlockWeights& w, const Tensor& h);
  SwigluLayers shared_layers(const Saved& saved) const;
  /// branch_ = the MoE output for h. `again`: as in block_forward.
  void mixture_forward(std::int64_t layer, Saved& saved, const BlockWeights& w, const QuantizedTensor& h,
                       bool again);
  /// MoE counterpart of swiglu_backward.
  Tensor mixture_backward(std::int64_t layer, const Saved& saved, const BlockWeights& w,
                          const BlockTensors& g, const QuantizedTensor& dx, const NormOutput& norm);
  /// Permutes the tokens' rowwise data of X or dY for wgrad to transpose. Weighted rows are quantized again.
  QuantizedTensor push_codes(std::int64_t layer, Role role, LinearOperand operand,
                             const QuantizedTensor& tokens, const Tensor& weights, const Groups& groups);
  /// Backward of the routed experts: writes dw, their weight gradients, and the gradient of their input rows,
  /// `drows`. h: the norm's output.
  void experts_backward(std::int64_t layer, const Saved& saved, const BlockWeights& w, const BlockTensors& g,
                        const QuantizedTensor& dx, const Tensor& h, const Tensor& dw, const Tensor& drows);
  Tensor shared_backward(std::int64_t layer, const Saved& saved, const BlockWeights& w, const BlockTensors& g,
                         const QuantizedTensor& dx, const NormOutput& norm);
  /// x0_ = embedding rows of the tokens. Prefetches the first block's weights.
  void embed(const Tensor& tokens);
  /// State shared by the chunks of the head: lm_head, the residual stream at its input and its norm.
  struct Head {
    Linear linear;
    Weight weight;
    Tensor gain, x, rstd, normed;
  };
  Head begin_head(const Tensor& mid);
  /// Returns the tokens per chunk: all tokens if the head is quantized, because its scales may span them.
  std::int64_t head_run(const Head& head) const {
    return head.linear.recipe().quantized() ? M_ : std::min(M_, kHeadRun);
  }
  /// Runs the chunk from token `first`: fills losses_ and overwrites the logits with their gradient. `x`
  /// receives the chunk's input.
  QuantizedTensor head_forward(const Head& head, std::int64_t first, const Tensor& targets, float loss_scale,
                               QuantizedTensor& x);
  /// Runs final norm, lm_head, loss and their backward. Leaves the residual stream's gradient in
  /// slots_[slot_].
  void head(const Tensor& loss_sum, const Tensor& targets, float loss_scale, bool first_micro_step);

  Device& device_;
  Arena& arena_;
  Parameters& parameters_;
  ModelConfig config_;
  TransformerOptions options_;
  AttentionShape attention_shape_;
  std::int64_t M_;
  std::uint32_t micro_step_ = 0;
  float loss_scale_ = 0;  // of this micro-step
  Tensor x0_;             // the embedded tokens
  // Forward: a half-block's output until the next norm adds it. Backward: gradient between a block's halves.
  Tensor branch_;
  Tensor mid_;     // residual stream between a block's halves, shared by all blocks unless each saves its own
  Tensor losses_;  // f32 [M]
  std::vector<Saved> saved_;
  QuantizedTensor slots_[2];  // gradient of the residual stream, double-buffered
  int slot_ = 0;              // the one that holds the current gradient
  QuantizationObserver* quantization_observer_ = nullptr;
};

}  // namespace precbench
