// Weights, gradients and optimizer state of one rank: flat buffers over a Layout. The model uses three calls,
// whatever the parallel strategy:
//   gather(unit)     returns the unit's whole BF16 weights  unsharded: a view       sharded: an all-gather
//   gradients(unit)  returns where backward writes the unit's gradient
//   reduce(unit)     the gradient is complete               unsharded: all-reduce   sharded: reduce-scatter
// The ranks of the group `weights` share one copy of everything; those of `replicas` have the same part of it
// and sum its gradients (kernels/comm/parallel_groups.h).
//
// With expert parallelism, N consecutive ranks each have a part of every block's experts; ranks at the same
// position in their groups are replicas of that part. Tokens are sent to the experts (expert_exchange.h),
// whose weights and gradients stay in place.
//
// Communication overlaps compute. prefetch(unit) starts a gather, and a later gather(unit) only waits for it.
// reduce(unit) only starts the reduction, and complete(unit) waits for it. Buffers of whole units:
// unit_exchange.h.
//
// With `sync_last` a sharded rank adds up whole gradients over the micro-steps, as a replica does, and starts
// reduce-scatters in the last micro-step only, beside its backward. A reduced shard stays in its place within
// the whole gradient.
//
// A sharded rank with FP32 master weights keeps no other weights: before a gather it rounds its part of a
// unit directly into the gather buffer. With `keep_gathered` that buffer is persistent, and the optimizer
// writes to it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/comm/comm.h"
#include "kernels/comm/parallel_groups.h"
#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "models/transformer/linear/delayed_scaling.h"
#include "models/transformer/linear/weight_amaxes.h"
#include "models/transformer/parallel/fp8_gradients.h"
#include "models/transformer/parallel/fp8_weights.h"
#include "models/transformer/parallel/frozen_weights.h"
#include "models/transformer/parallel/unit_exchange.h"
#include "models/transformer/routing/routers.h"
#include "models/transformer/state/layout.h"
#include "models/transformer/state/moments.h"
#include "models/transformer/state/state.h"

namespace precbench {

/// Dtype of the weights that the optimizer updates:
///   fp32           FP32 master weights, rounded to the BF16 weights
///   bf16, bf16_sr  the BF16 weights themselves, rounded to nearest or stochastically
///   fp16           FP16 master weights with one scale per matrix; units are rounded to BF16 on each use.
///                  Vectors stay FP32, because a norm's gain of 1 would lose updates below 0.0005.
enum class Master : std::uint8_t { fp32, bf16, bf16_sr, fp16 };

struct ParameterOptions {
  ParallelDims parallel = {};  ///< axes of all ranks
  Master master = Master::fp32;
  DType weights = DType::bf16;               ///< f32: the FP32 reference model of the tests
  const OptimizerSpec* optimizer = nullptr;  ///< required
  MomentFormats moments = {};
  DType gradients = DType::f32;      ///< e4m3: with scales (fp8_gradients.h)
  bool round_gradient_sums = false;  ///< round every addition of e4m3 gradients over ranks to e4m3
  int accumulation = 1;              ///< micro-steps whose gradients are summed before an optimizer step
  int expert_ranks = 1;              ///< consecutive ranks that divide the experts; divides ranks and experts
  bool expert_slots = false;         ///< tokens may be dropped in the exchange
  /// Format in which sharded ranks exchange, and any rank may keep, the blocks' weights; BF16 if not
  /// quantized.
  QuantFormat gather_format{};
  std::vector<bool> gather_fp8{};  ///< blocks exchanged or kept in that format
  bool keep_gathered = false;      ///< sharded: gather once per optimizer step and keep whole weights
  LoraOptions lora = {};           ///< trains adapters, the model's weights are frozen; no expert parallelism
  std::vector<FrozenFormats> frozen_formats = {};  ///< copies of frozen weights to keep, for each block
  bool keep_frozen_values =
      true;                ///< also keep the BF16 values of frozen weights that only copies of them read
  bool sync_last = false;  ///< sharded: keep whole gradients and reduce them in the last micro-step; not e4m3

  /// The run's recipe with delayed scaling; default if no recipe has a history.
  Recipe delayed = {};
  bool weight_amaxes = false;  ///< a recipe of the run scales weights by their own amax (has_weight_amaxes)

