// Flat buffers, gathering and reducing. See parameters.h.
#include "models/transformer/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

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
  shard_tickets_.resize(layout_.unit_count());
  replica_tickets_.resize(layout_.unit_count());
  if (sharded())
    exchange_ = std::make_unique<UnitExchange>(*shard_comm_.comm, arena, layout_,
                                               UnitExchange::Options{.weights = options.weights,
                                                                     .gradients = options.gradients,
                                                                     .fp8 = fp8_.get(),
                                                                     .keep = options.keep_gathered,
                                                                     .share = options.accumulation == 1});
  allocate_state();
  allocate_gradients();
}

bool Parameters::stores_weights(int unit) const {
  if (!sharded()) return true;
  if (options_.master == Master::fp32) return false;
  return in_fp8(unit) || !options_.keep_gathered;
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
  moments_ = std::make_unique<Moments>(arena_, layout_, *options_.optimizer, options_.moments, shard_rank());
  hash_ = arena_.push(Segment::other, DType::i32, 1, 2);
}

void Parameters::allocate_gradients() {
  const std::int64_t size = layout_.local_size();
  gradient_ = arena_.overlay_gradients(options_.gradients, size).reshape(1, size);
  overlays_ = options_.accumulation == 1;
  if (overlays_) return;
  arena_.commit_gradients(0);
  if (!sharded()) return;
  std::int64_t largest = 0;
  for (int u = 0; u < layout_.unit_count(); ++u) largest = std::max(largest, layout_.shard_size(u));
  reduced_ = arena_.push(Segment::communication, options_.gradients, 1, largest);
}

Tensor Parameters::local(const Tensor& buffer, int unit) const {
  return buffer.empty() ? Tensor{} : buffer.elements(layout_.shard_offset(unit), layout_.shard_size(unit));
}

void Parameters::forget_gathered() {
  if (exchange_) exchange_->forget();
}

Tensor Parameters::local_weights(int unit) const {
  if (weight_offsets_[unit] >= 0) return weights_.elements(weight_offsets_[unit], layout_.shard_size(unit));
  if (options_.keep_gathered && !in_fp8(unit)) return exchange_->own_part(unit, Pass::forward);
  return {};
}

void Parameters::begin_step() {
  forget_gathered();
  release_gradients();
  if (fp8_) quantize_shards();
}

/// The blocks' codes for this step. Those that come from BF16 weights find them rounded from the master, a unit at a time.
void Parameters::quantize_shards() {
  const Scope scope(arena_);
  const bool round = !master_.empty() && !fp8_->from_master();
  Tensor rounded;
  int rounded_unit = -1;
  if (round)
    rounded = arena_.push(Segment::workspace, options_.weights, 1, layout_.shard_size(layout_.block_unit(0)));
  const auto leading = [&](int unit) { return local_leading(unit); };
  const auto in_bf16 = [&](int unit) {
    if (std::exchange(rounded_unit, unit) != unit) device_.convert({rounded, local(master_, unit)});
    return rounded;
  };
  if (round)
    fp8_->refresh(in_bf16, leading, delayed_.get());
  else
    fp8_->refresh(leading, leading, delayed_.get());
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
  if (!sharded() || exchange_->has(unit, pass)) return;
  const Tensor place = exchange_->take_weights(unit, pass);
  if (in_fp8(unit)) return exchange_->gather(unit, pass, fp8_->codes(unit, pass), fp8_->scales(unit, pass));
  const Tensor kept = local_weights(unit);
  if (kept.empty()) device_.convert({place, local(master_, unit)});
  exchange_->gather(unit, pass, kept.empty() ? place : kept, {});
}

Tensor Parameters::gather(int unit, Pass pass) {
  if (!sharded()) return local_weights(unit);
  prefetch(unit, pass);
  return exchange_->weights(unit, pass);
}

BlockWeights Parameters::gather_block(std::int64_t layer, Pass pass) {
  const int unit = layout_.block_unit(layer);
  const Tensor weights = gather(unit, pass);
  if (in_fp8(unit)) return fp8_->block(unit, pass, weights, exchange_->scales(unit, pass), arena_);
  const BlockTensors t = layout_.block(weights);
  BlockWeights block{t};
  for (const LinearMatrix& m : layout_.block_linears()) block[m.role].value = t[m.role];
  return block;
}

Tensor Parameters::gradients(int unit) {
  return sharded() ? exchange_->gradients(unit) : local(gradient_, unit);
}

void Parameters::commit(const Tensor& gradient) {
  if (!overlays_ || sharded()) return;
  const std::int64_t bytes = gradient.as<std::byte>() - gradient_.as<std::byte>();
  arena_.commit_gradients(bytes * 8 / bits_of(gradient_.dtype));
}

void Parameters::reduce(int unit) {
  const bool last = micro_step_ == options_.accumulation - 1;
  if (sharded()) {
    if (micro_step_ > 0) add_reduced();
    if (overlays_) arena_.commit_gradients(layout_.shard_offset(unit));
    const Tensor target =
        micro_step_ == 0 ? local(gradient_, unit) : reduced_.elements(0, layout_.shard_size(unit));
    shard_tickets_[unit] = exchange_->reduce(unit, target);
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
  for (int u = 0; u < layout_.unit_count(); ++u)
    if (const Tensor kept = local_weights(u); weight_offsets_[u] < 0 && !kept.empty()) device_.zero({kept});
  moments_->reset(device_);
  if (delayed_) delayed_->reset();
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
  if (!delayed_) return state;
  for (StateTensor tensor : delayed_->state()) {
    if (shard_rank() > 0) tensor.values = {nullptr, tensor.values.dtype, 0, 0};  // the first has it for all
    state.push_back(std::move(tensor));
  }
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
  derive_weights();
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
