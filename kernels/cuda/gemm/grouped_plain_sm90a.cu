// Grouped expert GEMMs that accumulate in the tensor cores: BF16, and FP8 with fast accumulation, with the
// kernel of plain_sm90a.cuh. Compiled for sm_90a only (kernels/CMakeLists.txt).
#include "kernels/cuda/gemm/grouped_launch_sm90a.h"
#include "kernels/cuda/gemm/plain_sm90a.cuh"

namespace precbench {
namespace {

using namespace hopper;

/// Returns an operand's map: rows of k, or k rows.
template <class T>
CUtensorMap boxes_of(const void* data, std::int64_t rows, std::int64_t k, bool mn_major) {
  return map_of<T>(data, mn_major ? k : rows, mn_major ? rows : k, kBoxRows, kTileRowBytes / sizeof(T), true);
}

template <class S>
void launch_plain(const GroupedGemm& gemm, const GroupedBuffers& on, cudaStream_t stream) {
  using D = std::conditional_t<is_f32(S::kStore), float, __nv_bfloat16>;
  const bool over_k = gemm.over_k;
  PlainMaps maps{.a = boxes_of<typename S::A>(on.a, over_k ? gemm.rows : gemm.capacity,
                                              over_k ? gemm.capacity : gemm.depth, S::kAMnMajor),
                 .b = {},
                 .d = map_of<D>(on.d, rows_of_d(gemm), gemm.columns, kUnitRows, S::kDColumns, true)};
  // An MN-major stack is one matrix of all groups' k; otherwise of all groups' rows.
  if (over_k)
    maps.b = boxes_of<typename S::B>(on.b, gemm.columns, gemm.capacity, S::kBMnMajor);
  else if (S::kBMnMajor)
    maps.b = boxes_of<typename S::B>(on.b, gemm.columns, gemm.groups * gemm.depth, true);
  else
    maps.b = boxes_of<typename S::B>(on.b, gemm.groups * gemm.columns, gemm.depth, false);
  const auto kernel = multiply<PlainMainloop<S>, GroupedOrder>;
  const int clusters = resident_clusters(kernel, S::kCluster, kThreads, sizeof(PlainShared<S>));
  const auto blocks = static_cast<int>(std::min<std::int64_t>(clusters, most_tiles<S>(gemm))) * S::kCluster;
  kernel<<<blocks, kThreads, sizeof(PlainShared<S>), stream>>>(
      maps, {}, epilogue_scales_of(gemm, on), before_of(gemm, on), grouped_order<S>(gemm, on, S::kBMnMajor));
  PRECBENCH_CHECK(cudaGetLastError());
}

using Bf16 = __nv_bfloat16;
using E4m3 = __nv_fp8_e4m3;

constexpr int kCluster = 2, kLag = 2;

template <class A, class B, bool kAMnMajor, bool kBMnMajor, Store kStore>
constexpr GroupedKernel plain(bool over_rows, bool over_k) {
  constexpr bool kScaled = !std::is_same_v<A, Bf16>;
  return {.name = "own grouped 128x256",
          .a = kDTypeOf<A>,
          .b = kDTypeOf<B>,
          .d = is_f32(kStore) ? DType::f32 : DType::bf16,
          .scales = kScaled ? GroupedScales::row_or_tensor : GroupedScales::none,
          .a_mn_major = kAMnMajor,
          .b_mn_major = kBMnMajor,
          .over_rows = over_rows,
          .over_k = over_k,
          .accumulate = adds(kStore),
          .fast = kScaled,
          .launch = launch_plain<PlainShape<A, B, kAMnMajor, kBMnMajor, kScaled, kStore, kCluster, kLag>>};
}

// fprop has both operands K-major, dgrad the weights MN-major, wgrad both; operands dequantized to BF16 are
// always K-major.
constexpr GroupedKernel kKernels[] = {plain<Bf16, Bf16, false, false, Store::bf16>(true, true),
                                      plain<Bf16, Bf16, false, true, Store::bf16>(true, false),
                                      plain<Bf16, Bf16, true, true, Store::bf16>(false, true),
                                      plain<Bf16, Bf16, true, true, Store::bf16_add>(false, true),
                                      plain<Bf16, Bf16, true, true, Store::f32>(false, true),
                                      plain<Bf16, Bf16, true, true, Store::f32_add>(false, true),
                                      plain<Bf16, Bf16, false, false, Store::bf16_add>(false, true),
                                      plain<Bf16, Bf16, false, false, Store::f32>(true, true),
                                      plain<Bf16, Bf16, false, false, Store::f32_add>(false, true),
                                      plain<E4m3, E4m3, false, false, Store::bf16>(true, false)};

}  // namespace

std::span<const GroupedKernel> hopper_plain_grouped_kernels() { return kKernels; }

}  // namespace precbench
