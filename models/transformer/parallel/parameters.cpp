// Flat buffers, gathering and reducing. See parameters.h.
#include "models/transformer/parallel/parameters.h"

#include <algorithm>

#include "kernels/base/errors.h"
#include "models/transformer/state/shared_layout.h"

namespace precbench {

Parameters::Parameters(Device& device, Comm& comm, Arena& arena, const ModelConfig& config,
                       const ParameterOptions& options)
    : device_(device),
      comm_(comm),
      arena_(arena),
      config_(config),
      options_(options),
      shared_layout_(options.lora
                         ? shared_layout(config, options.lora)
                         : shared_layout(config, options.parallel.weight_shards(), options.whole_blocks(),
                                         options.experts_of(comm.rank()), options.tensor_of(comm.rank()))),
      layout_(*shared_layout_),
      groups_(comm, options.parallel, options.expert_ranks) {
  if (options.parallel.tensor > 1 &&
      (options.lora || options.expert_ranks > 1 || options.master == Master::fp16 ||
       options.moments.scaled() || options.gradients == DType::e4m3 || options.gather_format.quantized()))
    throw Unsupported(
        "parameters: tensor ranks divide trained models alone, without experts apart or scales of state");
  if (options.lora) {
    if (options.expert_ranks > 1 || options.master == Master::fp16 || options.gradients == DType::e4m3 ||
        options.gather_format.quantized())
      throw Unsupported(
          "parameters: adapters need whole experts, and masters, gradients and weights without scales");
    frozen_ =
        std::make_unique<FrozenWeights>(device, arena, config,
                                        FrozenWeights::Options{.dtype = options.weights,
                                                               .formats = options.frozen_formats,
                                                               .keep_values = options.keep_frozen_values,
                                                               .comm = groups_.weights.comm,
                                                               .keep_gathered = options.keep_gathered});
  }
  if (options.expert_ranks > 1 || options.parallel.tensor > 1)
    other_norm_ = arena.push(Segment::other, DType::f32, 1, 1);
  if (options.delayed.delayed())
    delayed_ = std::make_unique<DelayedScaling>(device, comm, arena, options.delayed, config);
  if (options.weight_amaxes)
    weight_amaxes_ =
        std::make_unique<WeightAmaxes>(arena, config, config.moe.rule.experts / options.expert_ranks);
  if (options.gather_format.quantized())
    fp8_ = std::make_unique<Fp8Weights>(device, groups_.weights.comm, arena, layout_, options.gather_format,
                                        options.gather_fp8);
  if (config.moe)
    routers_ = std::make_unique<Routers>(device, arena, config, options.accumulation, options.expert_slots);
  shard_tickets_.resize(layout_.unit_count());
  replica_tickets_.resize(layout_.unit_count());
  if (keeps_gradients() && options.gradients == DType::e4m3)
    throw Unsupported("gradients in e4m3 are reduced in every micro-step");
  const bool exchanges = sharded() && options.gradients != DType::e4m3 && !keeps_gradients();
  const bool codes = options.master == Master::fp16;
  if (sharded() || codes)
    exchange_ =
        std::make_unique<UnitExchange>(groups_.weights.comm, arena, layout_,
                                       UnitExchange::Options{.weights = codes ? DType::f16 : options.weights,
                                                             .gradients = options.gradients,
                                                             .fp8 = fp8_.get(),
                                                             .keep = sharded() && options.keep_gathered,
                                                             .reduce = exchanges,
                                                             .share = options.accumulation == 1});
  allocate_state();
  if (options.gradients == DType::e4m3)
    fp8_gradients_ = std::make_unique<Fp8Gradients>(device, comm.size() > 1 ? &comm : nullptr, arena, config,
                                                    layout_, options.round_gradient_sums);
  allocate_gradients();
  if (weight_amaxes_) keep_weight_amaxes();
}

void Parameters::keep_weight_amaxes() {
  const bool one_pass = options_.optimizer->records_amaxes && !moments_->formats().scaled() &&
                        !fp16_master() && !fp8_gradients_;
  if (sharded() || groups_.tensor.comm || frozen_ || !one_pass || options_.weights != DType::bf16) return;
  for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
    const Tensor unit = local_weights(layout_.block_unit(layer));
    for (const LinearMatrix& m : layout_.block_linears(layer))
      if (!unit.empty())
        weight_amaxes_->keep(weight_amaxes_->slot(layer, m.role), unit,
                             unit.elements(m.offset, m.size()).reshape(m.rows, m.cols));
  }
  if (const Tensor unit = local_weights(layout_.head_unit()); !unit.empty())
    weight_amaxes_->keep(weight_amaxes_->slot(0, LinearRole::head), unit, layout_.lm_head(unit));
}

