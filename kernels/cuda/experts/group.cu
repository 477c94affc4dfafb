// Rows by expert: a stable counting sort of the slots in two kernels. In the first, each block counts the
// slots per expert in its run. In the second, every block adds up the counts of all earlier runs (few enough
// to repeat in every block), and so knows the rows of its slots: earlier runs, plus earlier warps, plus
// earlier lanes of the warp.
#include <algorithm>
#include <climits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/experts/router.cuh"
#include "kernels/cuda/hopper/early_start.cuh"

namespace precbench {
namespace cuda {
namespace {

constexpr int kGroupThreads = 1024;  // one slot each at a time
constexpr int kGroupWarps = kGroupThreads / kWarp;
constexpr int kMostRuns = 64;

struct GroupArgs {
  const std::int32_t* index;
  std::int32_t* runs;  // [runs, E]: slots of the expert in the run
  std::int32_t *counts, *offsets, *row_of, *source;
  std::int32_t* kept;  // may be null
  float* report;
  int slots, run_count, run, experts, pad, capacity;  // run: slots per run, a multiple of kGroupThreads
  int most;                                           // row limit of an expert
  int first;                                          // first expert; slots of other experts have no row
};

/// Returns the slot's expert relative to `first`; -1: another expert, or no slot.
__device__ inline int expert_of(const GroupArgs& a, int slot, int end) {
  const int relative = slot < end ? a.index[slot] - a.first : -1;
  return relative < a.experts ? max(relative, -1) : -1;
}

__global__ void __launch_bounds__(kGroupThreads) count_slots_kernel(const GroupArgs a) {
  wait_for_work_before();
  extern __shared__ std::int32_t counts[];  // [E]
  for (int e = threadIdx.x; e < a.experts; e += kGroupThreads) counts[e] = 0;
  __syncthreads();
  const int begin = blockIdx.x * a.run, end = min(a.slots, begin + a.run);
  for (int slot = begin + static_cast<int>(threadIdx.x); slot < end; slot += kGroupThreads)
    if (const int expert = expert_of(a, slot, end); expert >= 0) atomicAdd(counts + expert, 1);
  __syncthreads();
  for (int e = threadIdx.x; e < a.experts; e += kGroupThreads) a.runs[blockIdx.x * a.experts + e] = counts[e];
}

/// Expert tables of a block of the second kernel, each [E].
struct GroupTable {
  std::int32_t *counts, *offsets /* [E + 1] */, *next /* the place of the next slot in its group */;
  std::int32_t* of_warps;  // [warps, E]

