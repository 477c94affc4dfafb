// One rank's weights, gradients and optimizer state: flat buffers over a Layout. The model uses them by three calls,
// whatever the parallel strategy:
//   gather(unit)     the unit's BF16 weights, whole       unsharded: a view        sharded: an all-gather
//   gradients(unit)  where backward writes the unit's gradient
//   reduce(unit)     that gradient is complete            unsharded: all-reduce    sharded: reduce-scatter
// Ranks along the shard axis share one copy of everything. Ranks along the data axis are replicas, whose gradients
// are summed (kernels/comm/parallel_dims.h).
//
// With expert parallelism so many ranks in a row have a part each of every block's experts, and those at the same place in
// their rows are replicas of it. Tokens come to the experts (mixture_exchange.cpp); their weights and gradients stay.
//
// Communication runs beside compute. prefetch(unit) starts a gather, and a later gather(unit) only waits for it.
// reduce(unit) only starts, and complete(unit) waits for the gradient. Where whole units lie: unit_exchange.h.
//
// Sharded, an FP32 master is all that is kept of the weights: before a gather a rank rounds its part of a unit right into
// the place of the whole. With `keep_gathered` that place lasts, and the optimizer writes there.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/comm/comm.h"
#include "kernels/comm/parallel_dims.h"
#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "models/transformer/delayed_scaling.h"
#include "models/transformer/fp8_gradients.h"
#include "models/transformer/fp8_weights.h"
#include "models/transformer/layout.h"
#include "models/transformer/moments.h"
#include "models/transformer/routers.h"
#include "models/transformer/state.h"
#include "models/transformer/unit_exchange.h"
#include "models/transformer/weight_amaxes.h"

namespace precbench {

/// What is updated: an FP32 master that the BF16 weights are rounded from, or the BF16 weights themselves, rounded to
/// nearest or stochastically; or an FP16 master with one scale for a matrix, beside which no BF16 weights are kept: units
/// are rounded from it where they are used. Its vectors stay FP32: a norm's gain of 1 would lose updates below 0.0005.
enum class Master : std::uint8_t { fp32, bf16, bf16_sr, fp16 };

struct ParameterOptions {
  ParallelDims parallel = {};  ///< of all ranks; data and shard only
  Master master = Master::fp32;
  DType weights = DType::bf16;  ///< f32: the FP32 reference model of the tests
  const OptimizerSpec* optimizer = &optimizers().front();
  MomentFormats moments = {};
  DType gradients = DType::f32;      ///< e4m3: with scales (fp8_gradients.h)
  bool round_gradient_sums = false;  ///< of e4m3 gradients over ranks, to e4m3 with every addition
  int accumulation = 1;              ///< micro-steps whose gradients are summed before an optimizer step
  int expert_ranks = 1;       ///< consecutive ranks that have different experts; divides ranks and experts
  bool expert_slots = false;  ///< whether tokens may be dropped on their way to them
  /// Of the blocks' weights as sharded ranks exchange them, and as any rank keeps them; BF16 if not quantized.
  QuantFormat gather_format{};
  std::vector<bool> gather_fp8{};  ///< which blocks are exchanged, or kept, in that format
  bool keep_gathered = false;      ///< sharded: weights are gathered once an optimizer step and stay whole

  /// The recipe with delayed scales of the run; none of it without a history.
  Recipe delayed = {};
  bool weight_amaxes = false;  ///< whether a recipe of the run has them (has_weight_amaxes)

  /// The experts of a rank.
  ExpertShare experts_of(int rank) const { return {expert_ranks, rank % expert_ranks}; }

  /// Whether shards must end where 128 rows of a matrix end, as blocks of scales and tiles of them do.
  bool whole_blocks() const {
    return gather_format.granularity == Granularity::block_128x128 ||
           gather_format.granularity == Granularity::block_1x32;
  }
};

class Parameters {
 public:
  /// comm: of all ranks. Throws Unsupported for ranks along other axes than data and shard, std::invalid_argument for
  /// another number of ranks than the dims have.
  Parameters(Device& device, Comm& comm, Arena& arena, const ModelConfig& config,
             const ParameterOptions& options);

  const Layout& layout() const { return layout_; }
  const ParameterOptions& options() const { return options_; }

