// The training step's forward and backward, written once for every device, recipe and rank count.
//
//   embedding; per block: RMSNorm, qkv, (QK-norm) RoPE, attention, o, RMSNorm, gate|up, SwiGLU, down (or these of
//   experts, mixture.cpp); RMSNorm, lm_head, cross-entropy; and the same backwards.
//
// Of a norm's output forward keeps for backward what wgrad takes: the FP8 columns where it is quantized, or the codes of
// rows that they are made of (Recipe::flow), else the BF16 value, or with recompute_norms nothing, and the norm is done again. SwiGLU's output is never kept. With
// recompute only the residual stream at each block's input is kept. Forward alone keeps nothing from block to block but
// the residual stream.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "models/transformer/expert_linear.h"
#include "models/transformer/linear.h"
#include "models/transformer/parameters.h"

namespace precbench {

/// How tokens come to experts of other ranks (mixture_exchange.cpp).
struct ExpertExchange {
  enum class Mode : std::uint8_t { gather, slots, sync } mode = Mode::gather;
  bool codes = false;      ///< as the recipe's codes, where it has 8-bit ones of rows
  std::int64_t slots = 0;  ///< of Mode::slots: rows for each rank
};

struct TransformerOptions {
  std::int64_t B = 1, T = 128;  ///< of one micro-step on one rank
  /// The recipe of a linear layer, which must outlive the transformer. `layer`: its block, or config.layers for
  /// lm_head; `role`: one that recipes are chosen by. The down layers of all blocks are in one recipe or in
  /// BF16. Where q, k or v is quantized, qkv is not, and the three are products of their own.
  std::function<const Recipe&(std::int64_t layer, LinearRole role)> recipe_of;
  bool recompute = false;           ///< per block
  bool recompute_norms = false;     ///< a norm's BF16 output is made again for wgrad instead of being kept
  bool reduce_amax = false;         ///< scales of a tensor come from the amax over all ranks
  DType activations = DType::bf16;  ///< f32: the FP32 reference model of the tests
  Tensor random_word = {};          ///< of stochastic rounding (RandomStream); empty: 0
  std::int64_t first_token = 0;     ///< of a micro-step's tokens on all ranks, this rank's first
  /// Rows that an expert takes of this rank's tokens, in those it has where all are chosen equally often; 0: any number.
  double capacity = 0;
  std::int64_t group_rows = 1;  ///< experts' groups begin at multiples of it at least: kGpuGroupRows on a GPU
  float balance = 0, z_loss = 0;  ///< coefficients of the routers' losses, which the reported loss is without
  ExpertExchange exchange = {};
  /// For tests of expert parallelism by all-gather, i32 [tokens, top_k]: 0, 1, 2, ...: every slot's row comes back from its
  /// expert, and a token's are summed as on one rank; not set, the ranks' sums come back.
  Tensor slot_numbers = {};
};

/// Watches quantization: called with every operand of a block's linear layers, after its forms are made and while its
/// BF16 value is there. Weights that ranks exchange in FP8 are not shown: nobody has their value. A form is shown once
/// a pass; what the operand lacks then is shown at another time.
class QuantizationObserver {
 public:
  virtual ~QuantizationObserver() = default;
  virtual void observe(std::int64_t layer, LinearRole role, LinearOperand operand,
                       const QuantizedTensor& values) = 0;
  /// Codes of rows that wgrad transposes, with the value that they are of; empty: nobody here has it.
  virtual void observe_codes(LinearRole, LinearOperand, const QuantizedTensor&, const Groups&) {}
};

/// A step's tokens of the head are done in runs of this many, so that the logits never stand in memory whole; all
/// at once where the head is quantized, whose scales may span them.
inline constexpr std::int64_t kHeadRun = 2048;

class Transformer {
 public:
  Transformer(Device& device, Arena& arena, Parameters& parameters, const ModelConfig& config,
              const TransformerOptions& options);

  /// One micro-step: forward and backward over tokens and targets (i32 [M]), whose loss is weighted with
  /// `loss_scale` (1 / all tokens of the optimizer step). The sum of the tokens' losses in nats goes to
  /// loss_sum (f32 [1]), which the first micro-step overwrites and later ones add to. Reductions of gradients
  /// over ranks are started, not ended: parameters().complete(unit) before one is read.
  void forward_backward(const Tensor& loss_sum, const Tensor& tokens, const Tensor& targets, float loss_scale,
                        bool first_micro_step);

