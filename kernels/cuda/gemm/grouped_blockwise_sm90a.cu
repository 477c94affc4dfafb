// Grouped expert GEMMs in FP8 with FP32 accumulation: the dense kernel of blockwise_sm90a.cuh with a tile
// order that reads the groups. Compiled for sm_90a only (kernels/CMakeLists.txt).
#include "kernels/cuda/gemm/blockwise_sm90a.cuh"
#include "kernels/cuda/gemm/grouped_launch_sm90a.h"

namespace precbench {
namespace {

using namespace hopper;

template <class S>
void launch_blockwise(const GroupedGemm& gemm, const GroupedBuffers& on, cudaStream_t stream) {
  using D = std::conditional_t<is_f32(S::kStore), float, __nv_bfloat16>;
  const bool over_k = gemm.over_k;
  const std::int64_t a_rows = over_k ? gemm.rows : gemm.capacity,
                     b_rows = over_k ? gemm.columns : gemm.groups * gemm.columns,
                     k = over_k ? gemm.capacity : gemm.depth;
  BlockwiseMaps maps{.a = map_of<std::uint8_t>(on.a, a_rows, k, S::kRows, S::kBlockK, true),
                     .b = map_of<std::uint8_t>(on.b, b_rows, k, S::kColumns, S::kBlockK, true),
                     .a_scale = {},
                     .b_scale = {},
                     .d = map_of<D>(on.d, rows_of_d(gemm), gemm.columns, kUnitRows, S::kDColumns, true)};
  SquareScales squares{};
  if constexpr (!S::kEpilogueScales) maps.a_scale = map_of_scales(on.a_scale, a_rows, k, S::kRows);
  if constexpr (S::kBlocks) maps.b_scale = map_of_scales(on.b_scale, b_rows, k, S::kColumns);
  if constexpr (S::kSquare)
    squares = {on.b_scale, tiles(gemm.columns, 128),
               static_cast<int>(scale_count(Granularity::block_128x128, gemm.columns, k) /
                                tiles(gemm.columns, 128))};
  const auto kernel = multiply<BlockwiseMainloop<S>, GroupedOrder>;
  const int multiprocessors = resident_clusters(kernel, 1, kThreads, sizeof(BlockwiseShared<S>));
  const auto blocks = static_cast<int>(std::min<std::int64_t>(multiprocessors, most_tiles<S>(gemm)));
  kernel<<<blocks, kThreads, sizeof(BlockwiseShared<S>), stream>>>(
      maps, squares, S::kEpilogueScales ? epilogue_scales_of(gemm, on) : EpilogueScales{},
      before_of(gemm, on), grouped_order<S>(gemm, on, false));
  PRECBENCH_CHECK(cudaGetLastError());
}

using E4m3 = __nv_fp8_e4m3;
using E5m2 = __nv_fp8_e5m2;

constexpr int kPrefetchFrom = 16;  ///< blocks of k: with 8 it costs more than it gives

/// For FP32 accumulation into D, the epilogue has four boxes per warpgroup instead of a fourth stage: it then
/// does not wait for TMA's reads of D.
template <class A, Scales kScales, Store kStore>
using GroupedShape =
    std::conditional_t<kStore == Store::f32_add,
                       BlockwiseShape<A, E4m3, kScales, kStore, 256, 128, 3, 1, 4, kPrefetchFrom>,
                       BlockwiseShape<A, E4m3, kScales, kStore, 256, 128, 4, 1, 1>>;

template <class A, Scales kScales, Store kStore>
constexpr GroupedKernel blockwise(bool over_rows, bool over_k) {
  return {.name = "own grouped 256x128",
          .a = kDTypeOf<A>,
          .b = DType::e4m3,
          .d = is_f32(kStore) ? DType::f32 : DType::bf16,
          .scales = kScales == Scales::block_128x128 ? GroupedScales::block_128x128
                    : kScales == Scales::block_1x128 ? GroupedScales::block_1x128
                                                     : GroupedScales::row_or_tensor,
          .a_mn_major = false,
          .b_mn_major = false,
          .over_rows = over_rows,
          .over_k = over_k,
          .accumulate = adds(kStore),
          .fast = false,
          .launch = launch_blockwise<GroupedShape<A, kScales, kStore>>};
}

// A gradient is always A, so only A needs E5M2.
constexpr GroupedKernel kKernels[] = {blockwise<E4m3, Scales::block_128x128, Store::bf16>(true, false),
                                      blockwise<E4m3, Scales::block_1x128, Store::bf16>(false, true),
                                      blockwise<E4m3, Scales::block_1x128, Store::bf16_add>(false, true),
                                      blockwise<E4m3, Scales::block_1x128, Store::f32>(false, true),
                                      blockwise<E4m3, Scales::block_1x128, Store::f32_add>(false, true),
                                      blockwise<E4m3, Scales::row_or_tensor, Store::bf16>(true, true),
                                      blockwise<E4m3, Scales::row_or_tensor, Store::bf16_add>(false, true),
                                      blockwise<E4m3, Scales::row_or_tensor, Store::f32>(true, true),
                                      blockwise<E4m3, Scales::row_or_tensor, Store::f32_add>(false, true),
                                      blockwise<E5m2, Scales::row_or_tensor, Store::bf16>(true, true),
                                      blockwise<E5m2, Scales::row_or_tensor, Store::bf16_add>(false, true),
                                      blockwise<E5m2, Scales::row_or_tensor, Store::f32>(true, true),
                                      blockwise<E5m2, Scales::row_or_tensor, Store::f32_add>(false, true)};

}  // namespace

std::span<const GroupedKernel> hopper_blockwise_grouped_kernels() { return kKernels; }

}  // namespace precbench
