// Initialization, checkpoints, changes and fingerprints of weights and optimizer state. See parameters.h.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "kernels/numerics/state_formats.h"
#include "models/transformer/parallel/parameters.h"

namespace precbench {

void Parameters::zero_state() {
  for (const Tensor& flat : {weights_, master_, exact_})
    if (!flat.empty()) device_.zero({flat});
  for (int u = 0; u < layout_.unit_count(); ++u)
    if (const Tensor kept = local_weights(u); weight_offsets_[u] < 0 && !kept.empty()) device_.zero({kept});
  if (fp16_master()) master_scales_->reset(device_);
  moments_->reset(device_);
  if (delayed_) delayed_->reset();
  if (routers_ && !frozen_) routers_->reset();
}

void Parameters::derive_weights() {
  for (int u = 0; u < layout_.unit_count(); ++u)
    if (const Shard s = shard(u); !s.master.empty() && !s.weights.empty())
      device_.convert({s.weights, s.master});
  if (fp16_master()) round_vectors();
  forget_gathered();
  if (weight_amaxes_) weight_amaxes_->refresh(device_);
  if (!frozen_) return;
  frozen_->begin_step();  // what was gathered is stale
  frozen_->quantize();
}

void Parameters::initialize(std::uint64_t seed, float std) {
  if (frozen_) {
    frozen_->initialize(seed, std);
    if (routers_) routers_->reset();
    return initialize_adapters(seed);
  }
  zero_state();  // biases too
  for (int u = 0; u < layout_.unit_count() && !fp16_master(); ++u) {
    const Shard s = shard(u);
    for (const Run& run : s.runs) {
      const Tensor elements = local_leading(u).elements(run.first, run.count);
      if (run.kind == ParameterKind::matrix)
        device_.init_normal({elements, std, seed, run.in_model});
      else if (run.kind == ParameterKind::gain)
        device_.fill({elements, 1.0f});
    }
  }
  if (fp16_master()) initialize_master(seed, std);
  derive_weights();
}

void Parameters::initialize_adapters(std::uint64_t seed) {
  load([&](const Parameter& p, float* values) {
    const bool is_a = p.name.ends_with(".lora_A.weight");
    for (std::int64_t i = 0; i < p.size(); ++i)
      values[i] = is_a ? lora_first_value(seed, p.in_model + i, lora_bound(p.cols)) : 0.0f;
  });
}

void Parameters::load_frozen(const std::function<void(const Parameter&, float*)>& read) {
  std::vector<float> whole;
  frozen_->set([&](const FrozenWeights::Part& part) {
    if (part.values.empty()) return;
    whole.resize(part.parameter->size());
    read(*part.parameter, whole.data());
    upload_rounded(part.values, whole.data() + part.first);
  });
  for_buffers([&](const Parameter& p, const Tensor& values) {
    whole.resize(p.size());
    read(p, whole.data());
    device_.upload(values, whole.data());
  });
  derive_weights();
}

void Parameters::append_state(std::vector<StateTensor>& state, const char* kind,
                              const std::function<Tensor(int unit, const Piece&)>& values_of) const {
  for (int u = 0; u < layout_.unit_count(); ++u)
    for (const Piece& piece : layout_.pieces(u, shard_rank())) {
      const Parameter& p = *piece.parameter;
      StateTensor tensor{.name = fmt::format("{}/{}", kind, p.name), .shape = p.shape()};
      const Tensor mine = values_of(u, piece);
      tensor.values.dtype = mine.dtype;
      if (piece.count > 0) {
        tensor.place = piece.in_whole();
        tensor.values = mine;
      }
      state.push_back(std::move(tensor));
    }
}

Tensor Parameters::leading(int unit, const Piece& piece) const {
  if (fp16_master() && !in_codes(*piece.parameter)) return exact(unit, piece);
  return local_leading(unit).elements(piece.offset, piece.count);
}

std::vector<StateTensor> Parameters::weights_state() const {
  std::vector<StateTensor> state;
  append_state(state, "weights", [&](int u, const Piece& piece) { return leading(u, piece); });
  return state;
}

std::vector<StateTensor> Parameters::gradient_parts() const {
  std::vector<StateTensor> parts;
  append_state(parts, "gradients", [&](int u, const Piece& piece) {
    return local_gradient(u).elements(piece.offset, piece.count);
  });
  return parts;
}

void Parameters::for_weights(
    const std::function<void(std::size_t, int, std::size_t, const StateTensor&)>& visit) const {
  const std::vector<StateTensor> parts = weights_state();
  std::size_t index = 0;
  for (int u = 0; u < layout_.unit_count(); ++u) {
    const std::vector<Parameter>& parameters = layout_.units()[u].parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i, ++index)
      if (in_codes(parameters[i]) || !parts[index].values.empty()) visit(index, u, i, parts[index]);
  }
}