  /// Returns the tensor share of a rank.
  TensorShare tensor_of(int rank) const { return {parallel.tensor, parallel.place_of(rank).tensor}; }
  /// Returns the experts of a rank.
  ExpertShare experts_of(int rank) const { return {expert_ranks, rank % expert_ranks}; }

  /// Returns true if shards must end at a multiple of 128 rows of a matrix, as blocks of scales and their
  /// tiles do.
  bool whole_blocks() const {
    return gather_format.granularity == Granularity::block_128x128 ||
           gather_format.granularity == Granularity::block_1x32;
  }
};

class Parameters {
 public:
  /// comm: all ranks. `config`: the whole model. Throws Unsupported for what tensor ranks do not support,
  /// std::invalid_argument if the number of ranks does not match the dims.
  Parameters(Device& device, Comm& comm, Arena& arena, const ModelConfig& config,
             const ParameterOptions& options);

  /// Layout of what is trained: the model, or its adapters.
  const Layout& layout() const { return layout_; }
  /// Layout of the model, whose units have the same numbers.
  const Layout& model_layout() const { return frozen_ ? frozen_->layout() : layout_; }
  /// Returns true if the model's own weights are trained.
  bool trains_model() const { return !frozen_; }
  const ParameterOptions& options() const { return options_; }

  // ---- for the model
  /// Call before the first micro-step of every optimizer step.
  void begin_step();
  void begin_micro_step(int micro_step);
  /// Starts to gather a unit that is needed soon. A block takes the buffer of the block before the previous
  /// one, which must no longer be in use.
  void prefetch(int unit, Pass pass = Pass::forward);
  Tensor gather(int unit, Pass pass = Pass::forward);
  /// Returns a block's weights for one pass; may assemble them in the arena's stack.
  BlockWeights gather_block(std::int64_t layer, Pass pass);
  Tensor gradients(int unit);
  /// Frozen models: returns the weights of a unit's adapters in the dtype that GEMMs read.
  Tensor adapters(int unit) const { return local_weights(unit); }
  /// Frozen models: returns true if some weights are in memory as quantized copies alone, which states do not have.
  bool drops_frozen_values() const { return frozen_ && frozen_->drops_values(); }
  /// For a dry run: allocates and computes as setting the first frozen weights does.
  void account_first_weights() const {
    if (!frozen_) return;
    frozen_->set([](const FrozenWeights::Part&) {});
    frozen_->quantize();
  }
  /// Frozen models: returns where backward writes the gradient of the final norm, [1, 2 C], which nothing reads.
  Tensor discarded_gradients() const { return frozen_->discarded(); }
  /// Returns the gradients of a block's linear layers and vectors, experts included.
  BlockTensors block_gradients(std::int64_t layer);
  /// Call before writing a gradient: commits the overlaid buffer from there to its end. Backward must finish
  /// tensors in descending order of address.
  void commit(const Tensor& gradient);
  /// Returns true if backward must add to gradients(unit) instead of overwriting it.
  bool accumulates() const { return accumulates_over_micro_steps() && micro_step_ > 0; }
  /// Returns true if a block's experts stay in memory from its forward to its backward.
  bool keeps_experts(std::int64_t layer) const {
    return !(frozen_ ? frozen_->sharded() : sharded()) || layout_.experts_apart(layer);
  }
  /// accumulates() for a block's experts.
  bool accumulates_experts(std::int64_t layer) const {
    return layout_.experts_apart(layer) ? micro_step_ > 0 : accumulates();
  }
  void reduce(int unit);
  /// With FP8 gradients: called with a unit's whole BF16 gradient before it is cast. Null: no call.
  using StagedWatcher = std::function<void(int unit, const Tensor& gradient)>;
  void watch_staged(StagedWatcher watcher) { staged_watcher_ = std::move(watcher); }

  /// Makes the unit's gradient, or this rank's shard of it, complete for later device ops. Call after the
  /// last micro-step; cheapest in layout().backward_order().
  void complete(int unit);
  void complete_all();
  /// Ends the use of gradients: an overlaid buffer returns to the stack until the next step.
  void release_gradients();

