// The error of a device's GEMM, next to that of a naive GEMM at the same precision on the host.
#pragma once

#include <cstdint>
#include <functional>

#include "kernels/checks/host_operand.h"
#include "kernels/device/device.h"

namespace precbench::checks {

/// A tensor core accumulator: `group` products and the running sum are truncated to `bits` fraction bits of
/// the largest of them, then added; every `promote` products (0: never) the sum moves into an FP32 register.
struct Accumulator {
  int group, bits, promote;
};
/// Hopper's FP8: 32 products per instruction, 13 fraction bits kept (DeepSeek-V3 section 3.3.2 found about 14
/// bits); promoted after 128 unless accumulation is fast. On H200 this model's error is within 15% of the
/// hardware's.
inline constexpr Accumulator kFp8Fast{32, 13, 0}, kFp8{32, 13, 128};
/// BF16 and emulated GEMMs: FP32, truncated like in tensor cores.
inline constexpr Accumulator kFp32{1, 23, 0};

double round_to(DType dtype, double x);
double naive_dot(const double* a, const double* b, std::int64_t k, const Accumulator& with);

struct Output {
  DType dtype;
  bool accumulate;
};

/// Elements of D whose error is taken: all, or random ones in each tile of 64 x 64, 4096 in all at least.
enum class Elements : std::uint8_t { all, each_tile };

struct Errors {
  /// RMS of (x - exact) / (|a row| |b row|): every element has equal weight, whatever its row's size.
  double gpu, naive;
  /// Largest error of an element over its bound: one rounding of the output (a unit in the last place), with
  /// accumulation another one of the product, plus the larger of 16 times the RMS error of the naive sum and
  /// what truncation can change this element by. Infinite for NaN.
  double worst;
};

/// Computes d = or += a b^T, in device memory.
using Product = std::function<void(const Tensor& d, const GemmOperand& a, const GemmOperand& b)>;

/// `accumulator`: of the naive GEMM; `rounded`: its operands are rounded to BF16.
Errors errors_of(Device& device, const HostOperand& a, const HostOperand& b, const Output& output,
                 const Product& product_of, const Accumulator& accumulator, bool rounded,
                 Elements elements = Elements::all);

}  // namespace precbench::checks
