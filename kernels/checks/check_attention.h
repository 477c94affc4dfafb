// Checks of a device's attention against its definition in FP64: its error may be at most twice that of a plain
// BF16 program, and no element may be further off than 16 times that.
#pragma once

#include "kernels/checks/attention_problem.h"
#include "kernels/checks/finding.h"

namespace precbench::checks {

/// An output of attention: columns [first, first + count) of rows of `width`.
struct AttentionPart {
  const char* name;
  std::vector<double> AttentionResult::*values;
  std::int64_t width, first, count;

  /// Return the RMS and the largest difference; infinite for NaN.
  double distance(const AttentionResult& x, const AttentionResult& truth) const;
  double largest(const AttentionResult& x, const AttentionResult& truth) const;
};
std::vector<AttentionPart> parts_of(const AttentionShape& shape);

/// Judges out, dq, dk, dv and lse of `got`. `path` and `what` begin the findings.
Findings judge_attention(const AttentionShape& shape, const AttentionResult& got,
                         const AttentionResult& truth, const AttentionResult& naive, const std::string& path,
                         const std::string& what);

/// Runs forward and backward on a device and judges them; the path is that of the device's implementation.
Findings check_attention(Device& device, const AttentionShape& shape, float deviation = 1.5f);

}  // namespace precbench::checks
