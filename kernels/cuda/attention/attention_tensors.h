// Operands of our attention kernels.
#pragma once

#include "kernels/device/device.h"

namespace precbench {

/// Operands as in ops::Attention; `kv` may be empty.
struct AttentionTensors {
  Tensor out, lse, qkv, kv;
};

/// Operands as in ops::AttentionBackward; `kv` and `dkv` may be empty. `workspace` has the size that the
/// kernel requires.
struct AttentionGradients {
  Tensor dqkv, dkv, dout;
  AttentionTensors forward;
  void* workspace;
};

}  // namespace precbench
