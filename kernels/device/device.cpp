// Runs an op: reports its cost to the observer, then calls the device's implementation.
#include "kernels/device/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "kernels/base/errors.h"

namespace precbench {

const char* name_of(Execution execution) {
  static constexpr const char* kNames[] = {"native", "emulated", "unsupported"};
  return kNames[static_cast<int>(execution)];
}

template <class Op>
void Device::run(const Op& op, void (Device::*body)(const Op&)) {
  if constexpr (requires { op.idle(); })
    if (op.idle()) return;
  const ScratchSizes scratch = scratch_of(op);
  for (int i = 0; i < kScratchSlots; ++i) scratch_sizes_[i] = std::max(scratch_sizes_[i], scratch[i]);
  const OpCost cost = observer_ ? op.cost() : OpCost{};
  if (observer_) observer_->begin(cost);
  if (executes()) (this->*body)(op);
  if (observer_) observer_->end(cost);
}

#define PRECBENCH_RUN(Op, name) \
  void Device::name(const ops::Op& op) { run(op, &Device::do_##name); }
PRECBENCH_OPS(PRECBENCH_RUN)
#undef PRECBENCH_RUN

std::int64_t Device::workspace_bytes() const {
  return bytes_of(DType::f32, std::accumulate(scratch_sizes_.begin(), scratch_sizes_.end(), std::int64_t{0}));
}

void Device::refuse(OpKind op) const {
  throw Unsupported(std::string("the ") + name() + " device has no " + name_of(op));
}

GemmSupport recipe_support(const Device& device, const Recipe& recipe, GemmRole role) {
  const QuantFormat& stored = recipe.weight_only;
  if (!stored.quantized() || role == GemmRole::wgrad) return device.support(recipe.gemm(role), role);
  if (device.name() == "cpu") return {Execution::emulated, "a CPU has no fast conversion of weights to BF16"};
  if (always_emulated(stored))
    return {Execution::emulated,
            fmt::format("weights in {} have no fast conversion to BF16", describe(stored))};
  return device.support(recipe.gemm(role), role);
}

}  // namespace precbench
