// Flat buffers, gathering and reducing. See parameters.h.
#include "models/parameters.h"

#include <algorithm>
#include <cstring>

#include "kernels/formats.h"

namespace precbench {
namespace {

Tensor flat(void* data, DType dtype, std::int64_t size) { return {data, dtype, 1, size}; }

/// Elements [first, first + count) of a flat tensor.
Tensor part(const Tensor& t, std::int64_t first, std::int64_t count) {
  return flat(t.as<std::byte>() + bytes_of(t.dtype, first), t.dtype, count);
}

}  // namespace

Parameters::Parameters(Device& device, Comm& comm, Arena& arena, const ModelConfig& config,
                       const ParameterOptions& options)
    : device_(device),
      comm_(comm),
      arena_(arena),
      config_(config),
      options_(options),
      layout_(config, options.parallel == Parallel::fsdp ? comm.size() : 1) {
  const std::int64_t size = layout_.local_size();
  weights_ = arena.push(Segment::weights, options.weights, 1, size);
  if (options.master == Master::fp32) master_ = arena.push(Segment::master, DType::f32, 1, size);
  m_ = arena.push(Segment::moments, options.moments, 1, size);
  v_ = arena.push(Segment::moments, options.moments, 1, size);
  hash_ = arena.push(Segment::other, DType::i32, 1, 2);
  if (!sharded()) {
    gradient_ = arena.lend_gradients(options.gradients, size).reshape(1, size);
    lends_ = options.accumulation == 1;
    if (!lends_) arena.claim_gradients(0);
    return;
  }
  gradient_ = arena.push(Segment::gradients, options.gradients, 1, size);
  std::int64_t largest_block = 0, largest_edge = 0;
  for (int u = 0; u < layout_.unit_count(); ++u) {
    std::int64_t& largest = layout_.is_block(u) ? largest_block : largest_edge;
    largest = std::max(largest, layout_.shard_size(u) * layout_.pieces());
  }
  for (int i = 0; i < 2; ++i) {
    block_buffers_[i] = arena.push(Segment::communication, options.weights, 1, largest_block);
    block_gradients_[i] = arena.push(Segment::communication, options.gradients, 1, largest_block);
  }
  for (int i = 0; i <= edge(layout_.head_unit()); ++i) {
    edge_buffers_[i] = arena.push(Segment::communication, options.weights, 1, largest_edge);
    edge_gradients_[i] = arena.push(Segment::communication, options.gradients, 1, largest_edge);
  }
  if (options.accumulation > 1)
    reduced_ = arena.push(Segment::communication, options.gradients, 1,
                          std::max(largest_block, largest_edge) / layout_.pieces());
}

Tensor Parameters::local(const Tensor& buffer, int unit) const {
  return buffer.empty() ? Tensor{} : part(buffer, layout_.shard_offset(unit), layout_.shard_size(unit));
}

void Parameters::begin_step() {
  if (lends_) arena_.return_gradients();
}

void Parameters::begin_micro_step(int micro_step) { micro_step_ = micro_step; }

Tensor Parameters::gather(int unit) {
  if (!sharded()) return local(weights_, unit);
  const Tensor& buffer = layout_.is_block(unit) ? block_buffers_[unit % 2] : edge_buffers_[edge(unit)];
  const Tensor full = part(buffer, 0, layout_.shard_size(unit) * layout_.pieces());
  comm_.all_gather(full, local(weights_, unit));
  return full;
}

Tensor Parameters::gradients(int unit) {
  if (!sharded()) return local(gradient_, unit);
  const Tensor& buffer = layout_.is_block(unit) ? block_gradients_[unit % 2] : edge_gradients_[edge(unit)];
  return part(buffer, 0, layout_.shard_size(unit) * layout_.pieces());
}

void Parameters::claim(const Tensor& gradient) {
  if (!lends_) return;
  const std::int64_t bytes = gradient.as<std::byte>() - gradient_.as<std::byte>();
  arena_.claim_gradients(bytes * 8 / bits_of(gradient_.dtype));
}

void Parameters::reduce(int unit) {
  if (!sharded()) {
    if (micro_step_ == options_.accumulation - 1) comm_.all_reduce(local(gradient_, unit));
    return;
  }
  const Tensor target = local(gradient_, unit);
  if (micro_step_ == 0) {
    comm_.reduce_scatter(target, gradients(unit));
    return;
  }
  const Tensor sum = part(reduced_, 0, target.size());
  comm_.reduce_scatter(sum, gradients(unit));
  device_.add(target, sum);
}

Parameters::Shard Parameters::shard(int unit) const {
  return {local(weights_, unit),
          local(master_, unit),
          local(m_, unit),
          local(v_, unit),
          local(gradient_, unit),
          layout_.runs(unit, piece()),
          layout_.model_offset(unit) + layout_.shard_range(unit, piece()).first};
}

void Parameters::initialize(std::uint64_t seed, float std) {
  for (int u = 0; u < layout_.unit_count(); ++u) {
    const Shard s = shard(u);
    const Tensor& target = s.master.empty() ? s.weights : s.master;
    device_.zero(target);  // the holes too
    for (const Run& run : s.runs) {
      const Tensor elements = part(target, run.first, run.count);
      if (run.decay)
        device_.init_normal(elements, std, seed, s.model_offset + run.first);
      else
        device_.fill(elements, 1.0f);
    }
    if (!s.master.empty()) device_.convert(s.weights, s.master);
  }
  device_.zero(m_);
  device_.zero(v_);
}

void Parameters::load(const std::function<void(const Parameter&, float*)>& read) {
  for (int u = 0; u < layout_.unit_count(); ++u) {
    const auto [first, last] = layout_.shard_range(u, piece());
    std::vector<float> values(layout_.shard_size(u));
    std::vector<float> whole;
    for (const Parameter& p : layout_.units()[u].parameters) {
      const std::int64_t begin = std::max(first, p.offset), end = std::min(last, p.offset + p.size());
      if (begin >= end) continue;
      whole.resize(p.size());
      read(p, whole.data());
      std::copy(whole.begin() + (begin - p.offset), whole.begin() + (end - p.offset),
                values.begin() + (begin - first));
    }
    const Shard s = shard(u);
    if (!s.master.empty()) device_.upload(s.master, values.data());
    if (s.weights.dtype == DType::f32) {
      device_.upload(s.weights, values.data());
      continue;
    }
    std::vector<std::uint16_t> rounded(values.size());
    std::transform(values.begin(), values.end(), rounded.begin(), bf16_encode);
    device_.upload(s.weights, rounded.data());
  }
  device_.zero(m_);
  device_.zero(v_);
}

void Parameters::save(Kind kind, const std::function<void(const Parameter&, const float*)>& write) {
  const Tensor& source = kind == Kind::gradients ? gradient_ : master_.empty() ? weights_ : master_;
  for (int u = 0; u < layout_.unit_count(); ++u) {
    const Tensor mine = local(source, u);
    const Scope scope(arena_);
    Tensor full = mine;
    if (sharded()) {
      full = arena_.push(Segment::other, mine.dtype, 1, mine.size() * layout_.pieces());
      comm_.all_gather(full, mine);
    }
    std::vector<std::byte> bytes(full.bytes());
    device_.download(bytes.data(), full);
    std::vector<float> values(full.size());
    if (full.dtype == DType::f32) {
      std::memcpy(values.data(), bytes.data(), bytes.size());
    } else {
      const auto* words = reinterpret_cast<const std::uint16_t*>(bytes.data());
      std::transform(words, words + values.size(), values.begin(), bf16_decode);
    }
    for (const Parameter& p : layout_.units()[u].parameters) write(p, values.data() + p.offset);
  }
}

std::vector<std::uint64_t> Parameters::fingerprints() {
  std::vector<std::uint64_t> result;
  for (int u = 0; u < layout_.unit_count(); ++u) {
    const auto [first, last] = layout_.shard_range(u, piece());
    const Shard s = shard(u);
    for (const Parameter& p : layout_.units()[u].parameters) {
      const std::int64_t begin = std::max(first, p.offset), end = std::min(last, p.offset + p.size());
      std::uint64_t hash = 0;
      if (begin < end) {
        device_.fingerprint(hash_, part(s.master.empty() ? s.weights : s.master, begin - first, end - begin));
        std::uint32_t words[2];
        device_.download(words, hash_);
        hash = (std::uint64_t{words[0]} << 32) | words[1];
      }
      result.push_back(hash);
    }
  }
  return result;
}

}  // namespace precbench