  // ---- for the optimizer: this rank's part of a unit. `master` is empty if the weights are updated
  // directly.
  struct Shard {
    Tensor weights, master, gradient;
    std::vector<Run> runs;
  };
  Shard shard(int unit) const;
  /// Tensors of a parameter that an update writes: BF16 weights (empty if none are kept) and the master with
  /// its scale.
  struct Updated {
    Tensor weights, master;
    StateScale master_scale;
  };
  /// `parameter`: index within the unit; `piece`: this rank's part of it.
  Updated updated(int unit, std::size_t parameter, const Piece& piece) const;
  const Moments& moments() const { return *moments_; }
  /// Returns the scales of an FP16 master's matrices; null for other masters.
  const ParameterScales* master_scales() const { return master_scales_.get(); }
  /// Returns the gradient scale of a unit's parameter, f32 [1]; empty if gradients have no scales.
  Tensor gradient_scale(int unit, std::size_t parameter) const {
    return fp8_gradients_ ? fp8_gradients_->scale(unit, parameter) : Tensor{};
  }
  /// Arena for an update's temporaries.
  Arena& arena() { return arena_; }
  bool sharded() const { return layout_.shards() > 1; }
  int shard_rank() const { return sharded() ? groups_.weights.comm->rank() : 0; }
  /// All ranks; ranks along the shard axis.
  Comm& comm() { return comm_; }
  Comm& shard_comm() { return *groups_.weights.comm; }
  /// Ranks that share a block's experts; null without expert parallelism.
  Comm* expert_comm() const { return groups_.experts.comm; }
  /// Ranks that divide all matrices; null without tensor parallelism.
  Comm* tensor_comm() const { return groups_.tensor.comm; }
  /// Returns true if the vectors' gradients, which all tensor ranks have, count in this rank's part of the norm.
  bool counts_vectors() const { return !groups_.tensor.comm || groups_.tensor.comm->rank() == 0; }
  /// f32 [1]: sum of squares of gradients that are not part of the common norm: with expert parallelism of this rank's
  /// experts, which is added later; with tensor parallelism of vectors that another rank counts.
  const Tensor& other_norm() const { return other_norm_; }
  const ParallelGroups& groups() const { return groups_; }
  std::vector<Comm*> comms() const { return groups_.comms(); }

  /// Amaxes of delayed scaling; null if no recipe of the run has it.
  DelayedScaling* delayed() { return delayed_.get(); }

  /// Amaxes of the current weights; null if no recipe of the run needs them.
  WeightAmaxes* weight_amaxes() { return weight_amaxes_.get(); }

  /// Router state besides weights; null if the model has no experts.
  Routers* routers() { return routers_.get(); }

  // ---- in and out
  /// Initializes matrices ~ N(0, std), gains 1, biases 0, moments 0. The values do not depend on the
  /// sharding.
  void initialize(std::uint64_t seed, float std);
  /// Frozen models: sets the adapters alone to their first values, A uniform (lora.h) and B 0.
  void initialize_adapters(std::uint64_t seed);
  /// Frozen models: loads the model as load() does the trained parameters. The adapters stay.
  void load_frozen(const std::function<void(const Parameter&, float*)>& read);
  /// Returns the new value of element `index` of a parameter.
  using ElementChange = std::function<float(std::int64_t index, float value)>;
  /// Values replaced by change(), per parameter in layout order; empty for an unchanged one.
  using Replaced = std::vector<std::vector<float>>;
  /// Changes this rank's part of the weights (the master if there is one). change_of(parameter) returns the
  /// change, or null. Every rank must request the same changes.
  void change(const std::function<ElementChange(const Parameter&)>& change_of, Replaced* replaced = nullptr);
  /// Reverts a change bit for bit.
  void restore(const Replaced& replaced);
  enum class Kind : std::uint8_t { weights, gradients };
  /// Calls `read(parameter, values)` for every parameter of which this rank has a part and for the layout's
  /// buffers. `read` fills all values of the parameter, FP32 [size]. Moments are set to 0.
  void load(const std::function<void(const Parameter&, float*)>& read);
  /// Calls `write(parameter, values)` in FP32 for every parameter, on every rank (a collective). Weights come
  /// from the master if there is one, and are followed by the layout's buffers.
  void save(Kind kind, const std::function<void(const Parameter&, const float*)>& write);

