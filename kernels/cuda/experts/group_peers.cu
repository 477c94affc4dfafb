// Assignment of tokens to expert-parallel ranks. One kernel with a block per rank counts its tokens, and
// another writes their rows in token order. Both read all slots, of which a step has few.
#include <algorithm>
#include <climits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/experts/router.cuh"
#include "kernels/cuda/hopper/early_start.cuh"

namespace precbench {
namespace cuda {
namespace {

constexpr int kPeerThreads = 1024;

struct PeerArgs {
  const std::int32_t* index;
  const float* weights;
  std::int32_t *counts, *offsets, *row_of, *source, *row_index;
  float *row_weights, *report;
  std::int32_t* dropped;  // [ranks]: slots
  int tokens, top_k, ranks, experts, most, capacity;
  bool tight;
};

/// Calls take(token, slots, place) for all tokens: `slots` of its experts are on the block's rank, and
/// `place` earlier tokens have any there. Returns how many tokens have any.
template <class Take>
__device__ inline int for_tokens(const PeerArgs& a, Take&& take) {
  __shared__ std::int32_t buffer[kWarp];
  const int rank = static_cast<int>(blockIdx.x);
  int total = 0;
  for (int first = 0; first < a.tokens; first += kPeerThreads) {
    const int token = first + static_cast<int>(threadIdx.x);
    int slots = 0;
    for (int k = 0; token < a.tokens && k < a.top_k; ++k) {
      const int relative = a.index[token * a.top_k + k] - rank * a.experts;
      slots += relative >= 0 && relative < a.experts;
    }
    int all;
    const int before = sum_before(slots > 0, all, buffer);
    if (token < a.tokens) take(token, slots, total + before);
    total += all;
  }
  return total;
}

__global__ void __launch_bounds__(kPeerThreads) count_peers_kernel(const PeerArgs a) {
  wait_for_work_before();
  __shared__ std::int32_t buffer[kWarp];
  int dropped = 0;
  const int total = for_tokens(a, [&](int, int slots, int place) { dropped += place < a.most ? 0 : slots; });
  int all;
  sum_before(dropped, all, buffer);
  if (threadIdx.x != 0) return;
  a.counts[blockIdx.x] = min(total, a.most);
  a.dropped[blockIdx.x] = all;
}

__global__ void __launch_bounds__(kPeerThreads) place_peers_kernel(const PeerArgs a) {
  wait_for_work_before();
  const int rank = static_cast<int>(blockIdx.x);
  int begin = 0, end = 0;  // of the rank's group, including unused capacity
  for (int r = 0; r <= rank; ++r) {
    begin = end;
    end += a.tight ? a.counts[r] : a.most;
  }
  if (rank == a.ranks - 1 && a.tight) end = a.capacity;
  if (threadIdx.x == 0) {
    a.offsets[rank] = begin;
    if (rank == a.ranks - 1) a.offsets[a.ranks] = a.tight ? begin + a.counts[rank] : end;
    if (rank == 0) {
      int dropped = 0;
      for (int r = 0; r < a.ranks; ++r) dropped += a.dropped[r];
      a.report[0] = static_cast<float>(dropped);
    }
  }
  for_tokens(a, [&](int token, int slots, int place) {
    const int slot = token * a.ranks + rank, row = slots > 0 && place < a.most ? begin + place : -1;
    a.row_of[slot] = row;
    if (row < 0) return;
    a.source[row] = slot;
    for (int k = 0; k < a.top_k; ++k) {
      a.row_index[row * a.top_k + k] = a.index[token * a.top_k + k];
      a.row_weights[row * a.top_k + k] = a.weights[token * a.top_k + k];
    }
  });
  for (int row = begin + a.counts[rank] + static_cast<int>(threadIdx.x); row < end; row += kPeerThreads) {
    a.source[row] = -1;
    for (int k = 0; k < a.top_k; ++k) {
      a.row_index[row * a.top_k + k] = -1;
      a.row_weights[row * a.top_k + k] = 0;
    }
  }
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_group_peers(const ops::GroupPeers& op) {
  using namespace cuda;
  const Groups& peers = op.peers;
  const auto ranks = static_cast<int>(peers.experts());
  const PeerArgs args{.index = op.index.as<std::int32_t>(),
                      .weights = op.weights.as<float>(),
                      .counts = peers.counts.as<std::int32_t>(),
                      .offsets = peers.offsets.as<std::int32_t>(),
                      .row_of = peers.row_of.as<std::int32_t>(),
                      .source = peers.source.as<std::int32_t>(),
                      .row_index = op.row_index.as<std::int32_t>(),
                      .row_weights = op.row_weights.as<float>(),
                      .report = op.report.as<float>(),
                      .dropped = static_cast<std::int32_t*>(scratch(sizeof(std::int32_t) * ranks)),
                      .tokens = static_cast<int>(op.index.rows),
                      .top_k = static_cast<int>(op.index.cols),
                      .ranks = ranks,
                      .experts = static_cast<int>(op.experts),
                      .most = static_cast<int>(std::min<std::int64_t>(op.most, INT_MAX)),
                      .capacity = static_cast<int>(peers.rows_capacity()),
                      .tight = op.tight};
  count_peers_kernel<<<static_cast<unsigned>(ranks), kPeerThreads, 0, stream()>>>(args);
  place_peers_kernel<<<static_cast<unsigned>(ranks), kPeerThreads, 0, stream()>>>(args);
  launched("group_peers");
}

}  // namespace precbench
