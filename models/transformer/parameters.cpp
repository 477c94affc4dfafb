// Flat buffers, gathering and reducing. See parameters.h.
#include "models/transformer/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "kernels/base/errors.h"
#include "kernels/numerics/formats.h"

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
  if (sharded() && options.gather_format.quantized())
    fp8_ = std::make_unique<Fp8Weights>(device, *shard_comm_.comm, arena, layout_, options.gather_format,
                                        options.gather_fp8);
  if (config.moe) routers_ = std::make_unique<Routers>(device, arena, config, options.accumulation);
  shard_tickets_.resize(layout_.unit_count());
  replica_tickets_.resize(layout_.unit_count());
  allocate_state();
  if (sharded()) {
    allocate_communication();
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
    const bool none = fp8_ && fp8_->has(u) && fp8_->from_master() && options_.master == Master::fp32;
    weight_offsets_.push_back(none ? -1 : weights_size);
    if (!none) weights_size += layout_.shard_offset(u + 1) - layout_.shard_offset(u);
  }
  weights_ = arena_.push(Segment::weights, options_.weights, 1, weights_size);
  if (options_.master == Master::fp32) master_ = arena_.push(Segment::master, DType::f32, 1, size);
  moments_ = std::make_unique<Moments>(arena_, layout_, *options_.optimizer, options_.moments, shard_rank());
  hash_ = arena_.push(Segment::other, DType::i32, 1, 2);
}

/// The shard's gradient, and the buffers through which whole units are gathered and reduced.
void Parameters::allocate_communication() {
  gradient_ = arena_.push(Segment::gradients, options_.gradients, 1, layout_.local_size());
  std::int64_t largest[kBuffers] = {}, largest_shard = 0;
  bool any_bf16[kBuffers] = {};
  for (int u = 0; u < layout_.unit_count(); ++u) {
    std::int64_t& buffer = largest[buffer_of(u)];
    buffer = std::max(buffer, layout_.shard_size(u) * layout_.shards());
    any_bf16[buffer_of(u)] = any_bf16[buffer_of(u)] || !(fp8_ && fp8_->has(u));
    largest_shard = std::max(largest_shard, layout_.shard_size(u));
  }
  for (int i = 0; i < kBuffers; ++i) {
    if (largest[i] == 0) continue;  // one block only
    const DType dtype = any_bf16[i] ? options_.weights : options_.gather_format.dtype;
    gather_buffers_[i].weights = arena_.push(Segment::communication, dtype, 1, largest[i]);
    if (fp8_ && fp8_->by_pass() && i != buffer_of(layout_.head_unit()))
      gather_buffers_[i].scales =
          arena_.push(Segment::communication, DType::ue8m0, 1, largest[i] / Fp8Weights::kCodesPerScale);
    reduce_buffers_[i].gradients = arena_.push(Segment::communication, options_.gradients, 1, largest[i]);
  }
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
  return fp8_ && fp8_->has(unit) ? fp8_->codes(unit, pass) : local_weights(unit);
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
  if (fp8_)
    fp8_->refresh(
        [&](int unit) {
          return fp8_->from_master() && !master_.empty() ? local(master_, unit) : local_weights(unit);
        },
        delayed_.get());
  release_gradients();
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
  buffer.gathered = shard_comm_.comm->start_all_gather(gather_target(unit), gather_shard(unit, pass));
  if (by_pass(unit))  // whoever waits for the second has both
    buffer.gathered = shard_comm_.comm->start_all_gather(gathered_scales(unit), fp8_->scales(unit, pass));
}

Tensor Parameters::gather(int unit) {
  if (!sharded()) return local_weights(unit);
  if (gather_buffers_[buffer_of(unit)].unit != unit) prefetch(unit);
  shard_comm_.comm->wait(gather_buffers_[buffer_of(unit)].gathered);
  return gather_target(unit);
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
  if (!sharded()) return local(gradient_, unit);
  const ReduceBuffer& buffer = reduce_buffers_[buffer_of(unit)];
  shard_comm_.comm->wait(buffer.reduced);
  return buffer.gradients.elements(0, layout_.shard_size(unit) * layout_.shards());
}

