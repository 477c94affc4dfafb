// The kernel of our Hopper GEMMs: a persistent block, which of its threads load and which compute, and its
// sequence of tiles. A Mainloop loads and computes a tile (plain_sm90a.cuh, blockwise_sm90a.cuh).
#pragma once

#include "kernels/cuda/gemm/epilogue_sm90a.cuh"
#include "kernels/cuda/hopper/early_start.cuh"

namespace precbench::hopper {

/// Producer thread: issues the loads of all tiles.
template <class Mainloop, class Order>
__device__ void load_tiles(const Mainloop& mainloop, const Order& order, int rank, int cluster,
                           int clusters) {
  using S = typename Mainloop::Shape;
  PipelineState<S::kStages> state;
  typename Order::Cursor at;
  Tile tile;
  for (int index = cluster; order.template find<S>(index, rank, at, tile); index += clusters)
    for (int i = 0; i < tile.k_blocks; ++i, state.next()) {
      mainloop.shared.empty[state.stage].wait(state.parity ^ 1);
      mainloop.shared.full[state.stage].arrive_expect_tx(S::kStageBytes);
      mainloop.load(tile, i, rank, state.stage);
    }
}

/// Computes all tiles of a block. Thread 0 loads their operands, a stage of k at a time, into a ring in
/// shared memory; the math warpgroups compute and store D. A Mainloop has the types Shape, Shared (with the
/// ring), Maps (tensor maps, one of them d) and Parameters, a reference to each of the last three, and
///   load(tile, i, rank, stage)       in thread 0: issues the loads of the tile's i-th k block
///   begin(warpgroup), end(warpgroup)
///                                    in the math warpgroups, before their first tile and after the last
///   accumulate<Order>(tile, warpgroup, thread, first, state, total)
///                                    computes one warpgroup's totals; `first`: of its first tile
template <class Mainloop, class Order>
__global__ __launch_bounds__(kThreads, 1)
    __cluster_dims__(Mainloop::Shape::kCluster) void multiply(const __grid_constant__
                                                              typename Mainloop::Maps maps,
                                                              const typename Mainloop::Parameters parameters,
                                                              const EpilogueScales epilogue_scales,
                                                              const Before before, const Order order) {
  wait_for_work_before();
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using S = typename Mainloop::Shape;
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  static_assert(sizeof(typename Mainloop::Shared) <= 227 * 1024, "all that a block may have");
  auto& shared = *reinterpret_cast<typename Mainloop::Shared*>(shared_bytes);
  const Mainloop mainloop{shared, maps, parameters};
  const int rank = S::kCluster == 1 ? 0 : cluster_ctarank();
  const int cluster = static_cast<int>(blockIdx.x) / S::kCluster;
  const int clusters = static_cast<int>(gridDim.x) / S::kCluster;
  init_pipeline<S::kCluster>(shared.full, shared.empty, S::kCluster * kMathWarpgroups * 4);
  const int warpgroup = warpgroup_index() - 1;
  if (warpgroup < 0) {
    setmaxnreg_dec<S::kProducerRegisters>();
    if (threadIdx.x == 0) load_tiles(mainloop, order, rank, cluster, clusters);
  } else {
    setmaxnreg_inc<S::kMathRegisters>();
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    PipelineState<S::kStages> state;
    mainloop.begin(warpgroup);
    typename Order::Cursor at;
    Tile tile;
    for (int index = cluster; find_together<S>(order, index, rank, at, tile); index += clusters) {
      load_epilogue_scales<S, Order>(shared.epilogue_scales[warpgroup], epilogue_scales, tile, warpgroup,
                                     thread);
      float total[S::kHalves][S::kSums];
      mainloop.template accumulate<Order>(tile, warpgroup, thread, index == cluster, state, total);
      store<S, Order>(shared.d[warpgroup], &maps.d, shared.epilogue_scales[warpgroup], before, tile,
                      warpgroup, thread, total);
    }
    mainloop.end(warpgroup);
    if (thread == 0) tma_store_wait_group_read<0>();
  }
  // No block may exit while another may still write to its shared memory or arrive at its barriers.
  if constexpr (S::kCluster > 1) cluster_sync();
#endif
}

}  // namespace precbench::hopper
