// cuDNN's fused attention behind an interface without cuDNN types, so that attention.cpp is the same in a
// build without it. One object per device; graphs are built once per shape and kept. An unsupported shape is
// a return value here, not an error: attention.cpp then uses our own kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/device/device.h"
#include "kernels/gpu/attention_choice.h"

struct CUstream_st;

namespace precbench {

class CudnnAttention {
 public:
  /// Returns null if this build has no cuDNN, or the library does not work on this device; `reason` is then
  /// one line.
  static std::unique_ptr<CudnnAttention> open(CUstream_st* stream, std::string& reason);

  virtual ~CudnnAttention() = default;
  virtual std::string version() const = 0;  ///< "9.14"

  struct Plan {
    std::string refusal;               ///< why cuDNN does not support this shape; empty: it does
    std::int64_t workspace_bytes = 0;  ///< of one call, 256-byte aligned
  };
  /// Builds a plan at the first call with a shape that cudnn_mask() has; that call must not be under stream capture.
  /// `own_rows`: keys are in rows of their own.
  virtual const Plan& forward_plan(const AttentionShape& shape, bool own_rows) = 0;
  /// `deterministic`: additions into dQ in a fixed order. On compute capability 9.0, cuDNN before 9.25 needs
  /// a workspace of 2 B H T^2 bytes for it (cudnn-frontend, sdpa_backward).
  virtual const Plan& backward_plan(const AttentionShape& shape, bool own_rows, bool deterministic) = 0;

  /// Contracts of ops::Attention and ops::AttentionBackward; the plan must not be a refusal.
  virtual void forward(const ops::Attention& op, void* workspace) = 0;
  virtual void backward(const ops::AttentionBackward& op, bool deterministic, void* workspace) = 0;
};

}  // namespace precbench
