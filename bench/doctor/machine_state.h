// Facts of the machine that need no kernel, and their judgement. Judging needs no GPU, so that every line is
// tested with made-up facts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/doctor/line.h"
#include "bench/machine/datasheet.h"
#include "kernels/gpu/device_info.h"
#include "kernels/gpu/nvml.h"

namespace precbench {

/// How the GPU runs one recipe.
struct RecipeFact {
  std::string name;
  GemmSupport support;  ///< the weakest of its three GEMMs
  /// Oldest cuBLASLt that has the recipe's GEMMs on this GPU, 10000 * major + 100 * minor; null: no version has.
  std::optional<int> cublaslt_needed;
};

struct GpuFacts {
  GpuProperties properties;
  std::optional<DatasheetRates> peaks;
  std::vector<RecipeFact> recipes;
  std::string open_error;  ///< why the GPU cannot be used; empty if it can
  bool nvml = false;       ///< NVML answers; the values below are unknown otherwise
  std::optional<double> default_power_limit_w, max_sm_clock_mhz;
  GpuReading reading;
  std::optional<std::int64_t> ecc_errors;
  std::optional<bool> mig;
  std::optional<NvmlGpu::PcieLink> pcie;
  int other_processes = 0;
};

/// One pair of GPUs.
struct PairFacts {
  int a = 0, b = 1;
  std::optional<bool> peer_access;
  std::optional<int> nvlinks;
};

struct MachineFacts {
  VisibleGpus visible;
  std::string architectures;  ///< compiled_architectures()
  std::vector<GpuFacts> gpus;
  std::vector<PairFacts> pairs;
  std::optional<std::int64_t> shared_memory_bytes;   ///< free in /dev/shm
  std::optional<std::uint64_t> locked_memory_bytes;  ///< limit of locked memory; null: unlimited
};

/// Returns the oldest cuBLASLt with which a GPU runs a recipe natively, see RecipeFact::cublaslt_needed.
std::optional<int> cublaslt_needed(const Recipe& recipe, int compute_capability);

/// Reads the facts. Opens each GPU, but runs no kernel.
MachineFacts machine_facts();

HealthLines judge_machine(const MachineFacts& facts);

}  // namespace precbench
