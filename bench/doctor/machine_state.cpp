// Judges the facts of the machine, one function per line. See machine_state.h.
#include "bench/doctor/machine_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "kernels/base/plural.h"

namespace precbench {
namespace {

constexpr double kGiB = 1 << 30;

/// Returns 10000 * major + 100 * minor of "12.9.1"; null if it is no version.
std::optional<int> version_number(const std::string& text) {
  int major = 0, minor = 0;
  return std::sscanf(text.c_str(), "%d.%d", &major, &minor) == 2 ? std::optional(major * 10000 + minor * 100)
                                                                 : std::nullopt;
}

std::string version_text(int number) { return fmt::format("{}.{}", number / 10000, number % 10000 / 100); }

HealthLine judge_code(const GpuFacts& gpu, const std::string& architectures) {
  const int cc = gpu.properties.compute_capability;
  const std::string for_gpu = fmt::format("{}.{}", cc / 10, cc % 10);
  switch (code_for(cc, architectures)) {
    case GpuCode::compiled:
      return {Health::ok, "code", fmt::format("compiled for {} (build: {})", for_gpu, architectures)};
    case GpuCode::jit:
      return {Health::warn, "code",
              fmt::format(
                  "compiled by the driver at the first start, without the kernels made for {}; build with "
                  "-DPRECBENCH_CUDA_ARCHS={}",
                  for_gpu, cc)};
    default:
      return {Health::fail, "code",
              fmt::format("none for {} (build: {}); build with -DPRECBENCH_CUDA_ARCHS={}", for_gpu,
                          architectures.empty() ? "unknown" : architectures, cc)};
  }
}

HealthLine judge_driver(const GpuFacts& gpu) {
  const GpuProperties& p = gpu.properties;
  const auto runtime = version_number(p.cuda_runtime), driver = version_number(p.cuda_driver);
  if (!runtime || !driver) return {Health::unknown, "driver", "CUDA versions are not known"};
  const std::string both =
      fmt::format("{} for CUDA {}, build for {}", p.driver.empty() ? "version unknown," : p.driver,
                  p.cuda_driver, p.cuda_runtime);
  if (*driver >= *runtime) return {Health::ok, "driver", both};
  if (*driver / 10000 == *runtime / 10000)
    return {Health::warn, "driver", both + "; runs by minor-version compatibility, update the driver"};
  return {Health::fail, "driver", both + "; update the driver or build with an older CUDA"};
}

HealthLine judge_cublaslt(const GpuFacts& gpu) {
  const std::string& version = gpu.properties.cublaslt;
  const auto here = version_number(version);
  if (!here) return {Health::unknown, "cuBLASLt", "version not known"};
  std::map<int, std::vector<std::string>> lost;  // by the version that has them
  for (const RecipeFact& recipe : gpu.recipes)
    if (recipe.support.execution != Execution::native && recipe.cublaslt_needed &&
        *recipe.cublaslt_needed > *here)
      lost[*recipe.cublaslt_needed].push_back(recipe.name);
  if (lost.empty()) return {Health::ok, "cuBLASLt", version};
  std::string text = version;
  for (const auto& [needed, recipes] : lost)
    text += fmt::format("; {} would make native: {}", version_text(needed), fmt::join(recipes, " "));
  return {Health::warn, "cuBLASLt", text};
}

/// Native and emulated recipes; one that the version should have, but that is emulated, is a failure of the
/// library or of a verification.
HealthLine judge_recipes(const GpuFacts& gpu) {
  if (!gpu.open_error.empty()) return {Health::fail, "recipes", "the GPU cannot be used: " + gpu.open_error};
  const auto here = version_number(gpu.properties.cublaslt);
  std::vector<std::string> native, refused;
  for (const RecipeFact& recipe : gpu.recipes) {
    if (recipe.support.execution == Execution::native)
      native.push_back(recipe.name);
    else if (here && recipe.cublaslt_needed && *recipe.cublaslt_needed <= *here)
      refused.push_back(fmt::format("{} ({})", recipe.name, recipe.support.reason));
  }
  const std::string text = fmt::format("{} of {} native: {}", native.size(),
                                       plural(gpu.recipes.size(), "recipe"), fmt::join(native, " "));
  if (refused.empty()) return {Health::ok, "recipes", text};
  return {Health::warn, "recipes",
          fmt::format("{}; refused by cuBLASLt: {}", text, fmt::join(refused, ", "))};
}

HealthLine judge_libraries(const GpuFacts& gpu, std::size_t gpus) {
  const GpuProperties& p = gpu.properties;
  const std::string cudnn =
      p.cudnn.empty() ? "no cuDNN in this build: attention has our kernels only" : "cuDNN " + p.cudnn;
  const std::string nccl = p.nccl.empty() ? "no NCCL in this build: one GPU only" : "NCCL " + p.nccl;
  const bool missing = p.cudnn.empty() || (p.nccl.empty() && gpus > 1);
  return {missing ? Health::warn : Health::ok, "libraries",
          fmt::format("{}; {}{}", cudnn, nccl,
                      missing ? "; install it and build again (tools/setup/README.md)" : "")};
}

HealthLine judge_peaks(const GpuFacts& gpu) {
  if (!gpu.peaks) return {Health::warn, "peaks", no_peaks_known(gpu.properties.name)};
  return {Health::ok, "peaks",
          fmt::format("BF16 {:g} TFLOP/s, {:g} GB/s ({})", gpu.peaks->bf16_tflops, gpu.peaks->memory_gb_per_s,
                      gpu.peaks->source)};
}

HealthLine judge_power(const GpuFacts& gpu) {
  const double limit = gpu.properties.power_limit_w;
  if (limit <= 0 || !gpu.default_power_limit_w) return {Health::unknown, "power limit", "not known"};
  const double usual = *gpu.default_power_limit_w;
  if (limit >= usual) return {Health::ok, "power limit", fmt::format("{:.0f} W", limit)};
  return {Health::warn, "power limit",
          fmt::format("{:.0f} W, below the default of {:.0f} W; sudo nvidia-smi -i {} -pl {:.0f}", limit,
                      usual, gpu.properties.ordinal, usual)};
}

HealthLine judge_clocks(const GpuFacts& gpu) {
  if (!gpu.reading.sm_clock_mhz) return {Health::unknown, "clocks", "not known"};
  const std::string now =
      fmt::format("SM {:.0f} MHz now{}", *gpu.reading.sm_clock_mhz,
                  gpu.max_sm_clock_mhz ? fmt::format(", at most {:.0f}", *gpu.max_sm_clock_mhz) : "");
  const std::vector<std::string> reasons = throttle_reason_names(gpu.reading.throttle_bits);
  if (reasons.empty()) return {Health::ok, "clocks", now};
  const bool locked =
      std::find(reasons.begin(), reasons.end(), "applications_clocks_setting") != reasons.end();
  return {Health::warn, "clocks",
          fmt::format(
              "{}, held back by {}; {}", now, fmt::join(reasons, ", "),
              locked ? "nvidia-smi -rac resets application clocks" : "wait until the GPU is idle and cool")};
}

HealthLine judge_ecc(const GpuFacts& gpu) {
  if (gpu.ecc_errors.value_or(0) > 0)
    return {Health::fail, "ECC",
            fmt::format("{} since the driver was loaded; reset or replace the GPU",
                        plural(static_cast<std::size_t>(*gpu.ecc_errors), "uncorrected memory error"))};
  if (gpu.properties.ecc < 0) return {Health::unknown, "ECC", "not known"};
  return {Health::ok, "ECC",
          gpu.properties.ecc ? "on, no uncorrected errors" : "off: memory errors stay unseen"};
}

HealthLine judge_mig(const GpuFacts& gpu) {
  if (!gpu.mig)
    return {gpu.nvml ? Health::ok : Health::unknown, "MIG", gpu.nvml ? "not available" : "not known"};
  if (!*gpu.mig) return {Health::ok, "MIG", "off"};
  return {Health::warn, "MIG",
          "on: speeds are those of an instance, and instances share power; use the whole GPU"};
}

HealthLine judge_pcie(const GpuFacts& gpu) {
  if (!gpu.pcie) return {Health::unknown, "PCIe", "not known"};
  const auto& link = *gpu.pcie;
  const std::string text =
      fmt::format("x{} of x{}, at most generation {}", link.width, link.max_width, link.max_generation);
  if (link.width >= link.max_width) return {Health::ok, "PCIe", text};
  return {Health::warn, "PCIe", text + "; reseat the board or use another slot"};
}

HealthLine judge_processes(const GpuFacts& gpu) {
  if (!gpu.nvml) return {Health::unknown, "processes", "not known"};
  if (gpu.other_processes == 0) return {Health::ok, "processes", "none other on the GPU"};
  return {Health::warn, "processes",
          fmt::format("{} other on the GPU; speeds are wrong beside them", gpu.other_processes)};
}

HealthLine judge_pair(const PairFacts& pair) {
  const std::string subject = fmt::format("GPUs {} and {}", pair.a, pair.b);
  const std::string links = !pair.nvlinks        ? ""
                            : *pair.nvlinks == 0 ? ", no NVLink"
                                                 : fmt::format(", NVLink x{}", *pair.nvlinks);
  if (!pair.peer_access) return {Health::unknown, subject, "peer access not known" + links};
  if (*pair.peer_access) return {Health::ok, subject, "peer access" + links};
  return {
      Health::warn, subject,
      "no peer access" + links + ": copies go through host memory; check IOMMU, ACS and the virtual machine"};
}

HealthLine judge_shared_memory(const MachineFacts& facts) {
  if (!facts.shared_memory_bytes)
    return {Health::unknown, "/dev/shm", "not there; NCCL and containers need it"};
  const double gib = static_cast<double>(*facts.shared_memory_bytes) / kGiB;
  const std::string text = fmt::format("{:.2f} GiB free", gib);
  if (gib >= 1 || facts.gpus.size() < 2) return {Health::ok, "/dev/shm", text};
  return {Health::warn, "/dev/shm", text + ", NCCL may fail; docker run --shm-size=1g or --ipc=host"};
}

HealthLine judge_locked_memory(const MachineFacts& facts) {
  if (!facts.locked_memory_bytes) return {Health::ok, "memlock", "unlimited"};
  const std::string text =
      fmt::format("{:.3g} MiB", static_cast<double>(*facts.locked_memory_bytes) / (1 << 20));
  if (facts.gpus.size() < 2) return {Health::ok, "memlock", text};
  return {Health::warn, "memlock", text + ", InfiniBand needs more; ulimit -l unlimited"};
}

}  // namespace

HealthLines judge_machine(const MachineFacts& facts) {
  HealthLines lines;
  if (facts.gpus.empty()) lines.push_back({Health::warn, "GPU", "none: " + facts.visible.reason});
  for (const GpuFacts& gpu : facts.gpus) {
    const GpuProperties& p = gpu.properties;
    const std::string name = fmt::format("GPU {}", p.ordinal);
    lines.push_back({Health::ok, name, p.description});
    for (HealthLine line :
         {judge_code(gpu, facts.architectures), judge_driver(gpu), judge_cublaslt(gpu),
          judge_libraries(gpu, facts.gpus.size()), judge_recipes(gpu), judge_peaks(gpu), judge_power(gpu),
          judge_clocks(gpu), judge_ecc(gpu), judge_mig(gpu), judge_pcie(gpu), judge_processes(gpu)}) {
      line.subject = name + " " + line.subject;
      lines.push_back(std::move(line));
    }
  }
  for (const PairFacts& pair : facts.pairs) lines.push_back(judge_pair(pair));
  lines.push_back(judge_shared_memory(facts));
  lines.push_back(judge_locked_memory(facts));
  return lines;
}

}  // namespace precbench