  // ---- for the model
  /// To be called before the first micro-step of every optimizer step.
  void begin_step();
  void begin_micro_step(int micro_step);
  /// Starts to gather a unit that is needed soon. A block takes the place of the last but one, which must
  /// have been used by then.
  void prefetch(int unit, Pass pass = Pass::forward);
  Tensor gather(int unit, Pass pass = Pass::forward);
  /// A block's weights for one pass; may put them together in the arena's stack.
  BlockWeights gather_block(std::int64_t layer, Pass pass);
  Tensor gradients(int unit);
  /// Of a block's linear layers and vectors, its experts among them.
  BlockTensors block_gradients(std::int64_t layer);
  /// To be called before a gradient is written: takes the overlaid buffer into use from there to its end. Backward
  /// must finish tensors in descending order of address.
  void commit(const Tensor& gradient);
  /// Whether backward must add to gradients(unit) instead of overwriting it.
  bool accumulates() const { return !sharded() && !fp8_gradients_ && micro_step_ > 0; }
  /// Whether a block's experts stay in memory from its forward to its backward.
  bool keeps_experts(std::int64_t layer) const { return !sharded() || layout_.experts_apart(layer); }
  /// As accumulates(), of a block's experts.
  bool accumulates_experts(std::int64_t layer) const {
    return layout_.experts_apart(layer) ? micro_step_ > 0 : accumulates();
  }
  void reduce(int unit);
  /// Where gradients are kept in FP8: is called with a unit's whole gradient in BF16, as backward has left it, before it is
  /// cast. Null: nobody is.
  using StagedWatcher = std::function<void(int unit, const Tensor& gradient)>;
  void watch_staged(StagedWatcher watcher) { staged_watcher_ = std::move(watcher); }

  /// The unit's gradient, or this rank's shard of it, is complete for the device's later ops; after the last
  /// micro-step. Cheapest in layout().backward_order().
  void complete(int unit);
  void complete_all();
  /// Gradients have done their service: where their buffer overlays the stack, that may have it until the
  /// next step.
  void release_gradients();

  // ---- for the optimizer: this rank's part of a unit. `master` is empty where the weights are their own.
  struct Shard {
    Tensor weights, master, gradient;
    std::vector<Run> runs;
  };
  Shard shard(int unit) const;
  /// What an update writes of a parameter: BF16 weights, empty where none are kept, and the master, whose scale is of codes.
  struct Updated {
    Tensor weights, master;
    StateScale master_scale;
  };
  /// `piece`: of the unit's parameter of this number, what this rank has.
  Updated updated(int unit, std::size_t parameter, const Piece& piece) const;
  const Moments& moments() const { return *moments_; }
  /// Scales of an FP16 master's matrices; null of any other.
  const ParameterScales* master_scales() const { return master_scales_.get(); }
  /// Of a unit's parameter, by its number there, f32 [1]; empty where gradients have none.
  Tensor gradient_scale(int unit, std::size_t parameter) const {
    return fp8_gradients_ ? fp8_gradients_->scale(unit, parameter) : Tensor{};
  }
  /// For what an update needs while it runs.
  Arena& arena() { return arena_; }
  bool sharded() const { return layout_.shards() > 1; }
  int shard_rank() const { return sharded() ? shard_comm_.comm->rank() : 0; }
  /// All ranks, and those along the shard axis.
  Comm& comm() { return comm_; }
  Comm& shard_comm() { return *shard_comm_.comm; }
  /// The ranks that have a block's experts together; null where each has all.
  Comm* expert_comm() const { return expert_comm_.comm; }
  /// f32 [1] for the squares of this rank's experts' gradients, where ranks have different ones.
  const Tensor& expert_norm() const { return expert_norm_; }
  /// All that carry a step's collectives: all ranks, and those along each axis that are fewer.
  std::vector<Comm*> comms() const;

  /// The amaxes of delayed scaling; null where no recipe of the run has it.
  DelayedScaling* delayed() { return delayed_.get(); }

  /// Of weights as they are now; null where no recipe of the run has a use for them.
  WeightAmaxes* weight_amaxes() { return weight_amaxes_.get(); }

