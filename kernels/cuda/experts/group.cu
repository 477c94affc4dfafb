// Rows by expert: a stable counting sort of the slots. A warp has a run of slots, so that its place in each expert's group
// is known by three short kernels: slots of each expert in every run; where each run begins; rows of its slots.
#include <algorithm>
#include <climits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/experts/router.cuh"

namespace precbench {
namespace cuda {
namespace {

constexpr int kRun = 256;  // slots
constexpr int kSumThreads = 256;

struct GroupArgs {
  const std::int32_t* index;
  std::int32_t* runs;  // [E, runs]: slots of the expert in the run, then those in the runs before it
  std::int32_t* all;   // [E]: slots of the expert, dropped ones too
  std::int32_t *counts, *offsets, *row_of, *source;
  float* report;
  int slots, run_count, experts, pad, capacity;
  int most;   // rows of an expert
  int first;  // of the experts; slots of others have no row
};

/// Calls place(slot, expert, at) for the warp's slots: `at` counts the expert's, from next[expert] on, which goes ahead.
/// Others' slots have the expert -1.
template <class Place>
__device__ inline void for_run(const GroupArgs& a, int run, std::int32_t* next /* [E] */, Place&& place) {
  const int lane = threadIdx.x % kWarp;
  const int end = min(a.slots, (run + 1) * kRun);
  for (int first = run * kRun; first < end; first += kWarp) {
    const int slot = first + lane;
    const bool mine = slot < end;
    const int relative = mine ? a.index[slot] - a.first : -1;
    const int expert = relative < a.experts ? max(relative, -1) : -1;
    const std::uint32_t same = __match_any_sync(kAllLanes, expert);
    const int at = expert >= 0 ? next[expert] + __popc(same & ((1u << lane) - 1)) : 0;
    __syncwarp();
    if (expert >= 0 && same >> lane == 1u) next[expert] = at + 1;
    __syncwarp();
    if (mine) place(slot, expert, at);
  }
}

__global__ void __launch_bounds__(kRouterThreads) count_slots_kernel(const GroupArgs a) {
  extern __shared__ std::int32_t counts[];
  std::int32_t* const mine = counts + threadIdx.x / kWarp * a.experts;
  const int lane = threadIdx.x % kWarp, run = blockIdx.x * kRouterWarps + threadIdx.x / kWarp;
  if (run >= a.run_count) return;
  for (int e = lane; e < a.experts; e += kWarp) mine[e] = 0;
  __syncwarp();
  for_run(a, run, mine, [](int, int, int) {});
  for (int e = lane; e < a.experts; e += kWarp) a.runs[e * a.run_count + run] = mine[e];
}

/// A block for each expert.
__global__ void __launch_bounds__(kSumThreads) sum_runs_kernel(const GroupArgs a) {
  __shared__ std::int32_t buffer[kWarp];
  std::int32_t* const runs = a.runs + static_cast<std::int64_t>(blockIdx.x) * a.run_count;
  int total = 0;
  for (int first = 0; first < a.run_count; first += kSumThreads) {
    const int run = first + static_cast<int>(threadIdx.x);
    int all;
    const int before = sum_before(run < a.run_count ? runs[run] : 0, all, buffer);
    if (run < a.run_count) runs[run] = total + before;
    total += all;
  }
  if (threadIdx.x == 0) a.all[blockIdx.x] = total, a.counts[blockIdx.x] = min(total, a.most);
}

/// offsets [E + 1] of the groups into shared memory; every block makes them of the counts.
__device__ inline void make_offsets(const GroupArgs& a, std::int32_t* offsets,
                                    std::int32_t* buffer /* [32] */) {
  int rows = 0, padded = 0, slots = 0;
  for (int first = 0; first < a.experts; first += kRouterThreads) {
    const int e = first + static_cast<int>(threadIdx.x);
    const int count = e < a.experts ? a.counts[e] : 0;
    int all;
    const int before = sum_before((count + a.pad - 1) / a.pad * a.pad, all, buffer);
    if (e < a.experts) offsets[e] = padded + before;
    padded += all;
    sum_before(count, all, buffer);
    rows += all;
    sum_before(e < a.experts ? a.all[e] : 0, all, buffer);
    slots += all;
  }
  if (threadIdx.x == 0) offsets[a.experts] = padded;
  if (threadIdx.x == 0 && blockIdx.x == 0) {
    a.report[0] = static_cast<float>(rows), a.report[1] = static_cast<float>(padded);
    a.report[2] = static_cast<float>(slots - rows);
  }
  __syncthreads();
}

/// Rows that no slot has.
__device__ inline void mark_padding(const GroupArgs& a, const std::int32_t* offsets) {
  for (int row = blockIdx.x * kRouterThreads + threadIdx.x; row < a.capacity;
       row += gridDim.x * kRouterThreads) {
    int first = 0, last = a.experts;
    while (last - first > 1) {
      const int middle = (first + last) / 2;
      (offsets[middle] <= row ? first : last) = middle;
    }
    if (row >= offsets[first] + a.counts[first]) a.source[row] = -1;
  }
}

__global__ void __launch_bounds__(kRouterThreads) place_slots_kernel(const GroupArgs a) {
  extern __shared__ std::int32_t shared[];
  __shared__ std::int32_t buffer[kWarp];
  std::int32_t* const offsets = shared;
  make_offsets(a, offsets, buffer);
  if (blockIdx.x == 0)
    for (int e = threadIdx.x; e <= a.experts; e += kRouterThreads) a.offsets[e] = offsets[e];
  mark_padding(a, offsets);
  const int lane = threadIdx.x % kWarp, run = blockIdx.x * kRouterWarps + threadIdx.x / kWarp;
  if (run >= a.run_count) return;
  std::int32_t* const next = shared + a.experts + 1 + threadIdx.x / kWarp * a.experts;
  for (int e = lane; e < a.experts; e += kWarp) next[e] = a.runs[e * a.run_count + run];
  __syncwarp();
  for_run(a, run, next, [&](int slot, int expert, int at) {
    const int row = expert >= 0 && at < a.most ? offsets[expert] + at : -1;
    a.row_of[slot] = row;
    if (row >= 0) a.source[row] = slot;
  });
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_group(const ops::Group& op) {
  using namespace cuda;
  const Groups& groups = op.groups;
  check_rule({.experts = groups.experts(), .top_k = groups.top_k()});
  const int slots = static_cast<int>(op.index.size()), experts = static_cast<int>(groups.experts());
  const int run_count = (slots + kRun - 1) / kRun;
  auto* const runs = static_cast<std::int32_t*>(scratch(sizeof(std::int32_t) * experts * (run_count + 1)));
  const GroupArgs args{op.index.as<std::int32_t>(),
                       runs,
                       runs + static_cast<std::int64_t>(experts) * run_count,
                       groups.counts.as<std::int32_t>(),
                       groups.offsets.as<std::int32_t>(),
                       groups.row_of.as<std::int32_t>(),
                       groups.source.as<std::int32_t>(),
                       op.report.as<float>(),
                       slots,
                       run_count,
                       experts,
                       static_cast<int>(groups.pad),
                       static_cast<int>(groups.rows_capacity()),
                       static_cast<int>(std::min<std::int64_t>(op.most, INT_MAX)),
                       static_cast<int>(op.first)};
  const auto blocks = static_cast<unsigned>(std::max(1, (run_count + kRouterWarps - 1) / kRouterWarps));
  const std::size_t table = sizeof(std::int32_t) * kRouterWarps * experts;
  count_slots_kernel<<<blocks, kRouterThreads, table, stream()>>>(args);
  sum_runs_kernel<<<experts, kSumThreads, 0, stream()>>>(args);
  // Blocks without slots mark padding.
  place_slots_kernel<<<std::max(blocks, static_cast<unsigned>(sm_count())), kRouterThreads,
                       table + sizeof(std::int32_t) * (experts + 1), stream()>>>(args);
  launched("group");
}

}  // namespace precbench
