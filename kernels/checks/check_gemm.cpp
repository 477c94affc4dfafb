// GEMM checks. See check_gemm.h.
#include "kernels/checks/check_gemm.h"

#include <fmt/format.h>

#include "kernels/device/buffers.h"
#include "kernels/device/native_path.h"
#include "kernels/numerics/without_draws.h"

namespace precbench::checks {
namespace {

Finding finding_of(const GemmRecipe& gemm, GemmRole role, const Output& output, const GemmShape& shape,
                   const Errors& errors) {
  return {gemm_path(gemm, role),
          fmt::format("{} x {} x {} into {}{}", shape.M, shape.N, shape.K, name_of(output.dtype),
                      output.accumulate ? ", accumulated" : ""),
          fmt::format("error {:.2e}, bound {:.2e}; worst element {:.2f} of its bound", errors.gpu,
                      2 * errors.naive, errors.worst),
          agrees(errors)};
}

}  // namespace

std::vector<Output> outputs_of(GemmRole role) {
  if (role != GemmRole::wgrad) return {{DType::bf16, false}};
  return {{DType::f32, false}, {DType::f32, true}, {DType::bf16, false}, {DType::bf16, true}};
}

Errors errors_of_matmul(Device& device, const HostOperand& a, const HostOperand& b, const Output& output,
                        const MatmulOptions& options, bool emulated, Elements elements) {
  // FP4 products are exact in fewer bits than the FP8 accumulator keeps. FP32 accumulation is assumed, not
  // measured.
  const bool fp8 = a.view.format.quantized() && b.view.format.quantized() && !emulated &&
                   a.view.format.dtype != DType::e2m1;
  const Accumulator& fp8_sum = options.fast_accum ? kFp8Fast : kFp8;
  // An emulated GEMM rounds FP32-scaled values to BF16 first.
  return errors_of(
      device, a, b, output,
      [&](const Tensor& d, const GemmOperand& of_a, const GemmOperand& of_b) {
        device.matmul({d, of_a, of_b, options});
      },
      fp8 ? fp8_sum : kFp32, emulated, elements);
}

Finding check_gemm(Device& device, const GemmRecipe& recipe, GemmRole role, const Output& output,
                   const GemmShape& shape) {
  const GemmRecipe gemm = without_draws(recipe);
  const HostOperand a = make_quantized_tensor(gemm.a, shape.M, shape.K, false, 1),
                    b = make_quantized_tensor(gemm.b, shape.N, shape.K, false, 2);
  const bool emulated = device.support(gemm, role).execution == Execution::emulated;
  const Errors errors = errors_of_matmul(
      device, a, b, output, {.role = role, .fast_accum = gemm.fast_accum, .accumulate = output.accumulate},
      emulated);
  return finding_of(gemm, role, output, shape, errors);
}

/// Values of one side, on the device, and its copy in the format asked for last.
class LargeGemm::Operand {
 public:
  Operand(Device& device, std::int64_t rows, std::int64_t k, unsigned seed)
      : device_(device), buffers_(device) {
    host_.rows = rows, host_.k = k;
    host_.bf16.resize(static_cast<std::size_t>(rows * k));
    fill_operand(host_.bf16.data(), rows, k, false, seed);
    value_ = buffers_.copy_of(Tensor{host_.bf16.data(), DType::bf16, rows, k});
  }

  const HostOperand& in(const QuantFormat& format) {
    if (!host_.view.empty() && host_.view.format == format) return host_;
    host_.view = {format, {host_.bf16.data(), DType::bf16, host_.rows, host_.k}, {}, false};
    if (!format.quantized()) return host_;
    Buffers buffers(device_);
    QuantizedTensor x{.value = value_, .rowwise = buffers.quantized_copy(format, host_.rows, host_.k)};
    if (format.granularity == Granularity::tensor) x.amax_out = buffers.tensor(DType::f32, 1, 1);
    device_.quantize({x});
    host_.data.resize(static_cast<std::size_t>(x.rowwise.data.bytes()));
    host_.scales.resize(static_cast<std::size_t>(x.rowwise.scale.bytes()));
    device_.download(host_.data.data(), x.rowwise.data);
    device_.download(host_.scales.data(), x.rowwise.scale);
    host_.view.data = {host_.data.data(), format.dtype, host_.rows, host_.k};
    host_.view.scale = {host_.scales.data(), scale_dtype(format), 1, x.rowwise.scale.size()};
    if (!x.rowwise.amax.empty()) {
      device_.download(host_.amax.data(), x.rowwise.amax);
      host_.view.amax = {host_.amax.data(), DType::f32, 1, 1};
    }
    return host_;
  }

 private:
  Device& device_;
  Buffers buffers_;
  HostOperand host_;
  Tensor value_;
};

LargeGemm::LargeGemm(Device& device, const GemmShape& shape)
    : device_(device),
      shape_(shape),
      a_(std::make_unique<Operand>(device, shape.M, shape.K, 3)),
      b_(std::make_unique<Operand>(device, shape.N, shape.K, 4)) {}

LargeGemm::~LargeGemm() = default;

Finding LargeGemm::check(const GemmRecipe& recipe, GemmRole role, const Output& output) {
  const GemmRecipe gemm = without_draws(recipe);
  const bool emulated = device_.support(gemm, role).execution == Execution::emulated;
  const std::string shapes = device_.emulated_shapes(role);
  const Errors errors =
      errors_of_matmul(device_, a_->in(gemm.a), b_->in(gemm.b), output,
                       {.role = role, .fast_accum = gemm.fast_accum, .accumulate = output.accumulate},
                       emulated, Elements::each_tile);
  Finding finding = finding_of(gemm, role, output, shape_, errors);
  // A shape without a kernel is multiplied in BF16, with that rounding: nothing native was judged.
  if (device_.emulated_shapes(role) != shapes) {
    finding.measured = "no native kernel for this shape";
    finding.agrees = true;
  }
  return finding;
}

}  // namespace precbench::checks
