// The table of native formats. See native_formats.h.
#include "kernels/numerics/native_formats.h"

#include <algorithm>
#include <initializer_list>

#include "kernels/numerics/mx_expansion.h"

namespace precbench {
namespace {

NativeFormats set_of(std::initializer_list<NativeFormat> formats) {
  NativeFormats set;
  for (const NativeFormat format : formats) set.set(static_cast<std::size_t>(format));
  return set;
}

bool has(const NativeFormats& formats, NativeFormat format) {
  return formats[static_cast<std::size_t>(format)];
}

/// Returns the kind of one quantized operand; null if cuBLASLt has no scale mode for it.
std::optional<NativeFormat> kind_of(const QuantFormat& format) {
  if (always_emulated(format)) return std::nullopt;
  if (format.dtype == DType::e2m1)
    return format.scale == ScaleType::e4m3 ? std::optional(NativeFormat::fp4) : std::nullopt;
  const bool exponent = format.scale == ScaleType::ue8m0;
  switch (format.granularity) {
    case Granularity::tensor:
      return exponent ? std::nullopt : std::optional(NativeFormat::fp8_tensor);
    case Granularity::row:
      return exponent ? std::nullopt : std::optional(NativeFormat::fp8_row);
    case Granularity::block_1x128:
    case Granularity::block_128x128:
      return exponent ? std::nullopt : std::optional(NativeFormat::fp8_block);
    case Granularity::block_1x32:
    case Granularity::block_32x32:
      return exponent ? std::optional(NativeFormat::mx8) : std::nullopt;
    default:
      return std::nullopt;
  }
}

}  // namespace

const char* name_of(NativeFormat format) {
  static constexpr const char* kNames[] = {"bf16", "fp8_tensor", "fp8_row", "fp8_block",
                                           "mx8",  "mx8_pow2",   "fp4"};
  return kNames[static_cast<int>(format)];
}

NativeFormats native_formats(int capability) {
  using F = NativeFormat;
  const int major = capability / 10;
  if (major == 8) return capability >= 89 ? set_of({F::bf16, F::fp8_tensor}) : set_of({F::bf16});
  if (major == 9) return set_of({F::bf16, F::fp8_tensor, F::fp8_row, F::fp8_block});
  if (major == 10) return set_of({F::bf16, F::fp8_tensor, F::mx8, F::mx8_pow2, F::fp4});
  if (major == 12) return set_of({F::bf16, F::fp8_tensor, F::mx8, F::fp4});
  return {};
}

std::optional<NativeFormat> native_format_of(const GemmRecipe& gemm) {
  if (!gemm.a.quantized() && !gemm.b.quantized()) return NativeFormat::bf16;
  if (gemm.a.quantized() != gemm.b.quantized()) return std::nullopt;
  const std::optional<NativeFormat> a = kind_of(gemm.a), b = kind_of(gemm.b);
  if (!a || !b) return std::nullopt;
  if (gemm.a.dtype == DType::e5m2 && gemm.b.dtype == DType::e5m2) return std::nullopt;
  const auto wide = [](const QuantFormat& f) { return f.granularity == Granularity::block_128x128; };
  if (*a == *b) return wide(gemm.a) && wide(gemm.b) ? std::nullopt : a;
  // A scale per tensor beside scales per row is passed as a vector of equal entries.
  const auto per_row = [](NativeFormat kind) {
    return kind == NativeFormat::fp8_tensor || kind == NativeFormat::fp8_row;
  };
  return per_row(*a) && per_row(*b) ? std::optional(NativeFormat::fp8_row) : std::nullopt;
}

bool is_native(const NativeFormats& formats, const GemmRecipe& gemm) {
  if (const auto kind = native_format_of(gemm); kind && has(formats, *kind)) return true;
  return has(formats, NativeFormat::mx8_pow2) && expands_to_mx(gemm.a) && expands_to_mx(gemm.b);
}

bool is_native(const NativeFormats& formats, const Recipe& recipe) {
  return std::all_of(std::begin(kGemmRoles), std::end(kGemmRoles),
                     [&](GemmRole role) { return is_native(formats, recipe.gemm(role)); });
}

}  // namespace precbench
