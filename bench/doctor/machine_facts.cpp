// Reads the facts of the machine. See machine_state.h.
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "bench/doctor/machine_state.h"
#include "kernels/numerics/mx_expansion.h"

namespace precbench {
namespace {

/// Returns the oldest cuBLASLt for one GEMM; 0: any; null: none.
std::optional<int> needed_by(const GemmRecipe& gemm, int compute_capability) {
  const QuantFormat &a = gemm.a, &b = gemm.b;
  if (!a.quantized() && !b.quantized()) return 0;
  if (a.quantized() != b.quantized() || (a.dtype == DType::e5m2 && b.dtype == DType::e5m2))
    return std::nullopt;
  if (held_in_bf16(a.dtype) || held_in_bf16(b.dtype)) return std::nullopt;
  constexpr int kMx = 120800, kRows = 120900;
  if (a.dtype == DType::e2m1)
    return compute_capability >= 100 && a.scale == ScaleType::e4m3 ? std::optional(kMx) : std::nullopt;
  if (a.scale == ScaleType::ue8m0) return compute_capability >= 100 ? std::optional(kMx) : std::nullopt;
  if (a.granularity == Granularity::tensor && b.granularity == Granularity::tensor)
    return compute_capability >= 89 ? std::optional(110800) : std::nullopt;
  if (compute_capability == 90) return kRows;
  const bool expands = expands_to_mx(a) && expands_to_mx(b) && compute_capability / 10 == 10;
  return expands ? std::optional(kMx) : std::nullopt;
}

std::vector<RecipeFact> recipe_facts(const Device& device, int compute_capability) {
  std::vector<RecipeFact> facts;
  for (const Recipe& recipe : listed_recipes()) {
    RecipeFact fact{recipe.name, {}, cublaslt_needed(recipe, compute_capability)};
    for (const GemmRole role : kGemmRoles) {
      GemmSupport support = recipe_support(device, recipe, role);
      if (support.execution > fact.support.execution) fact.support = std::move(support);
    }
    facts.push_back(std::move(fact));
  }
  return facts;
}

GpuFacts gpu_facts(int ordinal) {
  GpuFacts facts;
  facts.properties = gpu_properties(ordinal);
  facts.peaks = known_peaks(facts.properties.name);
  if (const auto nvml = NvmlGpu::open(facts.properties.pci_bus_id)) {
    facts.nvml = true;
    facts.other_processes = nvml->other_processes();
    facts.default_power_limit_w = nvml->default_power_limit_w();
    facts.max_sm_clock_mhz = nvml->max_sm_clock_mhz();
    facts.reading = nvml->read();
    facts.ecc_errors = nvml->uncorrected_errors();
    facts.mig = nvml->mig_mode();
    facts.pcie = nvml->pcie_link();
  }
  // After NVML, which would count this process otherwise.
  try {
    facts.recipes = recipe_facts(*make_gpu_device(ordinal), facts.properties.compute_capability);
  } catch (const std::runtime_error& error) {
    facts.open_error = error.what();
  }
  return facts;
}

std::vector<PairFacts> pair_facts(const std::vector<GpuFacts>& gpus) {
  std::vector<std::unique_ptr<NvmlGpu>> nvml;
  for (const GpuFacts& gpu : gpus) nvml.push_back(NvmlGpu::open(gpu.properties.pci_bus_id));
  std::vector<PairFacts> pairs;
  for (int a = 0; a < std::ssize(gpus); ++a)
    for (int b = a + 1; b < std::ssize(gpus); ++b) {
      PairFacts pair{a, b, {}, {}};
      const auto &one = nvml[static_cast<std::size_t>(a)], &other = nvml[static_cast<std::size_t>(b)];
      if (one && other) {
        pair.peer_access = one->peer_access_to(*other);
        pair.nvlinks = one->nvlinks_to(*other);
      }
      pairs.push_back(pair);
    }
  return pairs;
}

}  // namespace

std::optional<int> cublaslt_needed(const Recipe& recipe, int compute_capability) {
  int needed = 0;
  for (const GemmRole role : kGemmRoles) {
    const std::optional<int> by = needed_by(recipe.gemm(role), compute_capability);
    if (!by) return std::nullopt;
    needed = std::max(needed, *by);
  }
  return needed;
}

MachineFacts machine_facts() {
  MachineFacts facts;
  facts.visible = find_gpus();
  facts.architectures = compiled_architectures();
  for (int ordinal = 0; ordinal < facts.visible.count; ++ordinal) facts.gpus.push_back(gpu_facts(ordinal));
  facts.pairs = pair_facts(facts.gpus);
  struct statvfs shared = {};
  if (statvfs("/dev/shm", &shared) == 0)
    facts.shared_memory_bytes =
        static_cast<std::int64_t>(shared.f_bavail) * static_cast<std::int64_t>(shared.f_frsize);
  struct rlimit locked = {};
  if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY)
    facts.locked_memory_bytes = locked.rlim_cur;
  return facts;
}

}  // namespace precbench