  __device__ GroupTable(std::int32_t* shared, int experts)
      : counts(shared), offsets(counts + experts), next(offsets + experts + 1), of_warps(next + experts) {}
};
constexpr std::size_t table_words(int experts) {
  return static_cast<std::size_t>(experts) * (3 + kGroupWarps) + 1;
}

/// Adds up the counts of all runs, and in `next` of those before this block's.
__device__ inline void add_runs(const GroupArgs& a, const GroupTable& table) {
  for (int e = threadIdx.x; e < a.experts; e += kGroupThreads) table.counts[e] = table.next[e] = 0;
  __syncthreads();
  const int strips = max(1, kGroupThreads / a.experts);
  const int e = threadIdx.x % a.experts, strip = threadIdx.x / a.experts;
  if (strip < strips) {
    int all = 0, before = 0;
#pragma unroll 8
    for (int run = strip; run < a.run_count; run += strips) {
      const int count = a.runs[run * a.experts + e];
      all += count;
      if (run < static_cast<int>(blockIdx.x)) before += count;
    }
    atomicAdd(table.counts + e, all);
    atomicAdd(table.next + e, before);
  }
  __syncthreads();
}

/// Computes the groups' offsets. Every expert has a thread (check_rule).
__device__ inline void make_offsets(const GroupArgs& a, const GroupTable& table) {
  __shared__ std::int32_t buffers[3][kWarp];
  const int e = threadIdx.x;
  const int wanted = e < a.experts ? table.counts[e] : 0, count = min(wanted, a.most);
  const int padded = (count + a.pad - 1) / a.pad * a.pad;
  int rows, all, slots;
  const int before = sum_before(padded, all, buffers[0]);
  sum_before(count, rows, buffers[1]);
  sum_before(wanted, slots, buffers[2]);
  if (e < a.experts) table.counts[e] = count, table.offsets[e] = before;
  if (e == 0) table.offsets[a.experts] = all;
  __syncthreads();
  if (blockIdx.x != 0) return;
  if (e < a.experts) a.counts[e] = count;
  if (e <= a.experts) a.offsets[e] = table.offsets[e];
  if (e != 0) return;
  a.report[0] = static_cast<float>(rows), a.report[1] = static_cast<float>(all);
  a.report[2] = static_cast<float>(slots - rows);
}

/// Marks rows without a slot: a warp per group's padding, all threads for the rows after the last group.
__device__ inline void mark_padding(const GroupArgs& a, const GroupTable& table) {
  const int lane = threadIdx.x % kWarp;
  for (int e = blockIdx.x * kGroupWarps + threadIdx.x / kWarp; e < a.experts; e += gridDim.x * kGroupWarps)
    for (int row = table.offsets[e] + table.counts[e] + lane; row < table.offsets[e + 1]; row += kWarp)
      a.source[row] = -1;
  for (int row = table.offsets[a.experts] + static_cast<int>(blockIdx.x * kGroupThreads + threadIdx.x);
       row < a.capacity; row += gridDim.x * kGroupThreads)
    a.source[row] = -1;
}

/// Places one slot per thread of the block, in order.
__device__ inline void place_slots(const GroupArgs& a, const GroupTable& table, int slot, int end) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int i = threadIdx.x; i < kGroupWarps * a.experts; i += kGroupThreads) table.of_warps[i] = 0;
  const int expert = expert_of(a, slot, end);
  const std::uint32_t same = __match_any_sync(kAllLanes, expert);
  const int before = __popc(same & ((1u << lane) - 1));
  __syncthreads();
  std::int32_t* const mine = table.of_warps + warp * a.experts + expert;
  if (expert >= 0 && before == 0) *mine = __popc(same);
  __syncthreads();
  if (threadIdx.x < a.experts) {
    std::int32_t* of_expert = table.of_warps + threadIdx.x;
    int sum = table.next[threadIdx.x];
#pragma unroll 8
    for (int w = 0; w < kGroupWarps; ++w) {
      const int count = of_expert[w * a.experts];
      of_expert[w * a.experts] = sum;
      sum += count;
    }
    table.next[threadIdx.x] = sum;
  }
  __syncthreads();
  if (slot >= end) return;
  const int at = expert >= 0 ? *mine + before : a.most;
  const int row = at < a.most ? table.offsets[expert] + at : -1;
  a.row_of[slot] = row;
  if (a.kept) a.kept[slot] = row >= 0 ? a.first + expert : -1;
  if (row >= 0) a.source[row] = slot;
}

__global__ void __launch_bounds__(kGroupThreads) place_slots_kernel(const GroupArgs a) {
  wait_for_work_before();
  extern __shared__ std::int32_t table_memory[];
  const GroupTable table(table_memory, a.experts);
  add_runs(a, table);
  make_offsets(a, table);
  mark_padding(a, table);
  const int begin = blockIdx.x * a.run, end = min(a.slots, begin + a.run);
  for (int first = begin; first < end; first += kGroupThreads) {
    place_slots(a, table, first + static_cast<int>(threadIdx.x), end);
    __syncthreads();
  }
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_group(const ops::Group& op) {
  using namespace cuda;
  const Groups& groups = op.groups;
  check_rule({.experts = groups.experts(), .top_k = groups.top_k()});
  const int slots = static_cast<int>(op.index.size()), experts = static_cast<int>(groups.experts());
  const int pieces = (slots + kGroupThreads - 1) / kGroupThreads;
  const int run = std::max(1, (pieces + kMostRuns - 1) / kMostRuns) * kGroupThreads;
  const int run_count = std::max(1, (slots + run - 1) / run);
  const GroupArgs args{op.index.as<std::int32_t>(),
                       static_cast<std::int32_t*>(scratch(sizeof(std::int32_t) * experts * run_count)),
                       groups.counts.as<std::int32_t>(),
                       groups.offsets.as<std::int32_t>(),
                       groups.row_of.as<std::int32_t>(),
                       groups.source.as<std::int32_t>(),
                       op.kept.as<std::int32_t>(),
                       op.report.as<float>(),
                       slots,
                       run_count,
                       run,
                       experts,
                       static_cast<int>(groups.pad),
                       static_cast<int>(groups.rows_capacity()),
                       static_cast<int>(std::min<std::int64_t>(op.most, INT_MAX)),
                       static_cast<int>(op.first)};
  count_slots_kernel<<<run_count, kGroupThreads, sizeof(std::int32_t) * experts, stream()>>>(args);
  place_slots_kernel<<<run_count, kGroupThreads, sizeof(std::int32_t) * table_words(experts), stream()>>>(
      args);
  launched("group");
}

}  // namespace precbench
