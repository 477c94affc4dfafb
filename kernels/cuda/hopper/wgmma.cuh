// FP8 wgmma instructions of a warpgroup: 64 rows of A by 128 or 256 rows of B, both in shared memory, K = 32.
//
// A tile in shared memory has rows of 128 bytes along k, as written by TMA with 128-byte swizzle: in each 8
// rows (1,024 bytes, aligned to that) 16-byte piece p of row r is at p ^ r. An instruction addresses its
// operands by a descriptor and runs asynchronously:
//
//   wgmma_fence()                               accumulators belong to the tensor cores from here
//   wgmma_fp8<...>(sum, a, b, false)            first of a sum: overwrites the accumulators
//   wgmma_fp8<...>(sum, a + kNextK, ...)        more of k
//   wgmma_commit_group(); wgmma_wait_group(sum) accumulators belong to the threads again
//
// Accumulator layout: in thread t of the warpgroup, sum[4 g + i] is row 16 (t / 32) + t % 32 / 4 + 8 (i / 2)
// and column 8 g + 2 (t % 4) + i % 2. Compiled for sm_90a only.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/hopper/barrier.cuh"

namespace precbench::hopper {

constexpr int kTileRowBytes = 128;  ///< of a swizzled tile
constexpr int kWgmmaK = 32;         ///< K of one instruction
/// Increment of a descriptor for the next kWgmmaK of k.
constexpr std::uint64_t kNextK = kWgmmaK / 16;

/// Returns the descriptor of a swizzled tile at `tile` (aligned to 1,024 bytes), for the rows that begin
/// there.
__device__ inline std::uint64_t smem_descriptor(const void* tile) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t kEightRows = std::uint64_t{8 * kTileRowBytes / 16} << 32;
  return kSwizzle128 | kEightRows | (shared_address(tile) & 0x3FFFF) >> 4;
}

/// Returns the descriptor `rows` rows further down, a multiple of 8. Only the low word changes: addresses
/// have 18 bits.
__device__ inline std::uint64_t descriptor_at_row(std::uint64_t descriptor, int rows) {
  const auto low =
      static_cast<std::uint32_t>(descriptor) + static_cast<std::uint32_t>(rows) * (kTileRowBytes / 16);
  return descriptor >> 32 << 32 | low;
}

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits for all but the newest `kPending` wgmma groups.
template <int kPending>
__device__ inline void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Compiler fence on `values`: computations that write them stay before it, reads stay after it.
template <int kCount>
__device__ inline void warpgroup_fence_operand(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

/// Waits for all but the newest `kPending` wgmma groups; the compiler must not read `sum` before.
template <int kPending = 0, int kCount>
__device__ inline void wgmma_wait_group(float (&sum)[kCount]) {
  wgmma_wait_group<kPending>();
  warpgroup_fence_operand(sum);
}

// Operand lists of the instructions: eight accumulators per line.
#define PRECBENCH_SUM8(i)                                                                                 \
  "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3]), "+f"(sum[i + 4]), "+f"(sum[i + 5]), \
      "+f"(sum[i + 6]), "+f"(sum[i + 7])
#define PRECBENCH_SUM32(i) \
  PRECBENCH_SUM8(i), PRECBENCH_SUM8(i + 8), PRECBENCH_SUM8(i + 16), PRECBENCH_SUM8(i + 24)
#define PRECBENCH_NAMES_64                                                                         \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25," \
  "%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,"   \
  "%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

#define PRECBENCH_WGMMA(types)                                                     \
  asm volatile(                                                                    \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                 \
      "wgmma.mma_async.sync.aligned.m64n128k32.f32." types " {" PRECBENCH_NAMES_64 \
      "}, %64, %65, p, 1, 1;\n}"                                                   \
      : PRECBENCH_SUM32(0), PRECBENCH_SUM32(32)                                    \
      : "l"(a), "l"(b), "r"(static_cast<int>(add)))

/// sum = (add ? sum : 0) + A B^T over K = 32; A and B are __nv_fp8_e4m3 or __nv_fp8_e5m2.
template <class A, class B>
__device__ inline void wgmma_fp8(float (&sum)[64], std::uint64_t a, std::uint64_t b, bool add) {
  constexpr bool kA4 = std::is_same_v<A, __nv_fp8_e4m3>, kB4 = std::is_same_v<B, __nv_fp8_e4m3>;
  if constexpr (kA4 && kB4)
    PRECBENCH_WGMMA("e4m3.e4m3");
  else if constexpr (kA4)
    PRECBENCH_WGMMA("e4m3.e5m2");
  else if constexpr (kB4)
    PRECBENCH_WGMMA("e5m2.e4m3");
  else
    PRECBENCH_WGMMA("e5m2.e5m2");
}

#define PRECBENCH_NAMES_128                                                                            \
  PRECBENCH_NAMES_64                                                                                   \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,"  \
  "%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109," \
  "%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define PRECBENCH_WGMMA_256(types)                                                        \
  asm volatile(                                                                           \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"                                       \
      "wgmma.mma_async.sync.aligned.m64n256k32.f32." types " {" PRECBENCH_NAMES_128       \
      "}, %128, %129, p, 1, 1;\n}"                                                        \
      : PRECBENCH_SUM32(0), PRECBENCH_SUM32(32), PRECBENCH_SUM32(64), PRECBENCH_SUM32(96) \
      : "l"(a), "l"(b), "r"(static_cast<int>(add)))

/// The same for 256 rows of B; only E4M3 is needed.
template <class A, class B>
__device__ inline void wgmma_fp8(float (&sum)[128], std::uint64_t a, std::uint64_t b, bool add) {
  static_assert(std::is_same_v<A, __nv_fp8_e4m3> && std::is_same_v<B, __nv_fp8_e4m3>);
  PRECBENCH_WGMMA_256("e4m3.e4m3");
}

#undef PRECBENCH_WGMMA_256
#undef PRECBENCH_NAMES_128
#undef PRECBENCH_WGMMA
#undef PRECBENCH_NAMES_64
#undef PRECBENCH_SUM32
#undef PRECBENCH_SUM8

}  // namespace precbench::hopper
