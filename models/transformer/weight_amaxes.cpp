// One slot for every linear layer. See weight_amaxes.h.
#include "models/transformer/weight_amaxes.h"

#include <algorithm>

namespace precbench {
namespace {

/// A weight's columns; 0 of a role that the block does not have.
std::int64_t columns_of(const BlockSpec& block, LinearRole role) {
  for (const LinearSpec& linear : block.linears)
    if (linear.role == role || (linear.role == LinearRole::qkv && is_qkv_part(role))) return linear.in;
  return 0;
}

}  // namespace

WeightAmax weight_amax(const Recipe& recipe) {
  const QuantFormat &fprop = recipe.fprop.b, &dgrad = recipe.dgrad.b;
  const auto own = [](const QuantFormat& w) { return w.granularity == Granularity::tensor && !w.delayed(); };
  const auto by_row = [](const QuantFormat& w) {
    return w.granularity == Granularity::row && !held_in_bf16(w.dtype);
  };
  if (own(fprop) || own(dgrad)) return WeightAmax::tensor;
  return by_row(fprop) && by_row(dgrad) ? WeightAmax::columns : WeightAmax::none;
}

WeightAmaxes::WeightAmaxes(Arena& arena, const ModelConfig& config, WeightAmax kind)
    : slots_(static_cast<std::size_t>(config.layers + 1) * kAllLinearRoles) {
  std::vector<std::int64_t> sizes;
  std::int64_t all = 0;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const auto layer = static_cast<std::int64_t>(i) / kAllLinearRoles;
    const auto role = static_cast<LinearRole>(i % kAllLinearRoles);
    const bool shares = role == LinearRole::q || role == LinearRole::router;
    const std::int64_t columns = layer == config.layers
                                     ? (role == LinearRole::head ? head_linear(config).in : 0)
                                 : shares ? 0
                                          : columns_of(block_of(config, layer), role);
    sizes.push_back(kind == WeightAmax::columns ? columns : std::min<std::int64_t>(columns, 1));
    all += sizes.back();
  }
  const Tensor amaxes = arena.push(Segment::other, DType::f32, 1, all);
  std::int64_t first = 0;
  for (std::size_t i = 0; i < slots_.size(); first += sizes[i++])
    slots_[i].amax = amaxes.elements(first, sizes[i]);
}

WeightAmaxes::Slot* WeightAmaxes::slot(std::int64_t layer, LinearRole role) {
  const auto last = static_cast<std::int64_t>(slots_.size()) / kAllLinearRoles - 1;
  const std::int64_t block = role == LinearRole::head ? last : layer;
  const LinearRole own = role == LinearRole::q ? LinearRole::qkv : role;
  return &slots_[static_cast<std::size_t>(block * kAllLinearRoles + static_cast<std::int64_t>(own))];
}

void WeightAmaxes::forget() {
  for (Slot& slot : slots_) slot.known = false;
}

}  // namespace precbench
