// For tests: the ranks of a plan on the CPU or on GPUs, set up as a case runs them.
#pragma once

#include <algorithm>
#include <memory>

#include "bench/predict/predict.h"
#include "bench/step/rank.h"
#include "bench/step/rank_threads_testing.h"
#include "bench/step/weights.h"
#include "kernels/device/devices.h"
#include "kernels/gpu/device_info.h"
#include "kernels/testing/catch.h"
#include "models/transformer/step_testing.h"

namespace precbench {

/// Returns the tokens of a case.
inline std::unique_ptr<DataSource> tokens_of(const Plan& plan) {
  const std::string path = plan.fields.data == "synthetic" ? "" : plan.fields.data;
  return open_data(
      {.path = path, .glob = "", .seed = 1, .vocab = plan.model.vocab, .T = plan.T, .packed = plan.packs()});
}

/// Runs body(rank, data) on every rank of the plan, each in `bytes` of memory filled with NaN.
template <class Body>
void run_cpu_ranks(const Plan& plan, std::int64_t bytes, Body&& body) {
  const std::unique_ptr<DataSource> data = tokens_of(plan);
  run_cpu_rank_threads(all_ranks(plan.ranks), [&](int, Device& device, Comm& comm) {
    const testing::NanBlock block(device, bytes);
    Rank rank(device, comm, plan, block.data(), bytes);
    body(rank, *data);
  });
}

/// Returns the number of GPUs, at most four; below two it warns with the reason and returns 0.
inline int gpus_or_skip() {
  const VisibleGpus gpus = find_gpus();
  if (gpus.count >= 2) return std::min(gpus.count, 4);
  WARN("skipped: " << (gpus.count ? "only one GPU is visible" : gpus.reason));
  return 0;
}

/// Selects the same kernels for any number of ranks, and a fixed summation order.
inline const GpuOptions kRepeatable{.autotune = false, .deterministic = true};

/// Runs body(rank, device, comm) on `ranks` GPUs.
template <class Body>
void on_gpus(int ranks, Body&& body) {
  const std::unique_ptr<CommGroup> group = ranks > 1 ? make_gpu_group(ranks, ranks) : make_local_group(ranks);
  run_rank_threads(
      all_ranks(ranks),
      [&](int rank) {
        const std::unique_ptr<Device> device = make_gpu_device(rank, kRepeatable);
        const std::unique_ptr<Comm> comm = group->join(rank, *device);
        body(rank, *device, *comm);
      },
      [&] { group->abort(); });
}

/// Runs body(rank, data) on every rank of the plan, each on a GPU with initialized weights and the memory of
/// a real run.
template <class Body>
void run_gpu_ranks(const Plan& plan, Body&& body) {
  on_gpus(plan.ranks, [&](int, Device& device, Comm& comm) {
    const std::unique_ptr<DataSource> data = tokens_of(plan);
    const std::int64_t bytes = dry_run(plan, &device).extent + watching_bytes(plan);
    const testing::NanBlock block(device, bytes);
    Rank rank(device, comm, plan, block.data(), bytes);
    rank.parameters().initialize(plan.seed, kInitialDeviation);
    body(rank, *data);
  });
}

}  // namespace precbench
