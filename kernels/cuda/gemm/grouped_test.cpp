// Our own grouped GEMMs, each kernel separately: against FP64 on the same codes and scales, writes outside D,
// a NaN, and routings that change under a captured launch. grouped_matmul_test.cpp tests the op.
#include "kernels/cuda/gemm/grouped_testing.h"

namespace precbench {
namespace {

using namespace testing;

/// Checks one launch, and two into the same D.
void check_exact(CudaDevice& device, const GroupedProblem& p) {
  for (const int times : {1, 2}) {
    INFO(times << " launches");
    OnDevice there(device, p);
    const std::vector<std::byte> before = filled(p);
    std::vector<std::byte> bits = before;
    for (int i = 0; i < times; ++i) bits = there.run(bits);
    const std::int64_t skipped = kGuard * p.gemm.columns;
    const Deviation deviation = deviation_of(p, bits, element(before, p.kernel.d, skipped), times);
    const double error = std::sqrt(deviation.error / static_cast<double>(deviation.elements)),
                 naive = std::sqrt(deviation.naive / static_cast<double>(deviation.naive_elements));
    INFO("error " << error << ", naive " << naive);
    // Half an FP32 last place is allowed: BF16's sums are closer to the exact result than that.
    CHECK(error <= std::max(2 * naive, 0x1p-24));
    CHECK(deviation.wrong == 0);
    // Before D, after it, and after the last group.
    const auto guard = static_cast<std::ptrdiff_t>(bytes_of(p.kernel.d, skipped));
    const auto tail = static_cast<std::ptrdiff_t>(
        p.gemm.over_k ? 0 : bytes_of(p.kernel.d, (p.gemm.capacity - p.offsets.back()) * p.gemm.columns));
    CHECK(std::all_of(bits.begin(), bits.begin() + guard, [](std::byte b) { return b == kFill; }));
    CHECK(std::all_of(bits.end() - guard - tail, bits.end(), [](std::byte b) { return b == kFill; }));
  }
}

TEST_CASE("grouped: every own kernel is as exact as its precision and writes only its groups",
          "[gpu][matmul][grouped]") {
  for_problems(check_exact);
  for_problems(check_exact, kAllToOne);
}

TEST_CASE("grouped: a NaN reaches only its row of its group", "[gpu][matmul][grouped]") {
  for_problems([](CudaDevice& device, const GroupedProblem& p) {
    constexpr std::size_t kGroup = 4;
    constexpr std::int64_t kRow = 7, kAt = 66;  // index in k; within the group, if groups are of k
    const std::vector<std::byte> clean = OnDevice(device, p).run(filled(p));
    GroupedProblem marked = p;
    const bool over_k = p.gemm.over_k;
    const std::size_t at = p.layout_a.at(p.a.rows, p.a.k, over_k ? kRow : p.offsets[kGroup] + kRow,
                                         over_k ? p.offsets[kGroup] + kAt : kAt);
    const std::uint16_t nan = p.kernel.a == DType::bf16 ? 0x7fff : 0x7f;  // in both FP8 formats
    const std::size_t bytes = p.kernel.a == DType::bf16 ? 2 : 1;
    std::memcpy(&marked.a.data[at * bytes], &nan, bytes);
    const std::vector<std::byte> bits = OnDevice(device, marked).run(filled(p));
    const std::int64_t skipped = kGuard * p.gemm.columns;
    std::int64_t wrong = 0;
    for_rows(p, [&](std::int64_t g, std::int64_t r, std::int64_t first) {
      std::int64_t mine = 0;
      for (std::int64_t c = 0; c < p.gemm.columns; ++c) {
        const double was = element(clean, p.kernel.d, skipped + first + c),
                     is = element(bits, p.kernel.d, skipped + first + c);
        mine += g == kGroup && r == kRow ? !std::isnan(is) : is != was;
      }
#pragma omp atomic
      wrong += mine;
    });
    CHECK(wrong == 0);
  });
}

TEST_CASE("grouped: a captured launch replays with another routing", "[gpu][matmul][grouped]") {
  for_problems([](CudaDevice& device, const GroupedProblem& p) {
    CHECK(OnDevice(device, p).replay(filled(p), kOtherCounts) == OnDevice(device, p).run(filled(p)));
  });
}

TEST_CASE("grouped: an unsupported problem is not started", "[matmul][grouped]") {
  alignas(16) static std::byte some[16];
  const Groups groups{.offsets = {some, DType::i32, 1, 3},
                      .counts = {some, DType::i32, 1, 2},
                      .row_of = {some, DType::i32, 512, 1},
                      .source = {some, DType::i32, 1, 512},
                      .pad = 128,
                      .rows_expected = 512};
  ops::GroupedMatmul op{.d = {some, DType::bf16, 512, 256},
                        .a = {{}, {some, DType::bf16, 512, 128}, {}},
                        .b = {{}, {some, DType::bf16, 512, 128}, {}},
                        .groups = groups};
  CHECK_FALSE(launch_grouped(op, 80, nullptr));   // another GPU
  CHECK_FALSE(launch_grouped(op, 100, nullptr));  // a later one
  op.groups.pad = 16;
  CHECK_FALSE(launch_grouped(op, 90, nullptr));
  op.groups.pad = 128;
  op.options.accumulate = true;
  CHECK_FALSE(launch_grouped(op, 90, nullptr));
  op.options.accumulate = false;
  op.a.format = op.b.format = testing::kMx;
  CHECK_FALSE(launch_grouped(op, 90, nullptr));
}

}  // namespace
}  // namespace precbench
