// cuBLASLt's grouped call by itself: replay of a captured call with another routing, and its scratch size.
// grouped_matmul_test.cpp tests its results.
#include <string>
#include <vector>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/gemm/grouped.h"
#include "kernels/cuda/gemm/grouped_plans.h"
#include "kernels/device/buffers.h"
#include "kernels/gpu/gpu_testing.h"
#include "kernels/numerics/format_testing.h"
#include "kernels/numerics/recipe.h"
#include "kernels/numerics/scale_layout.h"
#include "kernels/testing/catch.h"

namespace precbench {
namespace {

// Hopper, data-center Blackwell and Thor; GeForce and workstation Blackwell have none.
static_assert(least_grouped_version(90) == 130400 && least_grouped_version(100) == 130300 &&
              least_grouped_version(103) == 130300 && least_grouped_version(110) == 130300);
static_assert(least_grouped_version(120) == 0 && least_grouped_version(121) == 0);

using Counts = std::vector<std::int32_t>;
const Counts kCounts = {0, 1, 127, 128, 129, 0, 300, 640};
const Counts kOtherCounts = {640, 0, 0, 300, 1, 129, 128, 127};

Counts offsets_of(const Counts& counts) {
  Counts offsets = {0};
  for (const std::int32_t count : counts)
    offsets.push_back(offsets.back() + static_cast<std::int32_t>(detail::padded(count, kGroupedPad)));
  return offsets;
}

/// Returns random BF16, quantized if a recipe requires it.
GemmOperand random_operand(CudaDevice& device, Buffers& memory, const QuantFormat& format, std::int64_t rows,
                           std::int64_t k, std::int64_t scales, std::uint64_t seed) {
  const Tensor value = memory.tensor(DType::bf16, rows, k);
  device.init_normal({value, 1.0f, seed, 0});
  if (!format.quantized()) return {{}, value, {}};
  const QuantizedTensor x{.value = value,
                          .rowwise = memory.quantized_copy(format, rows, k),
                          .amax_out = memory.tensor(DType::f32, 1, 1)};
  device.quantize({x});
  GemmOperand operand = x.rowwise;
  if (format.granularity == Granularity::tensor) {
    operand.scale = memory.tensor(DType::f32, 1, scales);
    device.fill({operand.scale, 0.01f});
  }
  return operand;
}

}  // namespace

TEST_CASE("GroupedPlans: a captured call replays with another routing", "[gpu][matmul][grouped]") {
  if (!gpu_here()) return;
  CudaDevice device(0), predicting(0);
  predicting.set_grouped("cublaslt");
  MatmulPlans plans(device);
  GroupedPlans grouped(device, plans.handle());
  const auto E = static_cast<std::int64_t>(kCounts.size());
  const std::int64_t N = 384, K = 256, capacity = offsets_of(kCounts).back() + kGroupedPad;
  int taken = 0;
  for (const char* name : {"bf16", "tensorwise", "blockwise", "mxfp8"})
    for (const GemmRole role : kGemmRoles) {
      INFO(name << " " << name_of(role));
      const Recipe recipe = find_recipe(name);
      const GemmRecipe& gemm = recipe.gemm(role);
      const bool wgrad = role == GemmRole::wgrad;
      Buffers memory(device);
      const Tensor offsets = memory.tensor(DType::i32, 1, E + 1), counts = memory.tensor(DType::i32, 1, E);
      const ops::GroupedMatmul op{.d = memory.tensor(DType::bf16, wgrad ? E * N : capacity, wgrad ? K : N),
                                  .a = wgrad ? random_operand(device, memory, gemm.a, N, capacity, 1, 1)
                                             : random_operand(device, memory, gemm.a, capacity, K, 1, 1),
                                  .b = wgrad ? random_operand(device, memory, gemm.b, K, capacity, 1, 2)
                                             : random_operand(device, memory, gemm.b, E * N, K, E, 2),
                                  .groups = {.offsets = offsets,
                                             .counts = counts,
                                             .row_of = {nullptr, DType::i32, capacity, 1},
                                             .source = {nullptr, DType::i32, 1, capacity},
                                             .pad = kGroupedPad,
                                             .rows_expected = capacity},
                                  .options = {role, gemm.fast_accum, false}};
      if (!grouped.takes(op)) continue;
      ++taken;
      const auto with = [&](const Counts& of) {
        device.upload(offsets, offsets_of(of).data());
        device.upload(counts, of.data());
        device.zero({op.d});
        device.synchronize();
      };
      const auto fetched = [&] {
        std::vector<std::byte> bits(static_cast<std::size_t>(op.d.bytes()));
        device.download(bits.data(), op.d);
        return bits;
      };
      with(kCounts);
      REQUIRE(grouped.run(op));
      // As predicted before memory is allocated.
      ops::GroupedMatmul planned = op;
      for (Tensor* t : {&planned.d, &planned.a.data, &planned.b.data}) t->data = nullptr;
      CHECK(predicting.scratch_of(planned)[0] * std::int64_t{sizeof(float)} == grouped.scratch_bytes(op));
      const std::vector<std::byte> direct = fetched();
      with(kOtherCounts);
      device.begin_capture();
      REQUIRE(grouped.run(op));
      const cudaGraphExec_t graph = device.end_capture().graph;
      PRECBENCH_CHECK(cudaGraphLaunch(graph, device.stream()));
      const std::vector<std::byte> other = fetched();
      with(kCounts);
      PRECBENCH_CHECK(cudaGraphLaunch(graph, device.stream()));
      CHECK(fetched() == direct);
      CHECK(other != direct);
      cudaGraphExecDestroy(graph);
    }
  if (taken == 0) WARN("skipped: no grouped call in cuBLASLt " << device.properties().cublaslt);
}

TEST_CASE("GroupedPlans: pairs of scales unknown to the grouped call are not supported",
          "[gpu][matmul][grouped]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  MatmulPlans plans(device);
  GroupedPlans grouped(device, plans.handle());
  const auto taken = [&](const QuantFormat& a, const QuantFormat& b, GemmRole role) {
    const bool wgrad = role == GemmRole::wgrad;
    Buffers memory(device);
    const auto operand = [&](const QuantFormat& format, std::int64_t rows, std::int64_t k) {
      return format.quantized() ? memory.quantized_copy(format, rows, k)
                                : GemmOperand{{}, memory.tensor(DType::bf16, rows, k), {}};
    };
    return grouped.takes({.d = memory.tensor(DType::bf16, 512, 256),
                          .a = operand(a, wgrad ? 256 : 512, wgrad ? 512 : 256),
                          .b = operand(b, wgrad ? 256 : 512, wgrad ? 512 : 256),
                          .groups = {.offsets = memory.tensor(DType::i32, 1, 3),
                                     .counts = memory.tensor(DType::i32, 1, 2),
                                     .row_of = {nullptr, DType::i32, 512, 1},
                                     .source = {nullptr, DType::i32, 1, 512},
                                     .pad = kGroupedPad,
                                     .rows_expected = 512},
                          .options = {role}});
  };
  using namespace testing;
  for (const GemmRole role : kGemmRoles) {
    CHECK_FALSE(taken(kRow, kRow, role));
    CHECK_FALSE(taken(kSquare, kBlock, role));
    CHECK_FALSE(taken(kBlock, role == GemmRole::wgrad ? kSquare : kBlock, role));
    if (!taken({}, {}, role)) WARN("skipped: no grouped call in cuBLASLt " << device.properties().cublaslt);
  }
}

}  // namespace precbench