bool Parameters::stores_weights(int unit) const {
  if (options_.master == Master::fp16) return false;
  const bool from_fp32 = options_.master == Master::fp32;
  if (!gathered(unit)) return !(in_fp8(unit) && fp8_->from_master() && from_fp32);
  return !from_fp32 && (in_fp8(unit) || !options_.keep_gathered);
}

void Parameters::allocate_state() {
  const std::int64_t size = layout_.local_size();
  std::int64_t weights_size = 0;
  for (int u = 0; u < layout_.unit_count(); ++u) {
    weight_offsets_.push_back(stores_weights(u) ? weights_size : -1);
    if (stores_weights(u)) weights_size += layout_.shard_offset(u + 1) - layout_.shard_offset(u);
  }
  if (weights_size > 0) weights_ = arena_.push(Segment::weights, options_.weights, 1, weights_size);
  if (options_.master == Master::fp32) master_ = arena_.push(Segment::master, DType::f32, 1, size);
  if (options_.master == Master::fp16) {
    master_ = arena_.push(Segment::master, DType::f16, 1, size);
    master_scales_ = std::make_unique<ParameterScales>(arena_, Segment::master, layout_, DType::f16);
    std::int64_t vectors = 0;
    for (const Unit& unit : layout_.units()) {
      exact_offsets_.push_back(vectors);
      vectors += unit.size - unit.vectors_offset();
    }
    exact_ = arena_.push(Segment::master, DType::f32, 1, vectors);
  }
  moments_ = std::make_unique<Moments>(arena_, layout_, *options_.optimizer, options_.moments, shard_rank());
  hash_ = arena_.push(Segment::other, DType::i32, 1, 2);
}

void Parameters::allocate_gradients() {
  std::int64_t size = layout_.local_size();
  if (keeps_gradients()) {
    size = 0;
    for (int u = 0; u < layout_.unit_count(); ++u) {
      gradient_offsets_.push_back(size);
      size += (layout_.shard_offset(u + 1) - layout_.shard_offset(u)) * (gathered(u) ? layout_.shards() : 1);
    }
  }
  gradient_ = arena_.overlay_gradients(options_.gradients, size).reshape(1, size);
  overlays_ = options_.accumulation == 1 && !keeps_gradients() && !frozen_;
  if (overlays_) return;
  arena_.commit_gradients(0);
  if (!sharded() || fp8_gradients_ || keeps_gradients()) return;
  std::int64_t largest = 0;
  for (int u = 0; u < layout_.unit_count(); ++u)
    if (gathered(u)) largest = std::max(largest, layout_.shard_size(u));
  reduced_ = arena_.push(Segment::communication, options_.gradients, 1, largest);
}

Comm* Parameters::replicas() const {
  if (frozen_) return comm_.size() > 1 ? &comm_ : nullptr;
  return groups_.replicas.comm;
}

Tensor Parameters::local(const Tensor& buffer, int unit) const {
  return buffer.empty() ? Tensor{} : buffer.elements(layout_.shard_offset(unit), layout_.shard_size(unit));
}

Tensor Parameters::whole_gradient(int unit) const {
  return gradient_.elements(gradient_offsets_[unit],
                            layout_.shard_size(unit) * (gathered(unit) ? layout_.shards() : 1));
}

