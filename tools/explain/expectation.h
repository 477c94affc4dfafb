// Time that the rates of a GPU predict for an operation of a trace.
#pragma once

#include <cstdint>
#include <string>

#include "tools/explain/step_work.h"

namespace precbench {

/// Rates of one GPU model. All times are nanoseconds.
class Expectation {
 public:
  virtual ~Expectation() = default;

  /// Returns the GPU's name.
  virtual std::string gpu() const = 0;
  /// Returns true if the rates were measured on another GPU model.
  virtual bool borrowed() const = 0;
  /// Returns the time of a GEMM in a format; 0 if its shape is unknown or the rates have no such format. `wgrad`: its
  /// contraction runs over tokens.
  virtual double gemm(const GemmShape& shape, GemmFormat format, bool wgrad) const = 0;
  /// Returns the time of causal attention, forward and backward, of so many heads (of all sequences) of T tokens.
  virtual double attention(std::int64_t heads, std::int64_t T, std::int64_t head_dim) const = 0;
  /// Returns the time of a fused elementwise kernel that moves so many bytes.
  virtual double stream(double bytes) const = 0;
  /// Returns the time of a fused optimizer that moves so many bytes.
  virtual double update(double bytes) const = 0;
};

}  // namespace precbench
