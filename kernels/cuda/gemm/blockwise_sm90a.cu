// The Hopper GEMMs of this build, and how one is launched. Compiled for sm_90a alone (kernels/CMakeLists.txt).
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/gemm/blockwise.h"
#include "kernels/cuda/gemm/blockwise_sm90a.cuh"
#include "kernels/cuda/hopper/tensor_map.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench {
namespace {

using namespace hopper;

/// Tile rows of a band: eight tiles of 256 rows, and a wave of 132 multiprocessors is about as high as wide.
constexpr int kBandRows = 2048;

template <class T>
constexpr CUtensorMapDataType kMapType = CU_TENSOR_MAP_DATA_TYPE_UINT8;
template <>
constexpr CUtensorMapDataType kMapType<float> = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
template <>
constexpr CUtensorMapDataType kMapType<__nv_bfloat16> = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;

template <class T>
CUtensorMap map_of(const void* data, std::int64_t rows, std::int64_t columns, int box_rows, int box_columns,
                   bool swizzled) {
  return tensor_map({data, kMapType<T>, sizeof(T), rows, columns, columns, box_rows, box_columns, swizzled});
}

/// Scales of 1x128, [k blocks][rows]; with the padding, which is zero.
CUtensorMap map_of_scales(const float* scales, std::int64_t rows, std::int64_t k, int box_rows) {
  const std::int64_t blocks = scale_blocks(Granularity::block_1x128, k);
  return map_of<float>(scales, blocks, scale_count(Granularity::block_1x128, rows, k) / blocks, 1, box_rows,
                       false);
}

/// Clusters of a kernel that run at one time on this device, a block on each multiprocessor.
template <class S>
int resident_clusters() {
  int device = 0, multiprocessors = 0;
  PRECBENCH_CHECK(cudaGetDevice(&device));
  PRECBENCH_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  if constexpr (S::kCluster == 1) return multiprocessors;
  // Less than the multiprocessors would hold where they do not pair up: a cluster that waits would double the time.
  cudaLaunchAttribute of_cluster{};
  of_cluster.id = cudaLaunchAttributeClusterDimension;
  of_cluster.val.clusterDim = {S::kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(multiprocessors / S::kCluster * S::kCluster));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(Shared<S>);
  config.attrs = &of_cluster;
  config.numAttrs = 1;
  int clusters = 0;
  PRECBENCH_CHECK(cudaOccupancyMaxActiveClusters(&clusters, multiply_blockwise<S, DenseOrder>, &config));
  return clusters;
}

int tiles(std::int64_t length, int tile) { return static_cast<int>((length + tile - 1) / tile); }

template <class S>
void launch(const BlockwiseGemm& gemm, const BlockwiseBuffers& on, cudaStream_t stream) {
  using D = std::conditional_t<is_f32(S::kStore), float, __nv_bfloat16>;
  const std::int64_t M = gemm.M, N = gemm.N, K = gemm.K;
  Maps maps{.a = map_of<std::uint8_t>(on.a, M, K, S::kRows / S::kCluster, kBlockK, true),
            .b = map_of<std::uint8_t>(on.b, N, K, S::kColumns, kBlockK, true),
            .a_scale = map_of_scales(on.a_scale, M, K, S::kRows),
            .b_scale = {},
            .d = map_of<D>(on.d, M, N, kDRows, S::kDColumns, true)};
  SquareScales squares{};
  if constexpr (S::kSquare)
    squares = {on.b_scale, tiles(N, 128),
               static_cast<int>(scale_count(Granularity::block_128x128, N, K) / tiles(N, 128))};
  else
    maps.b_scale = map_of_scales(on.b_scale, N, K, S::kColumns);
  const Before before{static_cast<const __nv_bfloat16*>(on.d), static_cast<int>(M), static_cast<int>(N)};
  const DenseOrder order{tiles(M, S::kRows), tiles(N, S::kColumns * S::kCluster), kBandRows / S::kRows,
                         tiles(K, kBlockK)};
  const auto kernel = multiply_blockwise<S, DenseOrder>;
  PRECBENCH_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared<S>)));
  const int blocks = std::min(resident_clusters<S>(), order.row_tiles * order.column_tiles) * S::kCluster;
  kernel<<<blocks, kThreads, sizeof(Shared<S>), stream>>>(maps, squares, before, order);
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
          .launch = launch<Shape<A, E4m3, kSquare, kStore, kRows, kColumns, kStages, kCluster, kDBoxes>>};
}

// The large tile reads less for a product, in pairs still less; the small one wastes less of a small problem.
template <class A, bool kSquare, Store kStore>
constexpr BlockwiseKernel kLarge = kernel_of<A, kSquare, kStore, 256, 128, 4, 1, 1>("own 256x128");
template <class A, bool kSquare, Store kStore>
constexpr BlockwiseKernel kPair = kernel_of<A, kSquare, kStore, 256, 128, 4, 2, 1>("own 256x128 in pairs");
template <class A, bool kSquare, Store kStore>
constexpr BlockwiseKernel kSmall = kernel_of<A, kSquare, kStore, 128, 128, 5, 1, 2>("own 128x128");

// Activations and gradients with 1x128 scales by weights with 128x128: BF16 results. Weight gradients: 1x128 by 1x128.
// A gradient is A, so that E5M2 is asked of it alone.
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