Tensor Parameters::local_gradient(int unit) const {
  if (!keeps_gradients()) return local(gradient_, unit);
  const Tensor whole = whole_gradient(unit);
  return gathered(unit) ? whole.elements(shard_rank() * layout_.shard_size(unit), layout_.shard_size(unit))
                        : whole;
}

void Parameters::forget_gathered() {
  if (exchange_) exchange_->forget();
  if (weight_amaxes_) weight_amaxes_->forget();
}

Tensor Parameters::local_weights(int unit) const {
  if (weight_offsets_[unit] >= 0) return weights_.elements(weight_offsets_[unit], layout_.shard_size(unit));
  if (sharded() && options_.keep_gathered && !in_fp8(unit) && !fp16_master())
    return exchange_->own_part(unit, Pass::forward);
  return {};
}

void Parameters::begin_step() {
  forget_gathered();
  if (frozen_) frozen_->begin_step();
  release_gradients();  // before anything uses the stack's memory
  if (fp8_) refresh_fp8_weights();
  if (fp8_gradients_) fp8_gradients_->begin_step();
}

void Parameters::release_gradients() {
  if (overlays_) arena_.release_gradients();
}

void Parameters::begin_micro_step(int micro_step) {
  micro_step_ = micro_step;
  if (delayed_) delayed_->begin_micro_step(micro_step);
  if (routers_ && micro_step == 0) routers_->begin_step();
}

void Parameters::complete(int unit) {
  if (layout_.is_experts(unit)) {
    if (groups_.expert_replicas.comm) groups_.expert_replicas.comm->wait(replica_tickets_[unit]);
    return;
  }
  if (adding_ == unit) add_reduced();
  if (sharded()) groups_.weights.comm->wait(shard_tickets_[unit]);
  if (Comm* others = replicas()) others->wait(replica_tickets_[unit]);
}

void Parameters::complete_all() {
  for (const int unit : layout_.backward_order()) complete(unit);
}

void Parameters::prefetch(int unit, Pass pass) {
  if (frozen_) return frozen_->prefetch(unit, pass);
  if (!gathered(unit) || exchange_->has(unit, pass)) return;
  const Tensor place = exchange_->take_weights(unit, pass);
  if (in_fp8(unit)) return exchange_->gather(unit, pass, fp8_->codes(unit, pass), fp8_->scales(unit, pass));
  const Tensor kept = fp16_master() ? local(master_, unit) : local_weights(unit);
  if (kept.empty()) device_.convert({place, local(master_, unit)});
  exchange_->gather(unit, pass, kept.empty() ? place : kept, {});
}

Tensor Parameters::gather(int unit, Pass pass) {
  if (frozen_) return frozen_->unit(unit, pass);
  if (!sharded() && in_fp8(unit)) return fp8_->codes(unit, pass);
  if (!exchange_ || layout_.is_experts(unit)) return local_weights(unit);
  prefetch(unit, pass);
  const Tensor whole = exchange_->weights(unit, pass);
  if (in_fp8(unit) || !fp16_master()) return whole;
  Tensor rounded = whole;  // in place of the FP16 data
  rounded.dtype = options_.weights;
  if (exchange_->first_use(unit, pass))
    decode_master(unit, rounded, sharded() ? whole : local(master_, unit), 0, layout_.units()[unit].size);
  return rounded;
}

BlockWeights Parameters::gather_block(std::int64_t layer, Pass pass) {
  if (frozen_) return frozen_->block(layer, pass);
  const int unit = layout_.block_unit(layer);
  const Tensor weights = gather(unit, pass);
  if (in_fp8(unit))
    return fp8_->block(unit, pass, weights, sharded() ? exchange_->scales(unit, pass) : Tensor{}, arena_);
  const BlockTensors t = layout_.block(layer, weights);
  BlockWeights block{t};
  for (const LinearMatrix& m : layout_.block_linears(layer)) block[m.role].value = t[m.role];
  if (layout_.experts_apart(layer))
    for (const LinearRole role : kExpertRoles)
      block[role].value = layout_.expert_stack(layout_.expert_unit(layer, role),
                                               local_weights(layout_.expert_unit(layer, role)));
  return block;
}