  /// What routers keep beside their weights; null where the model has no experts.
  Routers* routers() { return routers_.get(); }

  // ---- in and out
  /// Matrices ~ N(0, std), gains 1, biases 0, moments 0. The same numbers whatever the sharding.
  void initialize(std::uint64_t seed, float std);
  /// The new value of element `index` of a parameter.
  using ElementChange = std::function<float(std::int64_t index, float value)>;
  /// What a change has replaced, by parameter in layout order; empty for one that it left alone.
  using Replaced = std::vector<std::vector<float>>;
  /// Changes weights (the master, where there is one) of this rank's part: change_of(parameter) says how, or is
  /// nothing. Collective only in that every rank must ask for the same.
  void change(const std::function<ElementChange(const Parameter&)>& change_of, Replaced* replaced = nullptr);
  /// Takes a change back, to the bit.
  void restore(const Replaced& replaced);
  enum class Kind : std::uint8_t { weights, gradients };
  /// Calls `read(parameter, values)` for every parameter that this rank holds a part of, and for the layout's buffers;
  /// values, all of them, to be filled in FP32 [size]. Moments start at 0.
  void load(const std::function<void(const Parameter&, float*)>& read);
  /// Calls `write(parameter, values)` in FP32 for every parameter, on every rank (a collective). Weights come
  /// from the master where there is one, and the layout's buffers follow them.
  void save(Kind kind, const std::function<void(const Parameter&, const float*)>& write);

  /// What the optimizer keeps from step to step, parameter by parameter in layout order: "weights/NAME" (the master
  /// where there is one); then what the optimizer keeps (moments.h), and what delayed scaling does.
  std::vector<StateTensor> state() const;
  /// This rank's part of every parameter's gradient, in layout order; once complete.
  std::vector<StateTensor> gradient_parts() const;
  /// Of this rank's part, as save_state and load_state do it (state.h). What is loaded counts from the next step on.
  /// Of what replicas have alike one of them writes; histories that are apart every rank.
  void save_state(const StateWriter& write) const;
  /// Whether this rank has a part to write.
  bool writes_state() const { return writes(false) || writes(true) || (delayed_ && delayed_->apart()); }
  /// `own`: of a run of this case. Else delayed scaling begins anew, and what is scaled is read in FP32 and rounded.
  void load_state(const StateReader& read, bool own = true);

  /// A hash of every parameter's bits on this rank (of the master where there is one), in layout order.
  std::vector<std::uint64_t> fingerprints();