  /// Returns the persistent state, per parameter in layout order: "weights/NAME" (the master if there is
  /// one), then the optimizer's moments (moments.h), delayed scaling and routers.
  std::vector<StateTensor> state() const;
  /// Returns this rank's part of every gradient in layout order; call after complete_all().
  std::vector<StateTensor> gradient_parts() const;
  /// Save and load this rank's part (see state.h). Loaded values take effect at the next step. State common
  /// to replicas is written by the first of them; separate histories are written by every rank.
  void save_state(const StateWriter& write) const;
  /// Returns true if this rank has a part to write.
  bool writes_state() const { return writes(false) || writes(true) || (delayed_ && delayed_->apart()); }
  /// `own`: the state is from a run of this case. Otherwise delayed scaling starts without history, and
  /// scaled tensors are read in FP32 and rounded. Frozen weights that are in memory as copies alone are not in a state of
  /// this case: set them first. Another state must have all of them.
  void load_state(const StateReader& read, bool own = true);

  /// Returns a hash per parameter of this rank's bits (the master's if there is one), in layout order.
  std::vector<std::uint64_t> fingerprints();

 private:
  void allocate_state();
  void allocate_gradients();
  /// Has the optimizer record the weights' amaxes, if it is AdamW in one pass over unsharded units.
  void keep_weight_amaxes();
  /// Returns true if this rank keeps its part of a unit's weights in weights_.
  bool stores_weights(int unit) const;
  void forget_gathered();
  void add_reduced();
  /// Returns true if a sharded rank keeps whole gradients from micro-step to micro-step.
  bool keeps_gradients() const { return sharded() && options_.sync_last; }
  /// Returns true if the gradients of several micro-steps are summed where backward writes them.
  bool accumulates_over_micro_steps() const { return (!sharded() || keeps_gradients()) && !fp8_gradients_; }
  void reduce_micro_step(int unit);
  /// Sums the gradients of a unit's vectors over tensor ranks: each has those of its rows or heads.
  void sum_vectors(int unit);
  /// Returns true if a unit is shared along the shard axis.
  bool gathered(int unit) const { return sharded() && !layout_.is_experts(unit); }
  /// Returns true if this rank is the first replica of its experts or of everything else.
  bool writes(bool experts) const;
  /// Returns the ranks that sum gradients of what is not shared; null: this rank alone. Adapters are never shared.
  Comm* replicas() const;
  Tensor local(const Tensor& flat, int unit) const;
  /// Returns this rank's part of a unit's gradient.
  Tensor local_gradient(int unit) const;
  /// keeps_gradients(): returns the whole gradient of a unit.
  Tensor whole_gradient(int unit) const;
  /// Returns this rank's part of the tensor that the optimizer updates: the master, or the weights
  /// themselves.
  Tensor local_leading(int unit) const {
    return master_.empty() ? local_weights(unit) : local(master_, unit);
  }
  void upload_rounded(const Tensor& target, const float* values);
  /// Parts of change(): the frozen weights, behind the trained ones in `replaced`.
  void change_frozen(const std::function<ElementChange(const Parameter&)>& change_of, Replaced* replaced);
  /// `scale`: f32 [1], for FP16 or FP8 data.
  std::vector<float> download_widened(const Tensor& source, const Tensor& scale = {});
  /// Returns all of a parameter in FP32, from this rank's slice of it. A collective of tensor ranks.
  std::vector<float> whole_values(const Parameter& p, const Tensor& mine, const Tensor& scale);
  /// Rounds a parameter's FP32 host values into `target`, this rank's part.
  void store_weights(int unit, std::size_t parameter, const Tensor& target, const float* values);
  /// Parts of state(): the updated weights; these and the moments.
  std::vector<StateTensor> weights_state() const;
  std::vector<StateTensor> trained_state() const;
  /// Appends one kind of state. values_of(unit, piece) returns this rank's part of a parameter.
  void append_state(std::vector<StateTensor>& state, const char* kind,
                    const std::function<Tensor(int unit, const Piece& piece)>& values_of) const;
  /// Returns this rank's part of a parameter in the tensor that the optimizer updates.
  Tensor leading(int unit, const Piece& piece) const;
  /// Visits the layout's buffers and their tensors.
  void for_buffers(const std::function<void(const Parameter&, const Tensor&)>& visit) const;
  // FP16 master (fp16_master.cpp)
  bool fp16_master() const { return master_scales_ != nullptr; }
  bool in_codes(const Parameter& p) const { return fp16_master() && p.kind == ParameterKind::matrix; }
  /// Returns a unit's vectors, FP32 [1, unit size - vectors_offset()], with 0 for other ranks' elements.
  Tensor exact(int unit) const;
  /// Return this rank's part of one vector, and its rounded copy, which takes the place of FP16 data to be
  /// gathered with it.
  Tensor exact(int unit, const Piece& piece) const;
  Tensor rounded(int unit, const Piece& piece) const;
  /// Adds the other ranks' elements, in the arena's stack. A collective.
  Tensor whole_vectors(int unit);
  void round_vectors();
  /// Decodes elements [first, last) of a unit, matrices from `codes` and vectors rounded, into dst.
  void decode_master(int unit, const Tensor& dst, const Tensor& codes, std::int64_t first,
                     std::int64_t last) const;
  /// Encodes this rank's part of a matrix. values(target, first) writes its elements from `first` on to FP32
  /// device memory, and is called twice. A collective.
  void encode_master(int unit, std::size_t parameter,
                     const std::function<void(const Tensor& target, std::int64_t first)>& values);
  void initialize_master(std::uint64_t seed, float std);
  void load_master(const StateReader& read);
  /// Returns the scale of the updated weights, f32 [1]; empty if they have none.
  Tensor weight_scale(int unit, std::size_t parameter) const {
    return fp16_master() ? master_scales_->of(unit, parameter).scale : Tensor{};
  }
  /// Quantizes the blocks' weights that are exchanged or kept in FP8.
  void refresh_fp8_weights();
  /// Calls visit(index, unit, parameter, part) in layout order for every parameter of whose weights this rank
  /// has a part; with an FP16 master for all matrices, since computing their scales is collective.
  void for_weights(const std::function<void(std::size_t index, int unit, std::size_t parameter,
                                            const StateTensor& part)>& visit) const;
  /// Zeros all state and weights, including padding.
  void zero_state();
  /// Rounds the BF16 weights from the master and invalidates gathered ones.
  void derive_weights();
  bool in_fp8(int unit) const { return fp8_ && fp8_->has(unit); }
  /// Returns this rank's part in BF16; empty if it is rounded from the master for every gather.
  Tensor local_weights(int unit) const;

