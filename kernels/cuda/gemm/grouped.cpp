// Selects among our grouped GEMM kernels. See grouped.h.
#include "kernels/cuda/gemm/grouped.h"

#include <cstdint>
#include <limits>
#include <optional>

#include "kernels/cuda/gemm/grouped_kernels.h"
#include "kernels/cuda/hopper/tensor_map.h"

namespace precbench {

#ifndef PRECBENCH_HAS_SM90A
std::span<const GroupedKernel> hopper_plain_grouped_kernels() { return {}; }
std::span<const GroupedKernel> hopper_blockwise_grouped_kernels() { return {}; }
#endif

namespace {

bool of_rows_or_tensor(const QuantFormat& format) {
  return format.granularity == Granularity::row || format.granularity == Granularity::tensor;
}

std::optional<GroupedScales> scales_of(const QuantFormat& a, const QuantFormat& b) {
  if (!a.quantized() && !b.quantized()) return GroupedScales::none;
  if (!a.quantized() || !b.quantized() || scale_dtype(a) != DType::f32 || scale_dtype(b) != DType::f32)
    return std::nullopt;
  if (of_rows_or_tensor(a) && of_rows_or_tensor(b)) return GroupedScales::row_or_tensor;
  if (a.granularity != Granularity::block_1x128) return std::nullopt;
  if (b.granularity == Granularity::block_128x128) return GroupedScales::block_128x128;
  return b.granularity == Granularity::block_1x128 ? std::optional(GroupedScales::block_1x128) : std::nullopt;
}

GroupedGemm gemm_of(const ops::GroupedMatmul& op) {
  const bool over_k = op.options.role == GemmRole::wgrad;
  return {.over_k = over_k,
          .groups = op.groups.experts(),
          .capacity = op.groups.rows_capacity(),
          .rows = over_k ? op.d.rows / op.groups.experts() : 0,
          .columns = op.d.cols,
          .depth = over_k ? 0 : op.a.k()};
}

/// Returns true if TMA supports the matrix: rows of whole 16 bytes, and 32-bit coordinates.
bool copied(const Tensor& matrix) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / 2;
  return reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0 &&
         bytes_of(matrix.dtype, matrix.cols) % 16 == 0 && matrix.rows <= kMost && matrix.cols <= kMost;
}

/// Returns true if tiles end with their group: at multiples of 64 rows of D, and of 64 of k if a stack is MN-major.
bool divides(const GroupedGemm& gemm, bool b_mn_major) {
  if (gemm.over_k) return gemm.rows % 64 == 0;
  return !b_mn_major || gemm.depth % 64 == 0;
}

/// Returns null if no kernel supports the op.
const GroupedKernel* kernel_for(const ops::GroupedMatmul& op, int compute_capability) {
  // wgmma exists only on Hopper: later generations have other instructions.
  if (compute_capability != 90 || !hopper::has_tensor_maps() || op.groups.pad % kGroupedPad != 0)
    return nullptr;
  const std::optional<GroupedScales> scales = scales_of(op.a.format, op.b.format);
  const GroupedGemm gemm = gemm_of(op);
  if (!scales || !copied(op.a.data) || !copied(op.b.data) || !copied(op.d) || !divides(gemm, op.b.transposed))
    return nullptr;
  for (const auto kernels : {hopper_plain_grouped_kernels(), hopper_blockwise_grouped_kernels()})
    for (const GroupedKernel& kernel : kernels)
      if (kernel.a == op.a.data.dtype && kernel.b == op.b.data.dtype && kernel.d == op.d.dtype &&
          kernel.scales == scales && kernel.a_mn_major == op.a.transposed &&
          kernel.b_mn_major == op.b.transposed && (gemm.over_k ? kernel.over_k : kernel.over_rows) &&
          kernel.accumulate == op.options.accumulate &&
          (scales != GroupedScales::row_or_tensor || kernel.fast == op.options.fast_accum))
        return &kernel;
  return nullptr;
}

}  // namespace

bool takes_grouped(const ops::GroupedMatmul& op, int compute_capability) {
  return kernel_for(op, compute_capability) != nullptr;
}

bool launch_grouped(const ops::GroupedMatmul& op, int compute_capability, cudaStream_t stream) {
  const GroupedKernel* kernel = kernel_for(op, compute_capability);
  if (!kernel) return false;
  kernel->launch(gemm_of(op),
                 {.a = op.a.data.data,
                  .b = op.b.data.data,
                  .a_scale = op.a.scale.as<float>(),
                  .b_scale = op.b.scale.as<float>(),
                  .a_scale_rows = op.a.format.granularity == Granularity::row,
                  .b_scale_rows = op.b.format.granularity == Granularity::row,
                  .d = op.d.data,
                  .offsets = op.groups.offsets.as<std::int32_t>(),
                  .counts = op.groups.counts.as<std::int32_t>()},
                 stream);
  return true;
}

}  // namespace precbench
