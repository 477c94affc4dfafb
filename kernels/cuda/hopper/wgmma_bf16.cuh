// BF16 wgmma instructions of a warpgroup: 64 rows of A by N columns of B, K = 16, FP32 accumulators.
//
// wgmma.cuh describes issue, waiting and accumulator layout. An operand in shared memory consists of boxes as
// written by TMA with 128-byte swizzle: rows of 64 numbers, 8 rows in 1,024 bytes. It is read in one of two
// ways:
//
//   K-major   a box row is a row of A or a column of B, and holds 64 of k: the next 16 are kKMajorStep on
//             (smem_descriptor of wgmma.cuh; the next 64 of k are in the next box)
//   MN-major  a box row is one index k and holds 64 rows of A or columns of B: the next 16 of k are
//             kMnMajorStep further; columns beyond 64 are in the next box (mn_major_descriptor)
//
// A may also be in registers: the accumulators of 16 columns of an earlier wgmma, rounded, are A for 16 of k.
#pragma once

#include "kernels/cuda/hopper/wgmma.cuh"

namespace precbench::hopper {

constexpr int kBoxColumns = kTileRowBytes / 2;  ///< BF16 numbers in a row of a box
constexpr int kWgmmaKBf16 = 16;                 ///< K of one instruction
/// Increment of a descriptor for the next kWgmmaKBf16 of k.
constexpr std::uint64_t kKMajorStep = kWgmmaKBf16 * 2 / 16, kMnMajorStep = kWgmmaKBf16 * kTileRowBytes / 16;

/// Returns the descriptor of MN-major boxes that lie `box_bytes` apart.
__device__ inline std::uint64_t mn_major_descriptor(const void* box, int box_bytes) {
  return smem_descriptor(box) | static_cast<std::uint64_t>(box_bytes / 16) << 16;
}

// Operand lists of the instructions.
#define PRECBENCH_SUMS_8(i)                                                                               \
  "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3]), "+f"(sum[i + 4]), "+f"(sum[i + 5]), \
      "+f"(sum[i + 6]), "+f"(sum[i + 7])
#define PRECBENCH_RUN(i) PRECBENCH_SUMS_8(i), PRECBENCH_SUMS_8(i + 8)
#define PRECBENCH_SUMS_16 PRECBENCH_RUN(0)
#define PRECBENCH_SUMS_32 PRECBENCH_SUMS_16, PRECBENCH_RUN(16)
#define PRECBENCH_SUMS_40 PRECBENCH_SUMS_32, PRECBENCH_SUMS_8(32)
#define PRECBENCH_SUMS_48 PRECBENCH_SUMS_32, PRECBENCH_RUN(32)
#define PRECBENCH_SUMS_64 PRECBENCH_SUMS_48, PRECBENCH_RUN(48)
#define PRECBENCH_SUMS_80 PRECBENCH_SUMS_64, PRECBENCH_RUN(64)
#define PRECBENCH_SUMS_96 PRECBENCH_SUMS_80, PRECBENCH_RUN(80)
#define PRECBENCH_SUMS_128 PRECBENCH_SUMS_96, PRECBENCH_RUN(96), PRECBENCH_RUN(112)
#define PRECBENCH_NAMES_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define PRECBENCH_NAMES_32 \
  PRECBENCH_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define PRECBENCH_NAMES_40 PRECBENCH_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define PRECBENCH_NAMES_48 \
  PRECBENCH_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define PRECBENCH_NAMES_64 \
  PRECBENCH_NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define PRECBENCH_NAMES_80 \
  PRECBENCH_NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define PRECBENCH_NAMES_96 \
  PRECBENCH_NAMES_80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define PRECBENCH_NAMES_128                                                                           \
  PRECBENCH_NAMES_96                                                                                  \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115," \
  "%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

/// sum = (add ? sum : 0) + A B over K = 16; A and B are in shared memory, each K-major or MN-major.
template <bool kMnMajorA = false, bool kMnMajorB = false, int kCount>
__device__ inline void wgmma_bf16(float (&sum)[kCount], std::uint64_t a, std::uint64_t b, bool add) {
  static_assert(kCount == 16 || kCount == 32 || kCount == 40 || kCount == 48 || kCount == 64 ||
                kCount == 80 || kCount == 96 || kCount == 128);
#define PRECBENCH_PRODUCT(count, columns, a_at, b_at, add_at, mn_major_a, mn_major_b)                    \
  if constexpr (kCount == count)                                                                         \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" add_at                                               \
               ", 0;\n"                                                                                  \
               "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 {" PRECBENCH_NAMES_##count \
               "}, %" a_at ", %" b_at ", p, 1, 1, %" mn_major_a ", %" mn_major_b ";\n}"                  \
               : PRECBENCH_SUMS_##count                                                                  \
               : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(kMnMajorA)),           \
                 "n"(static_cast<int>(kMnMajorB)))
  PRECBENCH_PRODUCT(16, "32", "16", "17", "18", "19", "20");
  PRECBENCH_PRODUCT(32, "64", "32", "33", "34", "35", "36");
  PRECBENCH_PRODUCT(40, "80", "40", "41", "42", "43", "44");
  PRECBENCH_PRODUCT(48, "96", "48", "49", "50", "51", "52");
  PRECBENCH_PRODUCT(64, "128", "64", "65", "66", "67", "68");
  PRECBENCH_PRODUCT(80, "160", "80", "81", "82", "83", "84");
  PRECBENCH_PRODUCT(96, "192", "96", "97", "98", "99", "100");
  PRECBENCH_PRODUCT(128, "256", "128", "129", "130", "131", "132");
#undef PRECBENCH_PRODUCT
}

/// The same with A in registers, four words of two numbers each; always accumulates.
template <bool kMnMajorB = false, int kCount>
__device__ inline void wgmma_bf16(float (&sum)[kCount], const std::uint32_t* a, std::uint64_t b) {
  static_assert(kCount == 32 || kCount == 64 || kCount == 128);
#define PRECBENCH_PRODUCT(count, columns, a0, a1, a2, a3, b_at, mn_major_b)                              \
  if constexpr (kCount == count)                                                                         \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 {" PRECBENCH_NAMES_##count \
               "}, {%" a0 ",%" a1 ",%" a2 ",%" a3 "}, %" b_at ", 1, 1, 1, %" mn_major_b ";"              \
               : PRECBENCH_SUMS_##count                                                                  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(static_cast<int>(kMnMajorB)))
  PRECBENCH_PRODUCT(32, "64", "32", "33", "34", "35", "36", "37");
  PRECBENCH_PRODUCT(64, "128", "64", "65", "66", "67", "68", "69");
  PRECBENCH_PRODUCT(128, "256", "128", "129", "130", "131", "132", "133");
#undef PRECBENCH_PRODUCT
}

#undef PRECBENCH_NAMES_128
#undef PRECBENCH_NAMES_96
#undef PRECBENCH_NAMES_80
#undef PRECBENCH_NAMES_64
#undef PRECBENCH_NAMES_48
#undef PRECBENCH_NAMES_40
#undef PRECBENCH_NAMES_32
#undef PRECBENCH_NAMES_16
#undef PRECBENCH_SUMS_128
#undef PRECBENCH_SUMS_96
#undef PRECBENCH_SUMS_80
#undef PRECBENCH_SUMS_64
#undef PRECBENCH_SUMS_48
#undef PRECBENCH_SUMS_40
#undef PRECBENCH_SUMS_32
#undef PRECBENCH_SUMS_16
#undef PRECBENCH_RUN
#undef PRECBENCH_SUMS_8

}  // namespace precbench::hopper
