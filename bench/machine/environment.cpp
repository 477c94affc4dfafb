// Reads /proc and the build's properties. See environment.h.
#include "bench/machine/environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/machine/build_info.h"
#include "kernels/base/usable_cpus.h"
#include "kernels/gpu/device_info.h"
#include "kernels/gpu/nvml.h"

namespace precbench {
namespace {

/// Returns the text after the colon of the first line that begins with `key`.
std::optional<std::string> value_in(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.rfind(key, 0) == 0) {
      const std::size_t colon = line.find(':');
      const std::size_t start = colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
      if (start != std::string::npos) return line.substr(start);
    }
  return std::nullopt;
}

std::optional<std::string> known(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional(text);
}

/// Returns the links of GPUs [first_gpu, first_gpu + gpus).
std::optional<std::string> links_of(int first_gpu, int gpus) {
  std::vector<std::string> pci_bus_ids;
  for (int gpu = first_gpu; gpu < first_gpu + gpus; ++gpu)
    pci_bus_ids.push_back(gpu_properties(gpu).pci_bus_id);
  return link_topology(pci_bus_ids);
}

GpuRecord gpu_record(const GpuProperties& gpu) {
  GpuRecord record;
  record.name = gpu.name;
  record.cc = fmt::format("{}.{}", gpu.compute_capability / 10, gpu.compute_capability % 10);
  record.memory = gpu.memory_bytes;
  record.driver = known(gpu.driver);
  record.uuid = known(gpu.uuid);
  if (gpu.ecc >= 0) record.ecc = gpu.ecc == 1;
  if (gpu.power_limit_w > 0) record.power_limit = gpu.power_limit_w;
  return record;
}

}  // namespace

int openmp_threads() {
  if (const char* text = std::getenv("OMP_NUM_THREADS"))
    if (const long threads = std::strtol(text, nullptr, 10); threads > 0)
      return static_cast<int>(std::min<long>(threads, std::numeric_limits<int>::max()));
  return usable_cpus().threads();
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

Environment describe_environment(int threads, int first_gpu, int gpus) {
  Environment env;
  const BuildInfo& build = build_info();
  env.git = known(build.commit);
  if (env.git) env.dirty = build.dirty;
  env.build = build.flags;
  env.compiler = build.compiler;
  env.host = known(host_name());
  env.nodes = 1;
  env.cpu = value_in("/proc/cpuinfo", "model name");
  env.threads = threads;
  const UsableCpus cpus = usable_cpus();
  env.cpus = cpus.count;
  env.cpu_quota = cpus.quota;
  const int visible = find_gpus().count;
  if (first_gpu < 0 || first_gpu >= visible) return env;
  GpuProperties gpu;
  try {
    gpu = gpu_properties(first_gpu);
    env.gpu = gpu_record(gpu);
    env.gpu->nvlink = links_of(first_gpu, std::min(gpus, visible - first_gpu));
  } catch (const std::runtime_error&) {
    return env;
  }
  env.cuda = known(gpu.cuda_runtime);
  env.cublaslt = known(gpu.cublaslt);
  env.cudnn = known(gpu.cudnn);
  env.nccl = known(gpu.nccl);
  return env;
}

Record failed_record(const Plan& plan, Status status, const std::string& error) {
  Record record = start_record(plan);
  record.env = describe_environment(openmp_threads(), plan.on_gpu ? 0 : -1, plan.on_gpu ? plan.ranks : 1);
  record.status = status;
  record.error = error;
  return record;
}

std::optional<std::int64_t> peak_resident_bytes() {
  const std::optional<std::string> text = value_in("/proc/self/status", "VmHWM");
  if (!text) return std::nullopt;
  return std::stoll(*text) * 1024;  // given in kB
}

}  // namespace precbench
