// Expert GEMMs one by one with the plans of matmul.cpp, for which the host must know the rows of each expert.
//
// An expert's operand is a part of the whole one. If its scales, or the columns of a copy stored along the
// tokens, are not contiguous there, they are gathered first.
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/gemm/matmul_plans.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench {
namespace {

// Rows and columns at whose multiples parts of every scale layout begin.
constexpr std::int64_t kScaleTile = 128;

/// Rows [row, row + rows) and columns [first, first + k) of a copy.
struct Part {
  std::int64_t row, rows, first, k;
};

/// Gathers parts of quantized copies, each into its own buffer.
class PartCopier {
 public:
  PartCopier(std::byte* scratch, cudaStream_t stream) : scratch_(scratch), stream_(stream) {}

  GemmOperand part(const GemmOperand& operand, const Part& part) {
    GemmOperand result = operand;
    const Tensor& data = operand.data;
    if (operand.transposed)
      result.data = data.slice_rows(part.first, part.k);
    else if (part.k == data.cols)
      result.data = data.slice_rows(part.row, part.rows);
    else
      result.data = together(data, data.cols, part.row * data.cols + part.first, part.k, part.rows)
                        .reshape(part.rows, part.k);
    if (operand.format.quantized()) result.scale = scales(operand, part);
    return result;
  }

 private:
  /// Gathers `count` pieces of `length` elements that are `pitch` apart.
  Tensor together(const Tensor& from, std::int64_t pitch, std::int64_t first, std::int64_t length,
                  std::int64_t count) {
    const std::int64_t bytes = bytes_of(from.dtype, length);
    const Tensor to{scratch_, from.dtype, 1, length * count};
    PRECBENCH_CHECK(cudaMemcpy2DAsync(to.data, bytes, from.as<std::byte>() + bytes_of(from.dtype, first),
                                      bytes_of(from.dtype, pitch), bytes, count, cudaMemcpyDeviceToDevice,
                                      stream_));
    scratch_ += detail::padded(bytes * count, MatmulPlans::kAlignment);
    return to;
  }

  Tensor scales(const GemmOperand& operand, const Part& part) {
    const Granularity g = operand.format.granularity;
    const std::int64_t rows = operand.data.rows, k = operand.data.cols;
    const bool whole_k = part.k == k;
    const bool in_blocks = block_length(g) > 0, in_tiles = in_blocks && g != Granularity::block_1x128;
    if ((in_tiles && part.row % kScaleTile != 0) || (in_blocks && part.first % kScaleTile != 0) ||
        (in_blocks && part.rows != rows && part.k != k))
      throw Unsupported(
          "the CUDA device multiplies groups and experts of multiples of 128 rows in this recipe");
    switch (g) {
      case Granularity::tensor:  // cuBLASLt needs 16-byte alignment, but experts' scales are 4 bytes apart
        return together(operand.scale, 1, 0, 1, 1);
      case Granularity::row:
        return operand.scale.elements(part.row, part.rows);
      case Granularity::block_1x128: {
        const std::int64_t pitch = detail::padded(rows, 4);
        if (part.rows == rows)
          return operand.scale.elements(part.first / 128 * pitch, scale_blocks(g, part.k) * pitch);
        return together(operand.scale, pitch, part.row, part.rows, scale_blocks(g, k));
      }
      case Granularity::block_128x128: {
        const std::int64_t pitch = detail::padded(scale_blocks(g, k), 4);
        if (whole_k)
          return operand.scale.elements(part.row / 128 * pitch, detail::blocks_of(part.rows, 128) * pitch);
        break;
      }
      case Granularity::block_1x32: {  // tiles of 128 rows and four blocks
        const std::int64_t pitch = detail::padded(scale_blocks(g, k), 4) * 128;
        if (whole_k)
          return operand.scale.elements(part.row / 128 * pitch, detail::blocks_of(part.rows, 128) * pitch);
        return together(operand.scale, pitch, part.first * 4, part.k * 4, detail::blocks_of(rows, 128));
      }
      default:
        break;
    }
    throw Unsupported(
        fmt::format("the CUDA device does not multiply experts in {}", describe(operand.format)));
  }

  std::byte* scratch_;
  cudaStream_t stream_;
};

/// Returns the bytes of a part of that many elements, in BF16 or FP8, with its scales.
std::int64_t bytes_of(const GemmOperand& operand, std::int64_t elements) {
  return 2 * elements + operand.scale.bytes() + 2 * MatmulPlans::kAlignment;
}

/// Handles scales per column within each expert.
GemmOperand scaled_by_column(GemmOperand operand, std::int64_t expert) {
  if (operand.format.quantized() && operand.format.granularity == Granularity::row)
    operand.scale = operand.scale.elements(expert * operand.data.rows, operand.data.rows);
  return operand;
}

}  // namespace

void MatmulPlans::matmul_of_experts(const ops::GroupedMatmul& op) {
  const Groups& groups = op.groups;
  const std::int64_t experts = groups.experts();
  std::vector<std::int32_t> offsets(experts + 1);
  device_.download(offsets.data(), groups.offsets);
  std::int64_t most = 0;
  for (std::int64_t e = 0; e < experts; ++e) most = std::max<std::int64_t>(most, offsets[e + 1] - offsets[e]);

  const bool wgrad = op.options.role == GemmRole::wgrad;
  const std::int64_t b_rows = op.d.cols, k = wgrad ? most : op.a.k();
  const std::int64_t copied =
      bytes_of(op.a, (wgrad ? op.d.rows / experts : most) * k) + bytes_of(op.b, b_rows * k);
  // After matmul's own use of the scratch beyond the workspace.
  const std::int64_t of_matmul = copied + 4 * kAlignment + std::int64_t{sizeof(float)} * (b_rows + most);
  std::byte* const copies = behind_workspace(2 * of_matmul) + detail::padded(of_matmul, kAlignment);
  const bool timed = std::exchange(autotune_, false);
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int64_t first = offsets[e], rows = offsets[e + 1] - first;
    const Tensor d =
        wgrad ? op.d.slice_rows(e * op.d.rows / experts, op.d.rows / experts) : op.d.slice_rows(first, rows);
    if (rows == 0) {
      if (wgrad && !op.options.accumulate)
        PRECBENCH_CHECK(cudaMemsetAsync(d.data, 0, d.bytes(), device_.stream()));
      continue;
    }
    PartCopier copier(copies, device_.stream());
    const bool apart = !wgrad && op.b.format.quantized() && scales_by_expert(op.b.format.granularity);
    const GemmOperand whole_a = scaled_by_column(op.a, wgrad ? e : 0);
    const GemmOperand whole_b = apart   ? part_of_expert(op.b, e, experts)
                                : wgrad ? scaled_by_column(op.b, e)
                                        : op.b;
    const Part of_a = wgrad ? Part{0, d.rows, first, rows} : Part{first, rows, 0, k};
    const Part of_b = wgrad             ? Part{0, b_rows, first, rows}
                      : apart           ? Part{0, b_rows, 0, k}
                      : op.b.transposed ? Part{0, b_rows, e * k, k}
                                        : Part{e * b_rows, b_rows, 0, k};
    matmul(d, copier.part(whole_a, of_a), copier.part(whole_b, of_b), op.options);
  }
  autotune_ = timed;
}

}  // namespace precbench
