// Shared by the launches of Hopper GEMMs: tensor maps of operands and scales, and the number of resident
// blocks.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/check.h"
#include "kernels/cuda/hopper/tensor_map.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench::hopper {

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

/// 1x128 scales, [k blocks][rows]; with the padding, which is zero.
inline CUtensorMap map_of_scales(const float* scales, std::int64_t rows, std::int64_t k, int box_rows) {
  const std::int64_t blocks = scale_blocks(Granularity::block_1x128, k);
  return map_of<float>(scales, blocks, scale_count(Granularity::block_1x128, rows, k) / blocks, 1, box_rows,
                       false);
}

inline int tiles(std::int64_t length, int tile) { return static_cast<int>((length + tile - 1) / tile); }

/// Returns the number of clusters of a kernel resident at one time on this device, one block per
/// multiprocessor. Also sets the kernel's shared memory limit.
template <class... Arguments>
int resident_clusters(void (*kernel)(Arguments...), int cluster, int threads, int shared_bytes) {
  PRECBENCH_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  int device = 0, multiprocessors = 0;
  PRECBENCH_CHECK(cudaGetDevice(&device));
  PRECBENCH_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  if (cluster == 1) return multiprocessors;
  // Less than the number of multiprocessors if they cannot all be paired: a waiting cluster would double the
  // time.
  cudaLaunchAttribute of_cluster{};
  of_cluster.id = cudaLaunchAttributeClusterDimension;
  of_cluster.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(multiprocessors / cluster * cluster));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.attrs = &of_cluster;
  config.numAttrs = 1;
  int clusters = 0;
  PRECBENCH_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
  return clusters;
}

}  // namespace precbench::hopper