  Device& device_;
  Comm& comm_;
  Arena& arena_;
  ModelConfig config_;
  ParameterOptions options_;
  std::shared_ptr<const Layout> shared_layout_;
  const Layout& layout_;  // *shared_layout_
  ParallelGroups groups_;
  std::unique_ptr<FrozenWeights> frozen_;       // null: the model is trained
  Tensor weights_, master_, gradient_;          // flat, one shard of every unit; whole kept gradients
  std::vector<std::int64_t> gradient_offsets_;  // keeps_gradients(): of a unit in gradient_
  std::vector<std::int64_t> weight_offsets_;    // of a unit's shard in weights_; -1: not stored
  std::unique_ptr<ParameterScales> master_scales_;
  Tensor exact_;                             // FP16 master: the vectors of all units, f32
  std::vector<std::int64_t> exact_offsets_;  // of a unit's vectors in exact_
  std::unique_ptr<Moments> moments_;
  std::unique_ptr<Fp8Gradients> fp8_gradients_;
  StagedWatcher staged_watcher_;
  std::unique_ptr<DelayedScaling> delayed_;
  std::unique_ptr<WeightAmaxes> weight_amaxes_;
  std::unique_ptr<Fp8Weights> fp8_;
  std::unique_ptr<UnitExchange> exchange_;  // if sharded or with an FP16 master
  std::unique_ptr<Routers> routers_;
  Tensor hash_;  // i32 [2], for fingerprints(); allocated here so that a dry run predicts it
  Tensor other_norm_;
  Tensor reduced_;   // sharded with accumulation: a reduced shard, before it is added
  int adding_ = -1;  // the unit whose reduced shard is in reduced_ or in flight
  std::vector<Comm::Ticket> shard_tickets_, replica_tickets_;  // of every unit's latest reductions
  bool overlays_ = false;  // the gradient buffer overlays the arena's stack
  int micro_step_ = 0;
};

}  // namespace precbench