void Parameters::commit(const Tensor& gradient) {
  if (!overlays_) return;
  const std::int64_t bytes = gradient.as<std::byte>() - gradient_.as<std::byte>();
  arena_.commit_gradients(bytes * 8 / bits_of(gradient_.dtype));
}

void Parameters::reduce(int unit) {
  const bool last = micro_step_ == options_.accumulation - 1;
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

void Parameters::zero_state() {
  for (const Tensor& flat : {weights_, master_})
    if (!flat.empty()) device_.zero({flat});
  moments_->reset(device_);
  if (delayed_) delayed_->reset();
  if (routers_) routers_->reset();
}

void Parameters::derive_weights() {
  for (int u = 0; u < layout_.unit_count(); ++u)
    if (const Shard s = shard(u); !s.master.empty() && !s.weights.empty())
      device_.convert({s.weights, s.master});
  forget_gathered();
}

void Parameters::initialize(std::uint64_t seed, float std) {
  zero_state();  // biases too
  for (int u = 0; u < layout_.unit_count(); ++u) {
    const Shard s = shard(u);
    for (const Run& run : s.runs) {
      const Tensor elements = local_leading(u).elements(run.first, run.count);
      if (run.kind == ParameterKind::matrix)
        device_.init_normal({elements, std, seed, s.model_offset + run.first});
      else if (run.kind == ParameterKind::gain)
        device_.fill({elements, 1.0f});
    }
  }
  derive_weights();
}

void Parameters::append_state(std::vector<StateTensor>& state, const char* kind,
                              const std::function<Tensor(int unit)>& local_of) const {
  for (int u = 0; u < layout_.unit_count(); ++u) {
    const Tensor mine = local_of(u);
    for (const Piece& piece : layout_.pieces(u, shard_rank())) {
      const Parameter& p = *piece.parameter;
      StateTensor tensor{.name = fmt::format("{}/{}", kind, p.name), .shape = p.shape()};
      tensor.values.dtype = mine.dtype;
      if (piece.count > 0) {
        tensor.first = piece.first;
        tensor.values = mine.elements(piece.offset, piece.count);
      }
      state.push_back(std::move(tensor));
    }
  }
}

std::vector<StateTensor> Parameters::weights_state() const {
  std::vector<StateTensor> state;
  append_state(state, "weights", [&](int u) { return local_leading(u); });
  return state;
}

std::vector<StateTensor> Parameters::gradient_parts() const {
  std::vector<StateTensor> parts;
  append_state(parts, "gradients", [&](int u) { return local(gradient_, u); });
  return parts;
}

void Parameters::for_weights(
    const std::function<void(std::size_t, const Parameter&, const StateTensor&)>& visit) const {
  const std::vector<StateTensor> parts = weights_state();
  std::size_t index = 0;
  for (const Unit& unit : layout_.units())
    for (const Parameter& p : unit.parameters) {
      if (!parts[index].values.empty()) visit(index, p, parts[index]);
      ++index;
    }
}

std::vector<StateTensor> Parameters::trained_state() const {
  std::vector<StateTensor> state = weights_state();
  moments_->append_state(state);
  return state;
}

std::vector<StateTensor> Parameters::state() const {
  std::vector<StateTensor> state = trained_state();
  const auto add_common = [&](const std::vector<StateTensor>& tensors) {
    for (StateTensor tensor : tensors) {
      if (shard_rank() > 0) tensor.values = {nullptr, tensor.values.dtype, 0, 0};  // the first has it for all
      state.push_back(std::move(tensor));
    }
  };
  if (delayed_) add_common(delayed_->state());
  if (routers_) add_common(routers_->state(layout_));
  return state;
}

void Parameters::save_state(const StateWriter& write) const {
  precbench::save_state(device_, state(), write);
}

void Parameters::load_state(const StateReader& read, bool own) {
  zero_state();
  if (own) {
    precbench::load_state(device_, trained_state(), read);
    if (delayed_) precbench::load_state(device_, delayed_->state(), read);
  } else {
    std::vector<StateTensor> foreign = weights_state();
    moments_->append_unscaled_state(foreign);
    precbench::load_state(device_, foreign, read);
    moments_->load_scaled(device_, read);
  }
  if (routers_) precbench::load_state(device_, routers_->state(layout_), read);
  derive_weights();
}

void Parameters::load(const std::function<void(const Parameter&, float*)>& read) {
  zero_state();
  std::vector<float> whole;
  for_weights([&](std::size_t, const Parameter& p, const StateTensor& part) {
    whole.resize(p.size());
    read(p, whole.data());
    upload_rounded(part.values, whole.data() + part.first);
  });
  for_buffers([&](const Parameter& p, const Tensor& values) {
    whole.resize(p.size());
    read(p, whole.data());
    device_.upload(values, whole.data());
  });
  derive_weights();
}

void Parameters::for_buffers(const std::function<void(const Parameter&, const Tensor&)>& visit) const {
  if (!routers_) return;
  const std::vector<StateTensor> state = routers_->state(layout_);
  for (std::size_t i = 0; i < state.size(); ++i) visit(layout_.buffers()[i], state[i].values);
}

void Parameters::change(const std::function<ElementChange(const Parameter&)>& change_of, Replaced* replaced) {
  for_weights([&](std::size_t index, const Parameter& p, const StateTensor& part) {
    if (replaced) replaced->resize(index + 1);
    const ElementChange changed = change_of(p);
    if (!changed) return;
    std::vector<float> values = download_widened(part.values);
    if (replaced) replaced->back() = values;
    for (std::int64_t i = 0; i < part.values.size(); ++i) values[i] = changed(part.first + i, values[i]);
    upload_rounded(part.values, values.data());
  });
  derive_weights();
}

void Parameters::restore(const Replaced& replaced) {
  for_weights([&](std::size_t index, const Parameter&, const StateTensor& part) {
    if (index < replaced.size() && !replaced[index].empty())
      upload_rounded(part.values, replaced[index].data());
  });
  derive_weights();
}

void Parameters::upload_rounded(const Tensor& target, const float* values) {
  if (target.dtype == DType::f32) return device_.upload(target, values);
  std::vector<std::uint16_t> rounded(target.size());
  std::transform(values, values + target.size(), rounded.begin(), bf16_encode);
  device_.upload(target, rounded.data());
}

std::vector<float> Parameters::download_widened(const Tensor& source) {
  std::vector<float> values(source.size());
  if (source.dtype == DType::f32) {
    device_.download(values.data(), source);
    return values;
  }
  std::vector<std::uint16_t> words(source.size());
  device_.download(words.data(), source);
  std::transform(words.begin(), words.end(), values.begin(), bf16_decode);
  return values;
}

void Parameters::save(Kind kind, const std::function<void(const Parameter&, const float*)>& write) {
  for (int u = 0; u < layout_.unit_count(); ++u) {
    const Tensor mine = kind == Kind::gradients ? local(gradient_, u) : local_leading(u);
    const Scope scope(arena_);
    Tensor full = mine;
    if (sharded()) {
      full = arena_.push_uncounted(mine.dtype, 1, mine.size() * layout_.shards());
      shard_comm_.comm->all_gather(full, mine);
    }
    const std::vector<float> values = download_widened(full);
    for (const Parameter& p : layout_.units()[u].parameters) write(p, values.data() + p.offset);
  }
  if (kind == Kind::weights)
    for_buffers(
        [&](const Parameter& p, const Tensor& values) { write(p, download_widened(values).data()); });
}

std::vector<std::uint64_t> Parameters::fingerprints() {
  std::vector<std::uint64_t> result;
  for (const StateTensor& tensor : weights_state()) {
    std::uint32_t words[2] = {};
    if (!tensor.values.empty()) {
      device_.fingerprint({hash_, tensor.values});
      device_.download(words, hash_);
    }
    result.push_back((std::uint64_t{words[0]} << 32) | words[1]);
  }
  return result;
}

}  // namespace precbench
