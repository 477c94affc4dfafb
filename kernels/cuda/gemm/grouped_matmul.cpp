// grouped_matmul on CUDA: all experts at once with our kernels (grouped.h) or cuBLASLt's grouped call
// (grouped_plans.h), else one by one (grouped_loop.cpp): such a step cannot be captured.
//
// Formats that this GPU only emulates are first converted to BF16, whole operands at once, if a grouped GEMM
// supports that.
#include <fmt/format.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "kernels/base/errors.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/gemm/grouped.h"
#include "kernels/cuda/gemm/grouped_plans.h"
#include "kernels/cuda/gemm/matmul_kernels.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench {
namespace {

std::int64_t dequantized_bytes(const ops::GroupedMatmul& op) {
  return MatmulPlans::dequantized_bytes(op.a) + MatmulPlans::dequantized_bytes(op.b);
}

/// Returns the op on dequantized values, rounded to BF16 at `next` (matmul.cpp); none if the formats are
/// native.
std::optional<ops::GroupedMatmul> in_bf16(const CudaDevice& device, const ops::GroupedMatmul& op,
                                          std::byte* next) {
  if (op.a.format.dtype == DType::e2m1 || op.b.format.dtype == DType::e2m1)
    return std::nullopt;  // has additional factors
  const GemmRecipe gemm{op.a.format, op.b.format, op.options.fast_accum};
  if (device.support(gemm, op.options.role).execution != Execution::emulated) return std::nullopt;
  ops::GroupedMatmul plain = op;
  for (const auto member : {&ops::GroupedMatmul::a, &ops::GroupedMatmul::b}) {
    const GemmOperand& operand = op.*member;
    if (!operand.format.quantized()) continue;
    plain.*member = {.format = {}, .data = {next, DType::bf16, operand.rows(), operand.k()}, .scale = {}};
    next += MatmulPlans::dequantized_bytes(operand);
  }
  return plain;
}

}  // namespace

void CudaDevice::set_grouped(const std::string& which) {
  if (which != "own" && which != "cublaslt" && which != "loop")
    throw InvalidInput(fmt::format("\"{}\" is neither own nor cublaslt nor loop", which));
  grouped_own_ = which == "own";
  grouped_cublaslt_ = which != "loop";
}

std::string CudaDevice::grouped_name() const {
  std::string names;
  const auto add = [&](bool ran, const char* name) {
    if (ran) names += (names.empty() ? "" : ", ") + std::string(name);
  };
  add(ran_own_, "own");
  add(ran_cublaslt_, "cublaslt");
  add(waited_for_host_, "loop");
  return names;
}

CudaDevice::AtOnce CudaDevice::at_once(const ops::GroupedMatmul& op) const {
  const bool quantized = op.a.format.quantized() || op.b.format.quantized();
  if (quantized &&
      !demoted_reason(demoted_, {op.a.format, op.b.format, op.options.fast_accum}, op.options.role).empty())
    return AtOnce::none;
  if (grouped_own_ && takes_grouped(op, compute_capability())) return AtOnce::own;
  return grouped_cublaslt_ && grouped_plans_->takes(op) ? AtOnce::cublaslt : AtOnce::none;
}

std::int64_t CudaDevice::scratch_at_once(const ops::GroupedMatmul& op) const {
  return at_once(op) == AtOnce::cublaslt ? grouped_plans_->scratch_bytes(op) : 0;
}

ScratchSizes CudaDevice::scratch_of(const ops::GroupedMatmul& op) const {
  std::int64_t bytes = scratch_at_once(op);
  if (at_once(op) == AtOnce::none)
    if (const auto plain = in_bf16(*this, op, nullptr); plain && at_once(*plain) != AtOnce::none)
      bytes = scratch_at_once(*plain) + dequantized_bytes(op);
  return {bytes / std::int64_t{sizeof(float)}};
}

bool CudaDevice::multiply_at_once(const ops::GroupedMatmul& op) {
  switch (at_once(op)) {
    case AtOnce::own: {
      const bool ran = launch_grouped(op, compute_capability(), stream());
      ran_own_ |= ran;
      return ran;
    }
    case AtOnce::cublaslt: {
      const bool ran = grouped_plans_->run(op);
      ran_cublaslt_ |= ran;
      return ran;
    }
    default:
      return false;
  }
}

namespace {

/// Dequantizes an operand of grouped GEMMs, all at once unless the scales are those of one expert after another.
void dequantize_operand(void* out, const GemmOperand& operand, const ops::GroupedMatmul& op,
                        cudaStream_t stream) {
  const std::int64_t experts = op.groups.experts(), rows = operand.rows() / experts;
  const Granularity g = operand.format.granularity;
  const bool stacked = &operand == &op.b && op.options.role != GemmRole::wgrad;
  if (!stacked || !scales_by_expert(g) || (g == Granularity::block_128x128 && rows % 128 == 0))
    return launch_dequantize(out, operand, stream);
  for (std::int64_t e = 0; e < experts; ++e)
    launch_dequantize(static_cast<std::byte*>(out) + bytes_of(DType::bf16, e * rows * operand.k()),
                      part_of_expert(operand, e, experts), stream);
}

}  // namespace

/// Rows after the last group are converted too, but not read.
bool CudaDevice::multiply_dequantized(const ops::GroupedMatmul& op) {
  const auto planned = in_bf16(*this, op, nullptr);
  if (!planned || at_once(*planned) == AtOnce::none) return false;
  // After the library's own part of the scratch.
  const std::int64_t before = scratch_at_once(*planned);
  auto* next =
      static_cast<std::byte*>(scratch(static_cast<std::size_t>(before + dequantized_bytes(op)))) + before;
  const ops::GroupedMatmul plain = *in_bf16(*this, op, next);
  if (op.a.format.quantized()) dequantize_operand(plain.a.data.data, op.a, op, stream());
  if (op.b.format.quantized()) dequantize_operand(plain.b.data.data, op.b, op, stream());
  return multiply_at_once(plain);
}

void CudaDevice::do_grouped_matmul(const ops::GroupedMatmul& op) {
  if (!multiply_at_once(op) && !multiply_dequantized(op)) {
    if (capturing_) throw std::logic_error("experts' rows are counted on the host: no captured step can be");
    waited_for_host_ = true;
    plans_->matmul_of_experts(op);
  }
  launched("grouped_matmul");
}

}  // namespace precbench
