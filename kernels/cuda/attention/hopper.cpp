// Selects among our Hopper attention kernels by shape. See hopper.h.
#include "kernels/cuda/attention/hopper.h"

#include <limits>

#include "kernels/cuda/attention/flash.h"
#include "kernels/cuda/hopper/tensor_map.h"
#include "kernels/gpu/attention_choice.h"

namespace precbench {

#ifndef PRECBENCH_HAS_SM90A
std::span<const HopperForward> all_hopper_forward_kernels() { return {}; }
std::span<const HopperBackward> all_hopper_backward_kernels() { return {}; }
#endif

namespace {

template <class Kernel>
std::vector<const Kernel*> those_for(std::span<const Kernel> all, const AttentionShape& s,
                                     int compute_capability) {
  std::vector<const Kernel*> kernels;
  // Rows of all heads, padded to whole tiles, are counted in 32 bits; their elements in 64.
  constexpr std::int64_t kTile = 256, kMost = std::numeric_limits<std::int32_t>::max();
  const auto padded = [](std::int64_t rows) { return (rows + kTile - 1) / kTile * kTile; };
  // A window that ends before a tile's first key would leave a block without work that others wait for.
  if (s.window != 0 && (s.softcap == 0 || !s.square())) return kernels;
  if (s.v_dim() != s.head_dim) return kernels;
  if (s.softcap != 0 && !(s.softcap >= kSmallestSoftcap && s.softcap <= kLargestSoftcap)) return kernels;
  if (compute_capability != 90 || all.empty() || !hopper::has_tensor_maps()) return kernels;
  if (s.B * padded(s.T) * s.heads > kMost || s.B * padded(s.keys()) * s.heads > kMost) return kernels;
  for (const Kernel& kernel : all)
    if (kernel.head_dim == s.head_dim && kernel.softcap == (s.softcap != 0)) kernels.push_back(&kernel);
  return kernels;
}

}  // namespace

std::vector<const HopperForward*> hopper_forward_kernels(const AttentionShape& shape,
                                                         int compute_capability) {
  return those_for(all_hopper_forward_kernels(), shape, compute_capability);
}

std::vector<const HopperBackward*> hopper_backward_kernels(const AttentionShape& shape,
                                                           int compute_capability) {
  return those_for(all_hopper_backward_kernels(), shape, compute_capability);
}

const HopperForward* hopper_forward(const AttentionShape& shape, int compute_capability) {
  const auto kernels = hopper_forward_kernels(shape, compute_capability);
  if (kernels.empty()) return nullptr;
  // Sorted from wide blocks of keys, the faster ones for long sequences, to narrow ones.
  return shape.keys() > 4096 ? kernels.front() : kernels.back();
}

const HopperBackward* hopper_backward(const AttentionShape& shape, int compute_capability,
                                      bool deterministic) {
  // Sorted from the faster ones of a head width to the deterministic ones.
  for (const HopperBackward* kernel : hopper_backward_kernels(shape, compute_capability))
    if (kernel->deterministic || !deterministic) return kernel;
  return nullptr;
}

bool hopper_backward_is_faster(const AttentionShape& shape, bool deterministic) {
  return cuda::hopper_backward_is_faster(shape.keys(), shape.head_dim, deterministic);
}

}  // namespace precbench
