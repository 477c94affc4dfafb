// Slots and their update. See delayed_scaling.h.
#include "models/transformer/linear/delayed_scaling.h"

#include "kernels/numerics/formats.h"
#include "models/config/block.h"

namespace precbench {
namespace {

constexpr int kOperands = 3;

/// Returns the number of a block's linear layers without those of latents, one place each. The shared expert's two come
/// last. With weighted rows they exist even without a shared expert, because the norm uses one (MoeBlock::norm_role).
std::int64_t first_up_place(const ModelConfig& config) {
  const bool weighted = config.moe && config.moe.weight_at == WeightAt::input;
  return kLinearRoles - 1 + (config.moe.shared_ffn > 0 || weighted ? 2 : 0);
}
/// Returns the number of linear layers of a block. Those that make heads of latents come last.
std::int64_t linears_of_block(const ModelConfig& config) {
  return first_up_place(config) + (config.latent ? 2 : 0);
}
std::int64_t place_in_block(const ModelConfig& config, LinearRole role) {
  if (is_latent_up(role)) return first_up_place(config) + (role == LinearRole::kv_up ? 1 : 0);
  return role == LinearRole::shared_gate_up ? kLinearRoles - 1
         : role == LinearRole::shared_down  ? kLinearRoles
                                            : static_cast<std::int64_t>(role);
}
std::int64_t linears_of(const ModelConfig& config) { return config.layers * linears_of_block(config) + 1; }

}  // namespace

std::int64_t DelayedScaling::slots_of(const ModelConfig& config) {
  return kOperands * linears_of(config) + 2 * config.layers * config.moe.rule.experts;
}

DelayedScaling::DelayedScaling(Device& device, Comm& comm, Arena& arena, const Recipe& recipe,
                               const ModelConfig& config)
    : device_(device), comm_(comm), config_(config) {
  formats_[static_cast<int>(LinearOperand::x)] = recipe.fprop.a;
  formats_[static_cast<int>(LinearOperand::w)] = recipe.fprop.b;
  for (const QuantFormat& dy :
       {recipe.fprop.a, recipe.wgrad.a, recipe.dgrad.a})  // a BF16 format has no scale
    if (dy.quantized()) formats_[static_cast<int>(LinearOperand::dy)] = dy;
  rule_ = recipe.fprop.a.history;
  const std::int64_t slots = slots_of(config);
  known_ = arena.push(Segment::other, DType::f32, 1, slots);
  staged_ = arena.push(Segment::other, DType::f32, 1, slots);
  if (rule_.length > 1) history_ = arena.push(Segment::other, DType::f32, slots, rule_.length - 1);
}

LinearSlots DelayedScaling::slots(std::int64_t layer, LinearRole role) const {
  const std::int64_t linears = linears_of(config_), experts = config_.moe.rule.experts;
  const std::int64_t linear = role == LinearRole::head
                                  ? linears - 1
                                  : layer * linears_of_block(config_) + place_in_block(config_, role);
  const auto slots = [&](std::int64_t first, std::int64_t count) {
    return OperandSlot{known_.elements(first, count), watching_ ? Tensor{} : staged_.elements(first, count)};
  };
  const auto of = [&](LinearOperand operand) {
    return slots(static_cast<std::int64_t>(operand) * linears + linear, 1);
  };
  const std::int64_t stack = kOperands * linears + (2 * layer + (role == LinearRole::down)) * experts;
  return {of(LinearOperand::x), is_stack(config_, layer, role) ? slots(stack, experts) : of(LinearOperand::w),
          of(LinearOperand::dy), current()};
}

void DelayedScaling::reset() {
  for (int operand = 0; operand < kOperands; ++operand) {
    const QuantFormat& format = formats_[operand];
    const float scale_of_one = delayed_scale(1.0f, format_max(format.dtype, format.dropped_bits),
                                             format.history.margin);  // the amax whose scale is 1
    const std::int64_t linears = linears_of(config_);
    device_.fill({known_.elements(operand * linears, linears), scale_of_one});
    if (operand == static_cast<int>(LinearOperand::w) && config_.moe)
      device_.fill({known_.elements(kOperands * linears, known_.size() - kOperands * linears), scale_of_one});
  }
  device_.zero({staged_});
  if (!history_.empty()) device_.zero({history_});
}

void DelayedScaling::share(const Tensor& amaxes) const {
  if (rule_.reduce && comm_.size() > 1) comm_.all_reduce_max(amaxes);
}

void DelayedScaling::move_history() const {
  share(staged_);
  device_.update_history({known_, history_, staged_, rule_.algorithm == HistoryAlgorithm::most_recent});
}

void DelayedScaling::begin_micro_step(int micro_step) {
  if (micro_step > 0 && rule_.update == HistoryUpdate::micro) move_history();
  micro_step_ = micro_step;
}

void DelayedScaling::update() {
  move_history();
  micro_step_ = current_micro_steps_ = 0;  // computations between steps have a history
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
  for (StateTensor& tensor : state) {
    if (!apart()) break;
    tensor.shape.insert(tensor.shape.begin(), comm_.size());
    tensor.place = comm_.rank() * tensor.values.size();
  }
  return state;
}

}  // namespace precbench
