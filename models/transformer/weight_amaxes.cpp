// One slot for every linear layer. See weight_amaxes.h.
#include "models/transformer/weight_amaxes.h"

namespace precbench {

WeightAmaxes::WeightAmaxes(Arena& arena, std::int64_t layers)
    : slots_(static_cast<std::size_t>(layers + 1) * kAllLinearRoles) {
  const Tensor all = arena.push(Segment::other, DType::f32, 1, static_cast<std::int64_t>(slots_.size()));
  for (std::size_t i = 0; i < slots_.size(); ++i)
    slots_[i].amax = all.elements(static_cast<std::int64_t>(i), 1);
}

WeightAmaxes::Slot* WeightAmaxes::slot(std::int64_t layer, LinearRole role) {
  const auto last = static_cast<std::int64_t>(slots_.size()) / kAllLinearRoles - 1;
  const std::int64_t block = role == LinearRole::head ? last : layer;
  return &slots_[static_cast<std::size_t>(block * kAllLinearRoles + static_cast<std::int64_t>(role))];
}

void WeightAmaxes::forget() {
  for (Slot& slot : slots_) slot.known = false;
}

}  // namespace precbench