std::vector<StateTensor> Parameters::trained_state() const {
  std::vector<StateTensor> state = weights_state();
  if (fp16_master()) master_scales_->append_state(state, "weights");
  moments_->append_state(state);
  return state;
}

std::vector<StateTensor> Parameters::state() const {
  std::vector<StateTensor> state = trained_state();
  const auto add = [&](const std::vector<StateTensor>& tensors, bool common) {
    for (StateTensor tensor : tensors) {
      if (common && (shard_rank() > 0 || !counts_vectors()))
        tensor.values = {nullptr, tensor.values.dtype, 0, 0};  // the first rank writes it for all
      state.push_back(std::move(tensor));
    }
  };
  if (delayed_) add(delayed_->state(), !delayed_->apart());
  if (routers_) add(routers_->state(model_layout()), true);
  if (!frozen_) return state;
  const bool sharded_base = frozen_->sharded();
  if (sharded_base && groups_.weights.comm->rank() > 0)  // the first rank writes what all of them have
    for (StateTensor& tensor : state) tensor.place = {}, tensor.values = {nullptr, tensor.values.dtype, 0, 0};
  add(frozen_->state(), !sharded_base);
  return state;
}

bool Parameters::writes(bool experts) const {
  const Comm* replicas =
      experts && groups_.experts.comm ? groups_.expert_replicas.comm : groups_.replicas.comm;
  return !replicas || replicas->rank() == 0;
}

void Parameters::save_state(const StateWriter& write) const {
  std::vector<StateTensor> mine = state();
  std::set<std::string> of_experts, elsewhere;
  for (int u = 0; u < layout_.unit_count(); ++u)
    for (const Parameter& p : layout_.units()[u].parameters) {
      if (layout_.is_experts(u)) of_experts.insert(p.name);
      if (!p.slice && !counts_vectors()) elsewhere.insert(p.name);  // the first tensor rank writes it
    }
  const bool apart = delayed_ && delayed_->apart();
  std::erase_if(mine, [&](const StateTensor& tensor) {
    if (apart && tensor.name.starts_with(DelayedScaling::kStateKind)) return false;
    const std::string name = tensor.name.substr(tensor.name.find('/') + 1);
    return elsewhere.contains(name) || !writes(of_experts.contains(name));
  });
  precbench::save_state(device_, mine, write);
}

void Parameters::load_state(const StateReader& read, bool own) {
  zero_state();
  if (own) {
    precbench::load_state(device_, trained_state(), read);
    if (delayed_) precbench::load_state(device_, delayed_->state(), read);
  } else {
    std::vector<StateTensor> foreign;
    if (fp16_master())
      load_master(read);
    else
      foreign = weights_state();
    moments_->append_unscaled_state(foreign);
    precbench::load_state(device_, foreign, read);
    moments_->load_scaled(device_, read);
  }
  if (routers_) precbench::load_state(device_, routers_->state(model_layout()), read);
  if (frozen_ && own) precbench::load_state(device_, frozen_->state(), read);
  if (frozen_ && !own) frozen_->load(read);
  derive_weights();
}

void Parameters::load(const std::function<void(const Parameter&, float*)>& read) {
  zero_state();
  std::vector<float> whole;
  for_weights([&](std::size_t, int unit, std::size_t i, const StateTensor& part) {
    const Parameter p = layout_.units()[unit].parameters[i].whole();
    whole.resize(p.size());
    read(p, whole.data());
    for (std::int64_t e = 0; e < part.values.size(); ++e) whole[e] = whole[part.place.of(e)];  // of(e) >= e
    store_weights(unit, i, part.values, whole.data());
  });
  if (!frozen_)
    for_buffers([&](const Parameter& p, const Tensor& values) {
      whole.resize(p.size());
      read(p, whole.data());
      device_.upload(values, whole.data());
    });
  derive_weights();
}

void Parameters::for_buffers(const std::function<void(const Parameter&, const Tensor&)>& visit) const {
  if (!routers_) return;
  const std::vector<StateTensor> state = routers_->state(model_layout());
  for (std::size_t i = 0; i < state.size(); ++i) visit(model_layout().buffers()[i], state[i].values);
}

void Parameters::change(const std::function<ElementChange(const Parameter&)>& change_of, Replaced* replaced) {
  for_weights([&](std::size_t index, int unit, std::size_t i, const StateTensor& part) {
    if (replaced) replaced->resize(index + 1);
    const ElementChange changed = change_of(layout_.units()[unit].parameters[i].whole());
    if (!changed) return;
    std::vector<float> values = download_widened(part.values, weight_scale(unit, i));
    if (replaced) replaced->back() = values;
    for (std::int64_t e = 0; e < part.values.size(); ++e) values[e] = changed(part.place.of(e), values[e]);
    store_weights(unit, i, part.values, values.data());
  });
  change_frozen(change_of, replaced);
  derive_weights();
}