 private:
  void allocate_state();
  void allocate_gradients();
  /// Has the optimizer leave the amaxes of the weights of linear layers, where it is AdamW on whole units in one pass.
  void keep_weight_amaxes();
  /// Whether this rank keeps its part of a unit's weights in weights_.
  bool stores_weights(int unit) const;
  void forget_gathered();
  void add_reduced();
  /// Whether a unit is shared along the shard axis.
  bool gathered(int unit) const { return sharded() && !layout_.is_experts(unit); }
  /// Whether this rank is the first of the replicas of what it has: of its experts, or of the rest.
  bool writes(bool experts) const;
  Tensor local(const Tensor& flat, int unit) const;
  /// This rank's part of a unit in what the optimizer updates: the master, or the weights themselves.
  Tensor local_leading(int unit) const {
    return master_.empty() ? local_weights(unit) : local(master_, unit);
  }
  void upload_rounded(const Tensor& target, const float* values);
  /// `scale`: of codes, f32 [1].
  std::vector<float> download_widened(const Tensor& source, const Tensor& scale = {});
  /// This rank's part of a parameter, `target`, from FP32 on the host, rounded.
  void store_weights(int unit, std::size_t parameter, const Tensor& target, const float* values);
  /// The part of state() that the optimizer updates, and this with its moments.
  std::vector<StateTensor> weights_state() const;
  std::vector<StateTensor> trained_state() const;
  /// One kind of state; values_of(unit, piece): what this rank has of a parameter.
  void append_state(std::vector<StateTensor>& state, const char* kind,
                    const std::function<Tensor(int unit, const Piece& piece)>& values_of) const;
  /// What this rank has of a parameter in what the optimizer updates.
  Tensor leading(int unit, const Piece& piece) const;
  /// The layout's buffers, and where they are.
  void for_buffers(const std::function<void(const Parameter&, const Tensor&)>& visit) const;
  // An FP16 master (fp16_master.cpp).
  bool fp16_master() const { return master_scales_ != nullptr; }
  bool in_codes(const Parameter& p) const { return fp16_master() && p.kind == ParameterKind::matrix; }
  /// A unit's vectors, whole in FP32 [1, unit size - vectors_offset()]; 0 where another rank has the elements.
  Tensor exact(int unit) const;
  /// What this rank has of one of them, and where its rounding is: in the place of codes, to be gathered with them.
  Tensor exact(int unit, const Piece& piece) const;
  Tensor rounded(int unit, const Piece& piece) const;
  /// With what other ranks have; into the arena's stack. A collective.
  Tensor whole_vectors(int unit);
  void round_vectors();
  /// dst = what elements [first, last) of a unit's codes stand for, and its vectors.
  void decode_master(int unit, const Tensor& dst, const Tensor& codes, std::int64_t first,
                     std::int64_t last) const;
  /// This rank's part of a matrix: values(target, first) puts elements of it from `first` on into FP32 memory of the
  /// device, twice. A collective.
  void encode_master(int unit, std::size_t parameter,
                     const std::function<void(const Tensor& target, std::int64_t first)>& values);
  void initialize_master(std::uint64_t seed, float std);
  void load_master(const StateReader& read);
  /// Of what is updated, f32 [1]; empty where it has none.
  Tensor weight_scale(int unit, std::size_t parameter) const {
    return fp16_master() ? master_scales_->of(unit, parameter).scale : Tensor{};
  }
  /// Quantizes the blocks' weights that are exchanged or kept in FP8.
  void refresh_fp8_weights();
  /// visit(index, unit, number in the unit, part) for every parameter of whose weights this rank has a part, in layout
  /// order; of an FP16 master for all matrices, since their scales are those of all ranks.
  void for_weights(const std::function<void(std::size_t index, int unit, std::size_t parameter,
                                            const StateTensor& part)>& visit) const;
  /// Zeros all state and the weights; holes and padding stay so.
  void zero_state();
  /// Makes the BF16 weights from their master, and forgets what was gathered.
  void derive_weights();
  bool in_fp8(int unit) const { return fp8_ && fp8_->has(unit); }
  /// This rank's part in BF16, where it is kept; empty where it is made from the master for every gather.
  Tensor local_weights(int unit) const;

  Device& device_;
  Comm& comm_;
  Arena& arena_;
  ModelConfig config_;
  ParameterOptions options_;
  Layout layout_;
  AxisComm shard_comm_, replica_comm_;
  AxisComm expert_comm_, expert_replica_comm_;  // both null without expert parallelism
  Tensor weights_, master_, gradient_;          // flat, one shard of every unit
  std::vector<std::int64_t> weight_offsets_;    // of a unit's shard in weights_; -1: it is not there
  std::unique_ptr<ParameterScales> master_scales_;
  Tensor exact_;                             // with an FP16 master, f32: the vectors of all units
  std::vector<std::int64_t> exact_offsets_;  // of a unit's in it
  std::unique_ptr<Moments> moments_;
  std::unique_ptr<Fp8Gradients> fp8_gradients_;
  StagedWatcher staged_watcher_;
  std::unique_ptr<DelayedScaling> delayed_;
  std::unique_ptr<WeightAmaxes> weight_amaxes_;
  std::unique_ptr<Fp8Weights> fp8_;
  std::unique_ptr<UnitExchange> exchange_;  // sharded, or with an FP16 master
  std::unique_ptr<Routers> routers_;
  Tensor hash_;  // i32 [2]: of fingerprints; here so that a run needs no more memory than its dry run
  Tensor expert_norm_;
  Tensor reduced_;   // sharded, with accumulation: a reduced shard before it is added
  int adding_ = -1;  // the unit whose reduced shard is in it or on its way
  std::vector<Comm::Ticket> shard_tickets_, replica_tickets_;  // of every unit's latest reductions
  bool overlays_ = false;  // the gradient buffer overlays the arena's stack
  int micro_step_ = 0;
};

}  // namespace precbench
