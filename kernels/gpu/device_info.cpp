// GPU devices by name: the only list of them. See device_info.h.
#include "kernels/gpu/device_info.h"

#include <algorithm>
#include <iterator>

#include "kernels/gpu/shape_limits.h"

namespace precbench {
namespace {

/// A vendor's device: its name in cases and records, and the shapes that its kernels support.
struct GpuKind {
  const char* name;
  std::string (*why_no_width)(std::int64_t width);
  std::string (*why_no_heads)(std::int64_t head_dim, std::int64_t q_normed, std::int64_t k_normed);
};
constexpr GpuKind kKinds[] = {{"cuda", cuda::why_no_width, cuda::why_no_heads}};

const GpuKind* find_kind(const std::string& device) {
  const auto* kind =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const GpuKind& k) { return device == k.name; });
  return kind == std::end(kKinds) ? nullptr : kind;
}

}  // namespace

std::vector<std::string> gpu_device_names() {
  std::vector<std::string> names;
  for (const GpuKind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

bool is_gpu(const std::string& device) { return find_kind(device) != nullptr; }

std::string best_device() {
  const VisibleGpus gpus = find_gpus();
  return gpus.count > 0 ? gpus.device : "cpu";
}

std::string why_gpu_refuses(const std::string& device, std::int64_t width, const HeadSizes& heads) {
  const GpuKind* kind = find_kind(device);
  if (!kind) return "";
  const std::string why = kind->why_no_width(width);
  return why.empty() ? kind->why_no_heads(heads.head_dim, heads.q_normed, heads.k_normed) : why;
}

std::string why_no_hopper_kernels(int compute_capability, bool tensor_maps) {
  if (compute_capability != 90 || tensor_maps) return "";
  return "driver: no TMA tensor maps, so library kernels replace our Hopper kernels; install a newer driver";
}

}  // namespace precbench
