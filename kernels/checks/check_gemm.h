// Checks of a device's matmul against FP64 on its actual operands. Its error may be at most twice that of a
// naive GEMM at the same precision, and no element may be further off than its rounding explains.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/checks/finding.h"
#include "kernels/checks/naive_gemm.h"
#include "kernels/device/device.h"

namespace precbench::checks {

struct GemmShape {
  std::int64_t M, N, K;
  bool operator==(const GemmShape&) const = default;
};
inline constexpr GemmShape kGemmShape{256, 384, 640};

/// Returns the outputs that a role's GEMMs have: BF16, for wgrad also FP32, both also accumulated.
std::vector<Output> outputs_of(GemmRole role);

/// Returns the errors of matmul itself. `emulated`: the device multiplies dequantized BF16 values.
Errors errors_of_matmul(Device& device, const HostOperand& a, const HostOperand& b, const Output& output,
                        const MatmulOptions& options, bool emulated, Elements elements = Elements::all);

/// Returns true if the errors are those of rounding.
inline bool agrees(const Errors& errors) { return errors.gpu <= 2 * errors.naive && errors.worst <= 1; }

/// Judges one GEMM of a recipe, into one output, on operands quantized by the CPU device.
Finding check_gemm(Device& device, const GemmRecipe& gemm, GemmRole role, const Output& output,
                   const GemmShape& shape = kGemmShape);

/// Judges GEMMs of one shape, too large for the CPU device: the device quantizes the operands, and at least one
/// element in each tile of 64 x 64 is compared. Values are drawn once for all formats.
class LargeGemm {
 public:
  LargeGemm(Device& device, const GemmShape& shape);
  ~LargeGemm();
  Finding check(const GemmRecipe& gemm, GemmRole role, const Output& output);

 private:
  class Operand;
  Device& device_;
  GemmShape shape_;
  std::unique_ptr<Operand> a_, b_;
};

}  // namespace precbench::checks