  /// Forward alone, with the training step's arithmetic: every token's loss in nats goes to `losses` (f32 [M]). Takes
  /// no more memory than a training step with these or coarser formats. After parameters().begin_step().
  void forward(const Tensor& losses, const Tensor& tokens, const Tensor& targets);

  void set_quantization_observer(QuantizationObserver* observer) { quantization_observer_ = observer; }

 private:
  using Role = LinearRole;

  /// What came of a value of tokens: rows in BF16, or codes with their scales.
  struct Arrived {
    Tensor value;
    GemmOperand codes;
  };
  /// What a router has decided. Recomputation keeps it.
  struct SavedRouting {
    Tensor z, index, weights, report;  // ops::Route's
    Groups groups;                     // of the rows that this rank's experts compute
    Tensor group_weights;              // of the tokens that they come from
    Tensor x_amax;  // f32 [1], of the experts' X over all ranks, where its scale comes from there
    // With expert parallelism:
    Arrived x;     // those tokens
    Groups peers;  // of one's own tokens on their way to other ranks, unless all go to all
    std::vector<std::int64_t> out, in;  // how many go to each, and come
  };
  /// What a block's forward leaves for its backward.
  struct Saved {
    Tensor x;             // residual stream at the block's input [M, C]
    Tensor rstd1, rstd2;  // f32 [M]
    Tensor raw_qkv;       // with QK-norm before it and RoPE, which backward does again; else after RoPE
    Tensor attention;     // [M, H D]
    Tensor lse;           // f32 [H, M]
    Tensor mid;           // residual stream between the halves [M, C]
    Tensor gate_up;       // [M, 2F]; of experts [rows_capacity, 2F]
    Tensor h1, h2;        // the norms' outputs, where wgrad takes them in BF16
    GemmOperand h1_form,
        h2_form;  // and where it takes them quantized: columns, or codes of rows that it transposes
    GemmOperand attention_codes;  // likewise, where it transposes them
    Tensor attention_amax;  // f32 [1], where both forms of attention's output have one scale for the tensor
    Tensor swiglu_amax;     // f32 [1], where SwiGLU's output has one scale for the tensor
    SavedRouting routing;
    GemmOperand gate_up_columns, down_columns;  // of experts' weights, for dgrad; empty: it makes its own
    Tensor shared_gate_up, shared_swiglu_amax;
  };
  /// The linear layers around a SwiGLU, its width, and what is saved of it.
  struct SwigluLayers {
    Role gate_up, down;
    std::int64_t ffn;
    Tensor saved_gate_up, saved_amax;
  };
  Linear linear(std::int64_t layer, Role role) const;
  /// Random numbers of a linear layer's operand in this micro-step; a recomputation draws the same.
  RandomStream random_of(std::int64_t layer, Role role, LinearOperand operand) const;
  Tensor push(std::int64_t cols) { return push(options_.activations, M_, cols); }
  Tensor push(DType dtype, std::int64_t rows, std::int64_t cols) {
    return arena_.push(Segment::activations, dtype, rows, cols);
  }
  /// Has the operand's random numbers from the slot and, where there is one, its scale, and its amax noted there.
  static void use_slot(QuantizedTensor& operand, const OperandSlot& slot);
  /// Give an operand memory for the forms that its formats ask for; BF16 formats need none.
  void push_row(QuantizedTensor& operand, const QuantFormat& format);
  void push_amax(QuantizedTensor& operand, const QuantFormat& format);
  void push_col(QuantizedTensor& operand, const QuantFormat& format);
  /// A gradient with memory for the forms of a linear layer's dY, without columns where wgrad transposes codes.
  QuantizedTensor push_gradient(const Tensor& value, const Linear& consumer, bool columns = true);
  /// Whether a block takes the columnwise form of the residual stream's gradient: experts make their own.
  bool takes_columns(std::int64_t layer) const;
  /// What all blocks share in one pass; their gradients end in dx0, [M, width], that of the embedded tokens.
  void push_shared(const Tensor& dx0);
  /// The residual stream's gradient in a slot, with the forms that the block below (none: the embedding)
  /// takes.
  QuantizedTensor gradient_in(int slot, std::int64_t consumer_layer) const;
  void push_saved(std::int64_t layer, Saved& saved);
  void push_inner(std::int64_t layer, Saved& saved);
  /// For a forward whose backward, if it has one, makes its own.
  static void leave_weight_columns(Saved& saved) { saved.gate_up_columns = saved.down_columns = {}; }
  void observe(std::int64_t layer, Role role, LinearOperand operand, const QuantizedTensor& values);
  /// Where the layer's recipe has wgrad transpose these codes.
  void observe_codes(std::int64_t layer, Role role, LinearOperand operand, const QuantizedTensor& values,
                     const Groups& groups = {});
  /// Makes one of the weight's forms again, to be watched; where a GEMM had it, so that it takes no more memory.
  void observe_weight(std::int64_t layer, Role role, const Weight& weight, bool columns);
  /// Runs op(x); in two parts around the exchange of x's amax with reduce_amax, and where a delayed scale has no history.
  void produce(QuantizedTensor& x, const std::function<void(QuantizedTensor&)>& op);
  /// What produce() does between: an amax over all ranks, of a delayed scale where its recipe shares them.
  void share_amax(const Tensor& amax, bool delayed) const;

