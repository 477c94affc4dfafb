// GPU devices by name: the only list of them. See device_info.h.
#include "kernels/gpu/device_info.h"

#include <algorithm>
#include <iterator>
#include <sstream>

#include "kernels/base/parse_number.h"
#include "kernels/gpu/shape_limits.h"

namespace precbench {
namespace {

/// A vendor's device: its name in cases and records, and the shapes that its kernels support.
struct GpuKind {
  const char* name;
  std::optional<std::string> (*width_unsupported_reason)(std::int64_t width);
  std::optional<std::string> (*heads_unsupported_reason)(std::int64_t head_dim, std::int64_t q_normed,
                                                         std::int64_t k_normed);
};
constexpr GpuKind kKinds[] = {{"cuda", cuda::width_unsupported_reason, cuda::heads_unsupported_reason}};

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

std::optional<std::string> cpu_fallback_warning(const VisibleGpus& gpus) {
  if (gpus.count > 0 || !gpus.driver) return std::nullopt;
  return "--device auto: runs on the CPU: " + gpus.reason;
}

std::optional<std::string> gpu_unsupported_reason(const std::string& device, std::int64_t width,
                                                  const HeadSizes& heads) {
  const GpuKind* kind = find_kind(device);
  if (!kind) return std::nullopt;
  if (auto why = kind->width_unsupported_reason(width)) return why;
  return kind->heads_unsupported_reason(heads.head_dim, heads.q_normed, heads.k_normed);
}

GpuCode code_for(int compute_capability, const std::string& architectures) {
  GpuCode code = GpuCode::none;
  std::istringstream list(architectures);
  for (std::string entry; list >> entry;) {
    const std::string number = entry.substr(0, entry.find_first_not_of("0123456789"));
    const std::optional<int> arch = parse_number<int>(number);
    if (!arch) continue;
    // "90a" is for 9.0 alone. Machine code runs on later GPUs of the same generation, PTX on all later ones.
    const bool one_gpu = entry.size() > number.size() && entry[number.size()] != '-';
    const bool machine_code = !entry.ends_with("-virtual"), ptx = !one_gpu && !entry.ends_with("-real");
    const bool runs = one_gpu ? *arch == compute_capability
                              : *arch <= compute_capability && *arch / 10 == compute_capability / 10;
    if (machine_code && runs) return GpuCode::compiled;
    if (ptx && *arch <= compute_capability) code = GpuCode::jit;
  }
  return code;
}

std::optional<std::string> hopper_fallback_reason(int compute_capability, bool tensor_maps) {
  if (compute_capability != 90 || tensor_maps) return std::nullopt;
  return "driver: no TMA tensor maps, so library kernels replace our Hopper kernels; install a newer driver";
}

}  // namespace precbench
