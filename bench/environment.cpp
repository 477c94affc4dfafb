// Reads /proc and the build's own facts. See environment.h.
#include "bench/environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "build_info.h"
#include "kernels/cuda/device_info.h"
#include "kernels/cuda/telemetry.h"

namespace precbench {
namespace {

/// The text after the first "key...:" of a file of such lines.
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

GpuRecord gpu_record(const GpuProperties& gpu) {
  GpuRecord record;
  record.name = gpu.name;
  record.cc = fmt::format("{}.{}", gpu.compute_capability / 10, gpu.compute_capability % 10);
  record.memory = gpu.memory_bytes;
  record.driver = known(gpu.driver);
  record.uuid = known(gpu.uuid);
  if (gpu.ecc >= 0) record.ecc = gpu.ecc == 1;
  if (gpu.power_limit_w > 0) record.power_limit = gpu.power_limit_w;
  if (const auto monitor = GpuMonitor::open(gpu.pci_bus_id))
    if (const int links = monitor->active_nvlinks()) record.nvlink = fmt::format("{} links up", links);
  return record;
}

}  // namespace

int openmp_threads() {
  if (const char* text = std::getenv("OMP_NUM_THREADS"))
    if (const int threads = std::atoi(text); threads > 0) return threads;
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

Environment describe_environment(int threads, int ordinal) {
  Environment env;
  env.git = known(kBuildCommit);
  if (env.git) env.dirty = kBuildDirty;
  env.build = kBuildFlags;
  env.compiler = kBuildCompiler;
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) == 0) env.host = host.data();
  env.cpu = value_in("/proc/cpuinfo", "model name");
  env.threads = threads;
  if (ordinal < 0 || ordinal >= find_gpus().count) return env;
  GpuProperties gpu;
  try {
    gpu = gpu_properties(ordinal);
    env.gpu = gpu_record(gpu);
  } catch (const std::runtime_error&) {
    return env;
  }
  env.cuda = known(gpu.cuda_runtime);
  env.cublaslt = known(gpu.cublaslt);
  env.cudnn = known(gpu.cudnn);
  env.nccl = known(gpu.nccl);
  return env;
}

std::optional<std::int64_t> peak_resident_bytes() {
  const std::optional<std::string> text = value_in("/proc/self/status", "VmHWM");
  if (!text) return std::nullopt;
  return std::stoll(*text) * 1024;  // given in kB
}

}  // namespace precbench