  /// The GEMMs of a block's linear layer, by its role.
  void fprop(std::int64_t layer, Role role, const Tensor& y, const QuantizedTensor& x, const BlockWeights& w);
  /// `x`: the layer's input in BF16, read where its recipe masks what fprop's cast has clipped.
  void dgrad(std::int64_t layer, Role role, const Tensor& dx, const QuantizedTensor& dy,
             const BlockWeights& w, const Tensor& x);
  /// Into memory that is committed first, added to what earlier micro-steps left.
  void wgrad(std::int64_t layer, Role role, const BlockTensors& g, const QuantizedTensor& dy,
             const QuantizedTensor& x, const BlockWeights& w);
  // qkv_turn.cpp
  RopeOptions rope_options(const BlockWeights& w) const;
  /// qkv = what attention takes of saved.raw_qkv, which without QK-norm is the same memory.
  void turn(const Tensor& qkv, const Saved& saved, const BlockWeights& w);
  /// dqkv = the gradient of raw_qkv, in the forms that it has; and those of the norms' gains.
  void turn_backward(QuantizedTensor& dqkv, const Tensor& dturned, const Saved& saved, const BlockWeights& w,
                     const BlockTensors& g);
  /// Whether q, k and v of the block are three products; and these (qkv_apart.cpp). `x`, `dqkv`: in BF16.
  bool qkv_apart(std::int64_t layer) const;
  void fprop_apart(std::int64_t layer, const Tensor& y, const QuantizedTensor& x, const BlockWeights& w);
  void backward_apart(std::int64_t layer, const Tensor& dx, const Tensor& dqkv, const BlockWeights& w,
                      const BlockTensors& g, const Tensor& x);
  /// `again`: a recomputation inside backward, which needs neither the first sum nor the block's output.
  void block_forward(std::int64_t layer, Saved& saved, const BlockWeights& w, const Tensor& x, bool again);
  void block_backward(std::int64_t layer, Saved& saved);
  void ffn_backward(std::int64_t layer, const Saved& saved, const BlockWeights& w, const BlockTensors& g,
                    const QuantizedTensor& dx, QuantizedTensor& dmid);
  SwigluLayers dense_layers(const Saved& saved) const;
  /// From gate_up, which is saved, to the output of down.
  void swiglu_forward(std::int64_t layer, const SwigluLayers& layers, const BlockWeights& w,
                      const Tensor& out);
  void attention_backward(std::int64_t layer, const Saved& saved, const BlockWeights& w,
                          const BlockTensors& g, const QuantizedTensor& dmid);
  /// A norm's output for fprop now and, in what is kept in `value` or `form`, for wgrad later.
  QuantizedTensor normed(const Linear& consumer, const Tensor& value, const GemmOperand& form);
  /// A norm's output as it is kept, in one way or none, and what it is made again from.
  struct NormOutput {
    Tensor value;
    GemmOperand form;  ///< the columns, or where they are transposed codes these
    Tensor sum, rstd, gain;
  };
  /// Its value, in transient memory.
  Tensor normed_again(const NormOutput& norm);
  /// The gradient of the norm's output, in transient memory, with more below it that the caller's scope frees.
  Tensor swiglu_backward(std::int64_t layer, const SwigluLayers& layers, const BlockWeights& w,
                         const BlockTensors& g, const QuantizedTensor& dx, const NormOutput& norm);
  /// The backward GEMMs of the linear layer behind a norm.
  void norm_dgrad(std::int64_t layer, Role role, const Tensor& dx, const QuantizedTensor& dy,
                  const BlockWeights& w, const NormOutput& norm);
  void norm_wgrad(std::int64_t layer, Role role, const BlockTensors& g, const QuantizedTensor& dy,
                  const BlockWeights& w, const NormOutput& norm);
  // mixture_exchange.cpp
  /// Ranks that have a block's experts together, and the tokens that they have.
  int expert_ranks() const { return parameters_.expert_comm() ? parameters_.expert_comm()->size() : 1; }
  std::int64_t group_tokens() const { return peer_rows() * expert_ranks(); }
  /// Rows that one rank has room for on another.
  std::int64_t peer_rows() const {
    return options_.exchange.mode == ExpertExchange::Mode::slots ? options_.exchange.slots : M_;
  }
  bool gathers() const { return options_.exchange.mode == ExpertExchange::Mode::gather; }
  /// Experts of a block that this rank has.
  std::int64_t own_experts() const { return config_.moe.rule.experts / expert_ranks(); }
  std::int64_t first_expert() const {
    return expert_ranks() > 1 ? parameters_.expert_comm()->rank() * own_experts() : 0;
  }
  /// The slots' experts of all tokens of the group, and their weights. `mine`: those of this rank's tokens, which without
  /// expert parallelism are all.
  Tensor gather_routing(SavedRouting& routing, const Tensor& mine);
  void push_peers(SavedRouting& routing);
  /// How many rows come from the other ranks, read on the host.
  void count_peers(SavedRouting& routing);
  /// Memory for what comes of a value in a GEMM's format.
  Arrived push_arrived(const QuantFormat& format);
  /// What the device does while rows are on their way between ranks; may be empty.
  using Beside = std::function<void()>;
  /// Sends it. The result has its form in the format, quantized here where it came in BF16, and in BF16 if `value`.
  QuantizedTensor dispatch(const SavedRouting& routing, const QuantizedTensor& x, const QuantFormat& format,
                           const Arrived& to, bool value, const Beside& beside = {});
  /// What has come, likewise. `known`: the amax that its scale comes from; empty: its own.
  QuantizedTensor arrived(const SavedRouting& routing, const Arrived& x, const QuantFormat& format,
                          bool value, const Tensor& known = {});
  /// f32: a number for every slot of theirs.
  Tensor push_arrived_weights(const SavedRouting& routing) {
    return push(DType::f32, group_tokens(), config_.moe.rule.top_k).slice_rows(0, arrived_rows(routing));
  }
  /// Rows of tokens that have come.
  std::int64_t arrived_rows(const SavedRouting& routing) const;
  void send_rows(const SavedRouting& routing, const Tensor& to, const Tensor& from, const Beside& beside);
  void send_codes(const SavedRouting& routing, const GemmOperand& to, const QuantizedTensor& x,
                  const Beside& beside);
  void send_scales(const GemmOperand& to, const GemmOperand& from, const Beside& beside);
  bool as_codes(const QuantFormat& format) const;
  /// Makes a tensor, likewise; may be empty, for an empty one.
  using MadeBeside = std::function<Tensor()>;
  /// `op`, in which groups and rows are the experts' and all else is of this rank's tokens, with the addend.
  void combine(const SavedRouting& routing, ops::Unpermute op, const MadeBeside& addend);
  /// mine = what the ranks of the group have of its tokens, added up, and the addend.
  void bring_back(const SavedRouting& routing, const Tensor& mine, const Tensor& all,
                  const MadeBeside& addend = {});
  // mixture.cpp
  ExpertLinear experts(std::int64_t layer, Role role) const;
  /// produce() of rows of experts, by op(x) twice, first for the amax.
  void produce_grouped(QuantizedTensor& x, const std::function<void(QuantizedTensor&)>& op);
  /// What produce() has made, with the amax that it has exchanged as one that is known.
  QuantizedTensor with_shared_amax(QuantizedTensor x) const;
  /// Rows of tokens into their experts' groups; of codes alone no value is made. A scale of the tokens' that is known is the
  /// rows' too; not of weighted ones.
  void permute_rows(QuantizedTensor& x, const QuantizedTensor& tokens, const Tensor& weights,
                    const Groups& groups);
  /// Whose input the second norm's output is, as delayed scaling knows it. Experts whose rows are weighted before them have
  /// another, and it is that of the one that every token takes, if there is one or not.
  Role normed_role(std::int64_t layer) const {
    const bool weighted = config_.has_experts(layer) && config_.moe.weight_at == WeightAt::input;
    return weighted ? Role::shared_gate_up : Role::gate_up;
  }
  /// Rows that an expert, and all that this rank has, can have.
  std::int64_t most_rows() const;
  std::int64_t most_rows_of_all() const;
  Tensor push_rows(const Groups& groups, std::int64_t cols) {
    return push(options_.activations, groups.rows_capacity(), cols);
  }
  void push_routing(std::int64_t layer, SavedRouting& saved);
  /// The slots' experts, but -1 of those beyond the capacity, before any is sent to the ranks that have them. `report`:
  /// ops::Group's.
  Tensor keep_slots(const Tensor& index, const Tensor& report);
  void route(std::int64_t layer, SavedRouting& saved, const BlockWeights& w, const Tensor& h);
  SwigluLayers shared_layers(const Saved& saved) const;
  /// branch_ = the mixture of h; `again` as in block_forward.
  void mixture_forward(std::int64_t layer, Saved& saved, const BlockWeights& w, const QuantizedTensor& h,
                       bool again);
  /// As swiglu_backward.
  Tensor mixture_backward(std::int64_t layer, const Saved& saved, const BlockWeights& w,
                          const BlockTensors& g, const QuantizedTensor& dx, const NormOutput& norm);
  /// Rows of the tokens' codes of X or dY, for wgrad to transpose. With weights they are quantized again.
  QuantizedTensor push_codes(std::int64_t layer, Role role, LinearOperand operand,
                             const QuantizedTensor& tokens, const Tensor& weights, const Groups& groups);
  /// The experts' own: dw, and the gradient of their input's rows; h: the norm's output.
  void experts_backward(std::int64_t layer, const Saved& saved, const BlockWeights& w, const BlockTensors& g,
                        const QuantizedTensor& dx, const Tensor& h, const Tensor& dw, const Tensor& drows);
  Tensor shared_backward(std::int64_t layer, const Saved& saved, const BlockWeights& w, const BlockTensors& g,
                         const QuantizedTensor& dx, const NormOutput& norm);
  /// x0_ = the tokens' rows of the embedding; starts to gather the first block.
  void embed(const Tensor& tokens);
  /// What the runs of the head share: lm_head, the residual stream at its input and its norm.
  struct Head {
    Linear linear;
    Weight weight;
    Tensor gain, x, rstd, normed;
  };
  Head begin_head(const Tensor& mid);
  /// A converted head's scales may span all tokens, so it is done in one run.
  std::int64_t head_run(const Head& head) const {
    return head.linear.recipe().quantized() ? M_ : std::min(M_, kHeadRun);
  }
  /// A run of tokens from `first`: losses_ and, in the memory of the logits, their gradients. `x` gets the run's input.
  QuantizedTensor head_forward(const Head& head, std::int64_t first, const Tensor& targets, float loss_scale,
                               QuantizedTensor& x);
  /// Final norm, lm_head, loss and their backward; leaves the residual stream's gradient in slots_[slot_].
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
  Tensor branch_;  // what a block's half adds to the residual stream, until the next norm has added it; in
                   // backward the residual stream's gradient between a block's halves
  Tensor mid_;     // every block's residual stream between its halves, where blocks do not keep their own
  Tensor losses_;  // f32 [M]
  std::vector<Saved> saved_;
  QuantizedTensor slots_[2];  // the gradient of the residual stream on its way down; two take turns
  int slot_ = 0;              // which one holds the current gradient
  QuantizationObserver* quantization_observer_ = nullptr;
};

}  // namespace precbench
