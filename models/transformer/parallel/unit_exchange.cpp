// Placement and use of the unit buffers. See unit_exchange.h.
#include "models/transformer/parallel/unit_exchange.h"

#include <algorithm>

namespace precbench {
namespace {

std::int64_t whole_lines(std::int64_t bytes) {
  return (bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
}

}  // namespace

UnitExchange::UnitExchange(Comm* comm, Arena& arena, const Layout& layout, const Options& options)
    : comm_(comm), layout_(layout), options_(options) {
  for (std::vector<Tenant>& tenants : weights_) tenants.resize(layout.unit_count());
  gradients_.resize(layout.unit_count());
  for (int u = 0; u < layout.unit_count(); ++u) {
    for (std::vector<Tenant>& tenants : weights_) tenants[u].bytes = weight_bytes(u);
    gradients_[u].bytes = gradient_bytes(u);
  }
  if (options.keep) place_kept_weights(arena);
  place_in_turns(arena);
}

DType UnitExchange::weights_type(int unit) const {
  return options_.fp8 && options_.fp8->has(unit) ? options_.fp8->codes(unit, Pass::forward).dtype
                                                 : options_.weights;
}

/// Returns the bytes of the data plus the scales that follow it.
std::int64_t UnitExchange::weight_bytes(int unit) const {
  if (!comm_ && options_.fp8 && options_.fp8->has(unit)) return 0;
  const std::int64_t scales = by_pass(unit) ? whole(unit) / Fp8Weights::kCodesPerScale : 0;
  return whole_lines(bytes_of(weights_type(unit), whole(unit))) + whole_lines(scales);
}

std::int64_t UnitExchange::gradient_bytes(int unit) const {
  return options_.reduce ? whole_lines(bytes_of(options_.gradients, whole(unit))) : 0;
}

void UnitExchange::place_kept_weights(Arena& arena) {
  std::int64_t size = 0;
  for (int u = 0; u < layout_.unit_count(); ++u)
    for (int pass = 0; pass < (by_pass(u) ? 2 : 1); ++pass) {
      weights_[pass][u].offset = size;
      size += weights_[pass][u].bytes;
    }
  kept_ = arena.push(Segment::weights, DType::e4m3, 1, size);
}

void UnitExchange::place_in_turns(Arena& arena) {
  const int first = layout_.block_unit(0), edges[] = {layout_.embedding_unit(), layout_.head_unit()};
  const auto place_in_row = [&](int unit) { return first + static_cast<int>(layout_.layer_of(unit)); };
  const auto turn = [&](int unit) {
    return comm_ ? place_in_row(unit) % 2 : 0;
  };  // a single rank has no collective to wait for
  int blocks = 0;
  std::int64_t weights[2] = {}, edge_weights = 0, block = 0, edge = 0;  // G0 and G1, E; gradients
  for (int u = 0; u < layout_.unit_count(); ++u) {
    if (layout_.is_experts(u)) continue;
    const std::int64_t gathered = options_.keep ? 0 : weights_[0][u].bytes;
    std::int64_t& largest = layout_.is_block(u) ? weights[turn(u)] : edge_weights;
    largest = std::max(largest, gathered);
    std::int64_t& reduced = layout_.is_block(u) ? block : edge;
    reduced = std::max(reduced, gradients_[u].bytes);
    blocks += layout_.is_block(u);
  }
  const int last = first + blocks - 1;
  const bool tied = edges[0] == edges[1];
  // Offsets of block gradients with the last block's parity, of those with the other, and of the embedding's
  // gradient.
  const std::int64_t head = options_.share && !tied ? std::max(edge, block) : edge;
  const std::int64_t places[2] = {head, head + weights[0]}, third = head + weights[0] + weights[1];
  const std::int64_t second = blocks > 1 ? block : 0;
  std::int64_t of_last = third, of_other = 0, embedding = 0, size = third + std::max(edge_weights, block);
  if (!options_.share) {
    of_last = third + edge_weights;
    of_other = of_last + block;
    size = of_other + second;
  } else if (tied) {
    of_other = third + block;
    size = third + std::max(edge_weights, block + second);
  } else if (blocks % 2 == 0) {  // the first block's gradient at the front is still being reduced
    embedding = size - edge;
  }
  for (int u = 0; u < layout_.unit_count(); ++u) {
    const bool is_block = layout_.is_block(u);
    if (layout_.is_experts(u)) continue;
    if (!options_.keep)
      for (std::vector<Tenant>& tenants : weights_) tenants[u].offset = is_block ? places[turn(u)] : third;
    gradients_[u].offset = is_block        ? (place_in_row(u) % 2 == last % 2 ? of_last : of_other)
                           : u == edges[0] ? embedding
                                           : 0;
  }
  region_ = arena.push(comm_ ? Segment::communication : Segment::weights, DType::e4m3, 1, size);
}

UnitExchange::Tenant& UnitExchange::weights_of(int unit, Pass pass) {
  return weights_[by_pass(unit) && pass == Pass::backward][unit];
}
const UnitExchange::Tenant& UnitExchange::weights_of(int unit, Pass pass) const {
  return weights_[by_pass(unit) && pass == Pass::backward][unit];
}

Tensor UnitExchange::at(const Tensor& region, std::int64_t offset, DType dtype, std::int64_t elements) const {
  return {region.as<std::byte>() + offset, dtype, 1, elements};
}

void UnitExchange::forget() {
  for (std::vector<Tenant>& tenants : weights_)
    for (Tenant& tenant : tenants) tenant.here = false;
}

void UnitExchange::take(Tenant& tenant) {
  const auto leave = [&](Tenant& other) {
    if (&other == &tenant || !tenant.meets(other)) return;
    wait(other.ticket);
    other.here = false;
  };
  if (!options_.keep)
    for (std::vector<Tenant>& tenants : weights_)
      for (Tenant& other : tenants) leave(other);
  for (Tenant& other : gradients_) leave(other);
  wait(tenant.ticket);
}

bool UnitExchange::has(int unit, Pass pass) const { return weights_of(unit, pass).here; }

Tensor UnitExchange::in_weights(int unit, Pass pass, std::int64_t offset, DType dtype,
                                std::int64_t elements) const {
  return at(options_.keep ? kept_ : region_, weights_of(unit, pass).offset + offset, dtype, elements);
}

Tensor UnitExchange::all(int unit, Pass pass) const {
  return in_weights(unit, pass, 0, weights_type(unit), whole(unit));
}

Tensor UnitExchange::own_part(int unit, Pass pass) const {
  const std::int64_t size = layout_.shard_size(unit);
  return all(unit, pass).elements(comm_->rank() * size, size);
}

Tensor UnitExchange::take_weights(int unit, Pass pass) {
  Tenant& tenant = weights_of(unit, pass);
  if (!options_.keep) take(tenant);
  tenant.used = false;
  return own_part(unit, pass);
}

void UnitExchange::gather(int unit, Pass pass, const Tensor& shard, const Tensor& shard_scales) {
  Tenant& tenant = weights_of(unit, pass);
  tenant.here = true;
  tenant.used = false;
  tenant.ticket = comm_->start_all_gather(all(unit, pass), shard);
  if (!shard_scales.empty())  // waiting for the second collective covers both
    tenant.ticket = comm_->start_all_gather(scales(unit, pass), shard_scales);
}

Tensor UnitExchange::weights(int unit, Pass pass) {
  Tenant& tenant = weights_of(unit, pass);
  if (!comm_ && !tenant.here) {
    take(tenant);
    tenant.here = true;
    tenant.used = false;
  }
  wait(tenant.ticket);
  return all(unit, pass);
}

Tensor UnitExchange::edges_buffer() const {
  const int head = layout_.head_unit();
  return in_weights(head, Pass::forward, 0, DType::f32, weights_[0][head].bytes / bytes_of(DType::f32, 1));
}

Tensor UnitExchange::scales(int unit, Pass pass) const {
  if (!by_pass(unit)) return {};
  const std::int64_t codes = whole_lines(bytes_of(weights_type(unit), whole(unit)));
  return in_weights(unit, pass, codes, DType::ue8m0, whole(unit) / Fp8Weights::kCodesPerScale);
}

Tensor UnitExchange::gradients(int unit) {
  Tenant& tenant = gradients_[unit];
  if (!tenant.here) take(tenant);
  tenant.here = true;
  return at(region_, tenant.offset, options_.gradients, whole(unit));
}

Comm::Ticket UnitExchange::reduce(int unit, const Tensor& shard) {
  Tenant& tenant = gradients_[unit];
  tenant.here = false;
  return tenant.ticket =
             comm_->start_reduce_scatter(shard, at(region_, tenant.offset, options_.gradients, whole(unit)));
}

}  // namespace precbench