Tensor Parameters::gradients(int unit) {
  if (fp8_gradients_) return fp8_gradients_->staging(unit);
  if (keeps_gradients()) return whole_gradient(unit);
  return gathered(unit) ? exchange_->gradients(unit) : local_gradient(unit);
}

BlockTensors Parameters::block_gradients(std::int64_t layer) {
  if (frozen_) return frozen_->block_gradients(layer);
  BlockTensors g = layout_.block(layer, gradients(layout_.block_unit(layer)));
  if (layout_.experts_apart(layer))
    for (const LinearRole role : kExpertRoles)
      g[role] =
          layout_.expert_stack(layout_.expert_unit(layer, role), gradients(layout_.expert_unit(layer, role)));
  return g;
}

void Parameters::commit(const Tensor& gradient) {
  if (!overlays_ || gradient.dtype != gradient_.dtype) return;
  const std::int64_t bytes = gradient.as<std::byte>() - gradient_.as<std::byte>();
  if (bytes < 0 || bytes >= gradient_.bytes()) return;  // a whole gradient, which is reduced into shards
  arena_.commit_gradients(bytes * 8 / bits_of(gradient_.dtype));
}

void Parameters::sum_vectors(int unit) {
  const Unit& all = layout_.units()[unit];
  const std::int64_t first = all.vectors_offset();
  if (groups_.tensor.comm && first < all.size)
    groups_.tensor.comm->all_reduce(gradients(unit).elements(first, all.size - first));
}

void Parameters::reduce(int unit) {
  const bool last = micro_step_ == options_.accumulation - 1;
  if (last || !accumulates_over_micro_steps()) sum_vectors(unit);
  if (fp8_gradients_) {
    const Tensor codes = local_gradient(unit);
    if (staged_watcher_) staged_watcher_(unit, fp8_gradients_->staging(unit));
    commit(codes);
    return fp8_gradients_->reduce(unit, codes, micro_step_ == 0, last);
  }
  if (layout_.is_experts(unit)) {
    if (last && groups_.expert_replicas.comm)
      replica_tickets_[unit] = groups_.expert_replicas.comm->start_all_reduce(local_gradient(unit));
    return;
  }
  if (sharded() && !keeps_gradients())
    reduce_micro_step(unit);
  else if (sharded() && last)
    shard_tickets_[unit] =
        groups_.weights.comm->start_reduce_scatter(local_gradient(unit), whole_gradient(unit));
  Comm* others = replicas();
  if (!last || !others) return;
  add_reduced();
  replica_tickets_[unit] = others->start_all_reduce(local_gradient(unit));
}

/// Starts the reduction of one micro-step's gradient, to be added to those of earlier ones.
void Parameters::reduce_micro_step(int unit) {
  if (micro_step_ > 0) add_reduced();
  if (overlays_) arena_.commit_gradients(layout_.shard_offset(unit));
  const Tensor target =
      micro_step_ == 0 ? local_gradient(unit) : reduced_.elements(0, layout_.shard_size(unit));
  shard_tickets_[unit] = exchange_->reduce(unit, target);
  if (micro_step_ > 0) adding_ = unit;
}

/// Adds the shard that was reduced last to the sum of earlier micro-steps. Runs one unit late, so that the
/// reduction overlaps the next block's compute.
void Parameters::add_reduced() {
  if (adding_ < 0) return;
  groups_.weights.comm->wait(shard_tickets_[adding_]);
  const Tensor target = local_gradient(adding_);
  device_.add({target, reduced_.elements(0, target.size())});
  adding_ = -1;
}

Parameters::Shard Parameters::shard(int unit) const {
  return {local_weights(unit), local(master_, unit), local_gradient(unit), layout_.runs(unit, shard_rank())};
}

}  // namespace precbench