void Parameters::change_frozen(const std::function<ElementChange(const Parameter&)>& change_of,
                               Replaced* replaced) {
  if (!frozen_) return;
  frozen_->for_each([&](const FrozenWeights::Part& part) {
    if (replaced) replaced->emplace_back();
    const ElementChange changed = change_of(*part.parameter);
    if (!changed) return;
    if (part.values.empty() && !frozen_->sharded())
      throw std::logic_error("parameters: a weight that is in memory as a copy alone cannot be changed");
    std::vector<float> values = download_widened(part.values);
    if (replaced) replaced->back() = values;
    for (std::int64_t e = 0; e < part.values.size(); ++e) values[e] = changed(part.first + e, values[e]);
    if (!part.values.empty()) upload_rounded(part.values, values.data());
  });
}

void Parameters::restore(const Replaced& replaced) {
  for_weights([&](std::size_t index, int unit, std::size_t i, const StateTensor& part) {
    const bool changed = index < replaced.size() && !replaced[index].empty();
    if (changed)
      store_weights(unit, i, part.values, replaced[index].data());
    else if (in_codes(layout_.units()[unit].parameters[i]))  // another rank's part may have changed
      store_weights(unit, i, part.values, download_widened(part.values, weight_scale(unit, i)).data());
  });
  if (frozen_) {
    const std::size_t first = weights_state().size();
    frozen_->for_each([&](const FrozenWeights::Part& part) {
      if (first + part.index < replaced.size() && !replaced[first + part.index].empty())
        upload_rounded(part.values, replaced[first + part.index].data());
    });
  }
  derive_weights();
}

void Parameters::store_weights(int unit, std::size_t parameter, const Tensor& target, const float* values) {
  if (!in_codes(layout_.units()[unit].parameters[parameter])) return upload_rounded(target, values);
  encode_master(unit, parameter, [&](const Tensor& elements, std::int64_t first) {
    device_.upload(elements, values + first);
  });
}

void Parameters::upload_rounded(const Tensor& target, const float* values) {
  if (target.dtype == DType::f32) return device_.upload(target, values);
  std::vector<std::uint16_t> rounded(target.size());
  std::transform(values, values + target.size(), rounded.begin(), bf16_encode);
  device_.upload(target, rounded.data());
}

std::vector<float> Parameters::download_widened(const Tensor& source, const Tensor& scale) {
  std::vector<float> values(source.size());
  if (source.empty()) return values;
  if (source.dtype == DType::f32) {
    device_.download(values.data(), source);
    return values;
  }
  std::vector<std::byte> codes(source.bytes());
  device_.download(codes.data(), source);
  float factor = 1;
  if (!scale.empty()) device_.download(&factor, scale);
  for (std::int64_t i = 0; i < source.size(); ++i)
    values[i] = scale.empty() ? bf16_decode(reinterpret_cast<const std::uint16_t*>(codes.data())[i])
                              : state_decode(source.dtype, codes.data(), i) / factor;
  return values;
}

void Parameters::save(Kind kind, const std::function<void(const Parameter&, const float*)>& write) {
  for (int u = 0; u < layout_.unit_count(); ++u) {
    const Tensor mine = kind == Kind::gradients ? local_gradient(u) : local_leading(u);
    const Scope scope(arena_);
    Tensor full = mine;
    Comm* shards = sharded() ? groups_.weights.comm : nullptr;
    if (Comm* others = layout_.is_experts(u) ? groups_.experts.comm : shards) {
      full = arena_.push_uncounted(mine.dtype, 1, mine.size() * others->size());
      others->all_gather(full, mine);
    }
    const bool exact_vectors = kind == Kind::weights && fp16_master();
    const Tensor vectors = exact_vectors ? whole_vectors(u) : Tensor{};
    const Unit& unit = layout_.units()[u];
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      const Parameter& p = unit.parameters[i];
      if (exact_vectors && !in_codes(p)) {
        write(p, download_widened(vectors.elements(p.offset - unit.vectors_offset(), p.size())).data());
        continue;
      }
      const Tensor scale = kind == Kind::gradients ? gradient_scale(u, i) : weight_scale(u, i);
      write(p.whole(), whole_values(p, full.elements(p.offset, p.size()), scale).data());
    }
  }
  if (kind == Kind::weights && !frozen_)
    for_buffers(
        [&](const Parameter& p, const Tensor& values) { write(p, download_widened(values, {}).data()); });
}

std::vector<float> Parameters::whole_values(const Parameter& p, const Tensor& mine, const Tensor& scale) {
  if (!p.slice) return download_widened(mine, scale);
  const Scope scope(arena_);
  Comm& ranks = *groups_.tensor.comm;
  const Tensor slices = arena_.push_uncounted(mine.dtype, ranks.size(), mine.size());
  ranks.all_gather(slices, mine);
  const std::vector<float> values = download_widened(slices);
  std::vector<float> whole(values.size());
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const ElementMap place = p.slice_of(rank).in_whole();
    for (std::int64_t i = 0; i < p.size(); ++i) whole[place.of(i)] = values[rank * p.size() + i];
  }
  return whole;
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
