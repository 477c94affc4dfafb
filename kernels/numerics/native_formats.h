// Formats that a GPU's tensor cores multiply natively, as a table over compute capabilities. Predictions of
// absent GPUs use it. A run asks cuBLASLt instead (MatmulPlans::probe), and a GPU test compares the two.
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>

#include "kernels/numerics/recipe.h"

namespace precbench {

/// Kinds of native GEMM, by how both operands are scaled.
enum class NativeFormat : std::uint8_t {
  bf16,
  fp8_tensor,  ///< FP8, one scale per tensor
  fp8_row,     ///< FP8, one scale per row on at least one side
  fp8_block,   ///< FP8, 1x128 and 128x128
  mx8,         ///< FP8, one exponent per 32 elements
  mx8_pow2,    ///< FP8, power-of-two scales rewritten as exponents per 32 elements (mx_expansion.h)
  fp4          ///< E2M1, one E4M3 scale per 16 elements
};
inline constexpr int kNativeFormats = 7;
/// Returns the name in machine files: that of the enumerator.
const char* name_of(NativeFormat format);

using NativeFormats = std::bitset<kNativeFormats>;

/// Returns what GPUs of a compute capability (ten times it, 90 for 9.0) multiply natively with cuBLASLt 12.9;
/// nothing for an unknown one.
NativeFormats native_formats(int capability);

/// Returns the kind of a GEMM's formats; null if no GPU multiplies them natively.
std::optional<NativeFormat> native_format_of(const GemmRecipe& gemm);

/// Returns true if `formats` holds the GEMM's kind, or mx8_pow2 and its scales can be rewritten.
bool is_native(const NativeFormats& formats, const GemmRecipe& gemm);

/// Returns true if every GEMM of the recipe is native.
bool is_native(const NativeFormats& formats, const Recipe& recipe);

}  // namespace precbench
