// One slot per linear layer. See weight_amaxes.h.
#include "models/transformer/linear/weight_amaxes.h"

#include <algorithm>

#include "models/config/block.h"

namespace precbench {

WeightAmaxes::WeightAmaxes(Arena& arena, const ModelConfig& config, std::int64_t experts)
    : slots_(static_cast<std::size_t>(config.layers + 1) * kAllLinearRoles) {
  std::int64_t at = static_cast<std::int64_t>(slots_.size());
  all_ = arena.push(Segment::other, DType::f32, 1, at + 2 * config.layers * experts);
  for (std::size_t i = 0; i < slots_.size(); ++i)
    slots_[i].amax = all_.elements(static_cast<std::int64_t>(i), 1);
  for (std::int64_t layer = 0; layer < config.layers; ++layer)
    for (const LinearRole role : {LinearRole::gate_up, LinearRole::down}) {
      if (!is_stack(config, layer, role)) continue;
      slot(layer, role)->amax = all_.elements(at, experts);
      at += experts;
    }
}

WeightAmaxes::Slot* WeightAmaxes::slot(std::int64_t layer, LinearRole role) {
  const auto last = static_cast<std::int64_t>(slots_.size()) / kAllLinearRoles - 1;
  const std::int64_t block = role == LinearRole::head ? last : layer;
  return &slots_[static_cast<std::size_t>(block * kAllLinearRoles + static_cast<std::int64_t>(role))];
}

void WeightAmaxes::keep(Slot* slot, const Tensor& unit, const Tensor& matrix) {
  const std::int64_t first = matrix.as<std::uint16_t>() - unit.as<std::uint16_t>();
  if (first % 8 != 0 || matrix.size() % (8 * slot->amax.size()) != 0) return;
  slot->kept = matrix;
  keeps_ = true;
}

void WeightAmaxes::forget() {
  for (Slot& slot : slots_) slot.known = !slot.kept.empty();
}

void WeightAmaxes::refresh(Device& device) {
  for (const Slot& slot : slots_) {
    if (slot.kept.empty()) continue;
    const QuantizedTensor w{.value = slot.kept, .amax_out = slot.amax};
    if (slot.amax.size() > 1)
      device.quantize_experts({w, slot.amax.size()});
    else
      device.quantize({w, true});
  }
}

void WeightAmaxes::begin_update(Device& device) {
  if (keeps_) device.zero({all_});
}

std::vector<ops::WeightAmax> WeightAmaxes::of_run(const Tensor& run) const {
  std::vector<ops::WeightAmax> amaxes;
  if (!keeps_ || run.empty()) return amaxes;
  for (const Slot& slot : slots_) {
    if (slot.kept.empty()) continue;
    const std::int64_t first = slot.kept.as<std::uint16_t>() - run.as<std::uint16_t>();
    if (first >= 0 && first < run.size()) amaxes.push_back({first, first + slot.kept.size(), slot.amax});
  }
  std::sort(amaxes.begin(), amaxes.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return amaxes;
}

}  // namespace precbench
