// Instances and launch of the block-scaled Hopper GEMMs. Compiled for sm_90a only (kernels/CMakeLists.txt).
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/gemm/blockwise.h"
#include "kernels/cuda/gemm/blockwise_sm90a.cuh"
#include "kernels/cuda/gemm/launch_sm90a.h"

namespace precbench {
namespace {

using namespace hopper;

/// Rows per band of tiles: eight tiles of 256 rows, so that a wave on 132 multiprocessors is about square.
constexpr int kBandRows = 2048;

template <class S>
void launch(const BlockwiseGemm& gemm, const BlockwiseBuffers& on, cudaStream_t stream) {
  using D = std::conditional_t<is_f32(S::kStore), float, __nv_bfloat16>;
  const std::int64_t M = gemm.M, N = gemm.N, K = gemm.K;
  BlockwiseMaps maps{.a = map_of<std::uint8_t>(on.a, M, K, S::kRows / S::kCluster, S::kBlockK, true),
                     .b = map_of<std::uint8_t>(on.b, N, K, S::kColumns, S::kBlockK, true),
                     .a_scale = map_of_scales(on.a_scale, M, K, S::kRows),
                     .b_scale = {},
                     .d = map_of<D>(on.d, M, N, kUnitRows, S::kDColumns, true)};
  SquareScales squares{};
  if constexpr (S::kSquare)
    squares = {on.b_scale, tiles(N, 128),
               static_cast<int>(scale_count(Granularity::block_128x128, N, K) / tiles(N, 128))};
  else
    maps.b_scale = map_of_scales(on.b_scale, N, K, S::kColumns);
  const Before before{static_cast<const __nv_bfloat16*>(on.d), static_cast<int>(M), static_cast<int>(N)};
  const DenseOrder order{tiles(M, S::kRows), tiles(N, S::kColumns * S::kCluster), kBandRows / S::kRows,
                         tiles(K, S::kBlockK)};
  const auto kernel = multiply<BlockwiseMainloop<S>, DenseOrder>;
  const int clusters = resident_clusters(kernel, S::kCluster, kThreads, sizeof(BlockwiseShared<S>));
  const int blocks = std::min(clusters, order.row_tiles * order.column_tiles) * S::kCluster;
  kernel<<<blocks, kThreads, sizeof(BlockwiseShared<S>), stream>>>(maps, squares, EpilogueScales{}, before,
                                                                   order);
  PRECBENCH_CHECK(cudaGetLastError());
}

using E4m3 = __nv_fp8_e4m3;
using E5m2 = __nv_fp8_e5m2;

template <class A, bool kSquare, Store kStore, int kRows, int kColumns, int kStages, int kCluster,
          int kDBoxes>
constexpr BlockwiseKernel kernel_of(const char* name) {
  return {.name = name,
          .a = std::is_same_v<A, E4m3> ? DType::e4m3 : DType::e5m2,
          .b = DType::e4m3,
          .d = is_f32(kStore) ? DType::f32 : DType::bf16,
          .square_b = kSquare,
          .accumulate = kStore == Store::f32_add || kStore == Store::bf16_add,
          .launch = launch<BlockwiseShape<A, E4m3, kSquare ? Scales::block_128x128 : Scales::block_1x128,
                                          kStore, kRows, kColumns, kStages, kCluster, kDBoxes>>};
}

// The large tile reads less per GEMM, and even less in pairs; the small one wastes less of a small problem.
template <class A, bool kSquare, Store kStore>
constexpr BlockwiseKernel kLarge = kernel_of<A, kSquare, kStore, 256, 128, 4, 1, 1>("own 256x128");
template <class A, bool kSquare, Store kStore>
constexpr BlockwiseKernel kPair = kernel_of<A, kSquare, kStore, 256, 128, 4, 2, 1>("own 256x128 in pairs");
template <class A, bool kSquare, Store kStore>
constexpr BlockwiseKernel kSmall = kernel_of<A, kSquare, kStore, 128, 128, 5, 1, 2>("own 128x128");

// Activations and gradients with 1x128 scales by weights with 128x128: BF16 results. Weight gradients: 1x128
// by 1x128. A gradient is always A, so only A needs E5M2.
constexpr BlockwiseKernel kKernels[] = {
    kLarge<E4m3, true, Store::bf16>,      kPair<E4m3, true, Store::bf16>,
    kSmall<E4m3, true, Store::bf16>,      kLarge<E4m3, false, Store::bf16>,
    kSmall<E4m3, false, Store::bf16>,     kLarge<E4m3, false, Store::bf16_add>,
    kSmall<E4m3, false, Store::bf16_add>, kLarge<E4m3, false, Store::f32>,
    kSmall<E4m3, false, Store::f32>,      kLarge<E4m3, false, Store::f32_add>,
    kSmall<E4m3, false, Store::f32_add>,  kLarge<E5m2, true, Store::bf16>,
    kPair<E5m2, true, Store::bf16>,       kSmall<E5m2, true, Store::bf16>,
    kLarge<E5m2, false, Store::bf16>,     kSmall<E5m2, false, Store::bf16>,
    kLarge<E5m2, false, Store::bf16_add>, kSmall<E5m2, false, Store::bf16_add>,
    kLarge<E5m2, false, Store::f32>,      kSmall<E5m2, false, Store::f32>,
    kLarge<E5m2, false, Store::f32_add>,  kSmall<E5m2, false, Store::f32_add>};

}  // namespace

std::span<const BlockwiseKernel> hopper_blockwise_kernels() { return kKernels; }

}  // namespace precbench
