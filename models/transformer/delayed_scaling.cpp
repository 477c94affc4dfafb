// Slots, and their update. See delayed_scaling.h.
#include "models/transformer/delayed_scaling.h"

#include "kernels/numerics/formats.h"

namespace precbench {
namespace {

constexpr int kOperands = 3;
constexpr std::int64_t kBlockLinears = kLinearRoles - 1;

}  // namespace

std::int64_t DelayedScaling::slots_of(std::int64_t layers) {
  return kOperands * (layers * kBlockLinears + 1);
}

DelayedScaling::DelayedScaling(Device& device, Arena& arena, const Recipe& recipe, std::int64_t layers)
    : device_(device), linears_(slots_of(layers) / kOperands) {
  formats_[static_cast<int>(LinearOperand::x)] = recipe.fprop.a;
  formats_[static_cast<int>(LinearOperand::w)] = recipe.fprop.b;
  for (const QuantFormat& dy :
       {recipe.fprop.a, recipe.wgrad.a, recipe.dgrad.a})  // one that is BF16 has no scale
    if (dy.quantized()) formats_[static_cast<int>(LinearOperand::dy)] = dy;
  const History& history = recipe.fprop.a.history;
  algorithm_ = history.algorithm;
  const std::int64_t slots = kOperands * linears_;
  known_ = arena.push(Segment::other, DType::f32, 1, slots);
  staged_ = arena.push(Segment::other, DType::f32, 1, slots);
  if (history.length > 1) history_ = arena.push(Segment::other, DType::f32, slots, history.length - 1);
}

LinearSlots DelayedScaling::slots(std::int64_t layer, LinearRole role) const {
  const std::int64_t linear =
      role == LinearRole::head ? linears_ - 1 : layer * kBlockLinears + static_cast<std::int64_t>(role);
  const auto of = [&](LinearOperand operand) {
    const std::int64_t slot = static_cast<std::int64_t>(operand) * linears_ + linear;
    return OperandSlot{known_.elements(slot, 1), watching_ ? Tensor{} : staged_.elements(slot, 1)};
  };
  return {of(LinearOperand::x), of(LinearOperand::w), of(LinearOperand::dy), current_};
}

void DelayedScaling::reset() {
  for (int operand = 0; operand < kOperands; ++operand) {
    const QuantFormat& format = formats_[operand];
    const float scale_of_one = delayed_scale(1.0f, format_max(format.dtype, format.dropped_bits),
                                             format.history.margin);  // the amax whose scale is 1
    device_.fill({known_.elements(operand * linears_, linears_), scale_of_one});
  }
  device_.zero({staged_});
  if (!history_.empty()) device_.zero({history_});
}

void DelayedScaling::update(Comm& comm) {
  if (comm.size() > 1) comm.all_reduce_max(staged_);
  device_.update_history({known_, history_, staged_, algorithm_ == HistoryAlgorithm::most_recent});
  current_ = false;  // what is computed between steps has a history
}

DelayedScaling::Snapshot DelayedScaling::snapshot() const {
  Snapshot snapshot{std::vector<float>(static_cast<std::size_t>(known_.size())),
                    std::vector<float>(static_cast<std::size_t>(history_.size()))};
  device_.download(snapshot.known.data(), known_);
  if (!history_.empty()) device_.download(snapshot.history.data(), history_);
  return snapshot;
}

void DelayedScaling::restore(const Snapshot& snapshot) {
  device_.upload(known_, snapshot.known.data());
  if (!history_.empty()) device_.upload(history_, snapshot.history.data());
  device_.zero({staged_});
}

std::vector<StateTensor> DelayedScaling::state() const {
  std::vector<StateTensor> state = {{.name = "scales/known", .shape = {known_.cols}, .values = known_}};
  if (!history_.empty())
    state.push_back({.name = "scales/history", .shape = {history_.rows, history_.cols}, .values = history_});
  return state;
}

}  // namespace precbench
