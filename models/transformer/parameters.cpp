// Flat buffers, gathering and reducing. See parameters.h.
#include "models/transformer/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "kernels/base/errors.h"

namespace precbench {
Parameters::Parameters(Device& device, Comm& comm, Arena& arena, const ModelConfig& config,
                       const ParameterOptions& options)
    : device_(device),
      comm_(comm),
      arena_(arena),
      config_(config),
      options_(options),
      layout_(config, options.parallel.shard, options.whole_blocks()) {
  const ParallelDims& dims = options.parallel;
  if (dims.ranks() != comm.size())
    throw std::invalid_argument(
        fmt::format("parameters: {} ranks, but the axes have {}", comm.size(), dims.ranks()));
  if (dims.ranks() != dims.data * dims.shard)
    throw Unsupported("parameters are shared along the data and shard axes only");
  shard_comm_ = comm_along(comm, dims, {Axis::shard});
  replica_comm_ = comm_along(comm, dims, {Axis::data});
  if (options.delayed.delayed())
    delayed_ = std::make_unique<DelayedScaling>(device, arena, options.delayed, config.layers);
  if (options.gather_format.quantized())
    fp8_ = std::make_unique<Fp8Weights>(device, shard_comm_.comm, arena, layout_, options.gather_format,
                                        options.gather_fp8);
  if (config.moe) routers_ = std::make_unique<Routers>(device, arena, config, options.accumulation);
  shard_tickets_.resize(layout_.unit_count());
  replica_tickets_.resize(layout_.unit_count());
  allocate_state();
  if (sharded() || fp16_master()) allocate_gather_buffers();
  if (options.gradients == DType::e4m3)
    fp8_gradients_ =
        std::make_unique<Fp8Gradients>(device, comm.size() > 1 ? &comm : nullptr, arena, config, layout_);
  if (sharded()) {
    allocate_reduction();
    return;
  }
  gradient_ =
      arena.overlay_gradients(options.gradients, layout_.local_size()).reshape(1, layout_.local_size());
  overlays_ = options.accumulation == 1;
  if (!overlays_) arena.commit_gradients(0);
}

void Parameters::allocate_state() {
  const std::int64_t size = layout_.local_size();
  std::int64_t weights_size = 0;
  for (int u = 0; u < layout_.unit_count(); ++u) {
    const bool none = options_.master == Master::fp16 ||
                      (fp8_ && fp8_->has(u) && fp8_->from_master() && options_.master == Master::fp32);
    weight_offsets_.push_back(none ? -1 : weights_size);
    if (!none) weights_size += layout_.shard_offset(u + 1) - layout_.shard_offset(u);
  }
  if (weights_size > 0) weights_ = arena_.push(Segment::weights, options_.weights, 1, weights_size);
  if (options_.master == Master::fp32) master_ = arena_.push(Segment::master, DType::f32, 1, size);
  if (options_.master == Master::fp16) {
    master_ = arena_.push(Segment::master, DType::f16, 1, size);
    master_scales_ = std::make_unique<ParameterScales>(arena_, Segment::master, layout_, DType::f16);
  }
  moments_ = std::make_unique<Moments>(arena_, layout_, *options_.optimizer, options_.moments, shard_rank());
  hash_ = arena_.push(Segment::other, DType::i32, 1, 2);
}

/// Through which whole units are gathered, or rounded from an FP16 master.
void Parameters::allocate_gather_buffers() {
  std::int64_t largest[kBuffers] = {};
  bool any_bf16[kBuffers] = {};
  for (int u = 0; u < layout_.unit_count(); ++u) {
    const bool bf16 = !(fp8_ && fp8_->has(u));
    if (!sharded() && !bf16) continue;  // its codes are all here
    std::int64_t& buffer = largest[buffer_of(u)];
    buffer = std::max(buffer, layout_.shard_size(u) * layout_.shards());
    any_bf16[buffer_of(u)] = any_bf16[buffer_of(u)] || bf16;
  }
  const Segment segment = sharded() ? Segment::communication : Segment::weights;
  for (int i = 0; i < kBuffers; ++i) {
    if (largest[i] == 0) continue;  // one block only
    const DType dtype = any_bf16[i] ? options_.weights : options_.gather_format.dtype;
    gather_buffers_[i].weights = arena_.push(segment, dtype, 1, largest[i]);
    if (fp8_ && fp8_->by_pass() && i != buffer_of(layout_.head_unit()))
      gather_buffers_[i].scales =
          arena_.push(segment, DType::ue8m0, 1, largest[i] / Fp8Weights::kCodesPerScale);
  }
}

/// The shard's gradient, and the buffers through which those of whole units are reduced.
void Parameters::allocate_reduction() {
  gradient_ = arena_.push(Segment::gradients, options_.gradients, 1, layout_.local_size());
  if (fp8_gradients_) return;
  std::int64_t largest[kBuffers] = {}, largest_shard = 0;
  for (int u = 0; u < layout_.unit_count(); ++u) {
    std::int64_t& buffer = largest[buffer_of(u)];
    buffer = std::max(buffer, layout_.shard_size(u) * layout_.shards());
    largest_shard = std::max(largest_shard, layout_.shard_size(u));
  }
  for (int i = 0; i < kBuffers; ++i)
    if (largest[i] > 0)
      reduce_buffers_[i].gradients = arena_.push(Segment::communication, options_.gradients, 1, largest[i]);
  if (options_.accumulation > 1)
    reduced_ = arena_.push(Segment::communication, options_.gradients, 1, largest_shard);
}

Tensor Parameters::local(const Tensor& buffer, int unit) const {
  return buffer.empty() ? Tensor{} : buffer.elements(layout_.shard_offset(unit), layout_.shard_size(unit));
}

void Parameters::forget_gathered() {
  for (GatherBuffer& buffer : gather_buffers_) buffer.unit = -1;
}

Tensor Parameters::local_weights(int unit) const {
  if (weight_offsets_[unit] < 0) return {};
  return weights_.elements(weight_offsets_[unit], layout_.shard_size(unit));
}

Tensor Parameters::gather_shard(int unit, Pass pass) const {
  if (fp8_ && fp8_->has(unit)) return fp8_->codes(unit, pass);
  return fp16_master() ? local(master_, unit) : local_weights(unit);
}

Tensor Parameters::gather_target(int unit) const {
  Tensor buffer = gather_buffers_[buffer_of(unit)].weights;
  buffer.dtype = gather_shard(unit, Pass::forward).dtype;  // a buffer for BF16 holds FP8 as well
  return buffer.elements(0, layout_.shard_size(unit) * layout_.shards());
}

Tensor Parameters::gathered_scales(int unit) const {
  if (!by_pass(unit)) return {};
  return gather_buffers_[buffer_of(unit)].scales.elements(
      0, layout_.shard_size(unit) / Fp8Weights::kCodesPerScale * layout_.shards());
}

void Parameters::begin_step() {
  forget_gathered();
  release_gradients();  // before anything takes memory of the stack
  if (fp8_) refresh_fp8_weights();
  if (fp8_gradients_) fp8_gradients_->begin_step();
}

void Parameters::release_gradients() {
  if (overlays_) arena_.release_gradients();
}

std::vector<Comm*> Parameters::comms() const {
  std::vector<Comm*> all = {&comm_};
  for (const AxisComm* axis : {&shard_comm_, &replica_comm_})
    if (axis->owned) all.push_back(axis->comm);
  return all;
}

void Parameters::begin_micro_step(int micro_step) { micro_step_ = micro_step; }

void Parameters::complete(int unit) {
  if (adding_ == unit) add_reduced();
  if (shard_comm_.comm) shard_comm_.comm->wait(shard_tickets_[unit]);
  if (replica_comm_.comm) replica_comm_.comm->wait(replica_tickets_[unit]);
}

void Parameters::complete_all() {
  for (const int unit : layout_.backward_order()) complete(unit);
}

void Parameters::prefetch(int unit, Pass pass) {
  if (!sharded()) return;
  GatherBuffer& buffer = gather_buffers_[buffer_of(unit)];
  if (buffer.unit == unit && (buffer.pass == pass || !by_pass(unit))) return;
  buffer.unit = unit;
  buffer.pass = pass;
  buffer.rounded = false;
  buffer.gathered = shard_comm_.comm->start_all_gather(gather_target(unit), gather_shard(unit, pass));
  if (by_pass(unit))  // whoever waits for the second has both
    buffer.gathered = shard_comm_.comm->start_all_gather(gathered_scales(unit), fp8_->scales(unit, pass));
}

Tensor Parameters::gather(int unit) {
  const bool codes = fp8_ && fp8_->has(unit);
  if (!sharded() && (codes || !fp16_master())) return gather_shard(unit, Pass::forward);
  GatherBuffer& buffer = gather_buffers_[buffer_of(unit)];
  if (sharded()) {
    if (buffer.unit != unit) prefetch(unit);
    shard_comm_.comm->wait(buffer.gathered);
  } else if (buffer.unit != unit) {
    buffer.unit = unit;
    buffer.rounded = false;
  }
  const Tensor whole = gather_target(unit);
  if (codes || !fp16_master()) return whole;
  Tensor rounded = whole;
  rounded.dtype = options_.weights;
  if (!std::exchange(buffer.rounded, true))
    decode_master(unit, rounded, sharded() ? whole : local(master_, unit), 0, layout_.units()[unit].size);
  return rounded;
}

BlockWeights Parameters::gather_block(std::int64_t layer, Pass pass) {
  const int unit = layout_.block_unit(layer);
  prefetch(unit, pass);
  const Tensor weights = gather(unit);
  if (fp8_ && fp8_->has(unit)) return fp8_->block(unit, pass, weights, gathered_scales(unit), arena_);
  const BlockTensors t = layout_.block(layer, weights);
  BlockWeights block{t};
  for (const LinearMatrix& m : layout_.block_linears(layer)) block[m.role].value = t[m.role];
  return block;
}

Tensor Parameters::gradients(int unit) {
  if (fp8_gradients_) return fp8_gradients_->staging(unit);
  if (!sharded()) return local(gradient_, unit);
  const ReduceBuffer& buffer = reduce_buffers_[buffer_of(unit)];
  shard_comm_.comm->wait(buffer.reduced);
  return buffer.gradients.elements(0, layout_.shard_size(unit) * layout_.shards());
}

void Parameters::commit(const Tensor& gradient) {
  if (!overlays_ || gradient.dtype != gradient_.dtype) return;
  const std::int64_t bytes = gradient.as<std::byte>() - gradient_.as<std::byte>();
  arena_.commit_gradients(bytes * 8 / bits_of(gradient_.dtype));
}

void Parameters::reduce(int unit) {
  const bool last = micro_step_ == options_.accumulation - 1;
  if (fp8_gradients_) {
    const Tensor codes = local(gradient_, unit);
    commit(codes);
    return fp8_gradients_->reduce(unit, codes, micro_step_ == 0, last);
  }
  if (sharded()) {
    const Tensor full = gradients(unit);
    ReduceBuffer& buffer = reduce_buffers_[buffer_of(unit)];
    if (micro_step_ > 0) add_reduced();
    const Tensor target =
        micro_step_ == 0 ? local(gradient_, unit) : reduced_.elements(0, layout_.shard_size(unit));
    buffer.reduced = shard_tickets_[unit] = shard_comm_.comm->start_reduce_scatter(target, full);
    if (micro_step_ > 0) adding_ = unit;
  }
  if (!last || !replica_comm_.comm) return;
  add_reduced();
  replica_tickets_[unit] = replica_comm_.comm->start_all_reduce(local(gradient_, unit));
}

/// The shard that was reduced last is added to what earlier micro-steps left. Done one unit late, so that its
/// reduction runs beside the next block's compute.
void Parameters::add_reduced() {
  if (adding_ < 0) return;
  shard_comm_.comm->wait(shard_tickets_[adding_]);
  const Tensor target = local(gradient_, adding_);
  device_.add({target, reduced_.elements(0, target.size())});
  adding_ = -1;
}

Parameters::Shard Parameters::shard(int unit) const {
  return {local_weights(unit), local(master_, unit), local(gradient_, unit), layout_.runs(unit, shard_rank()),
          layout_.model_offset(unit) + layout_.shard_range(unit, shard_rank()).first};
}

}  // namespace precbench
