// Rule by which attention's backward kernel is selected on Hopper (kernels/cuda/attention), for predictions too, which
// are made without a GPU.
#pragma once

#include <cstdint>

namespace precbench::cuda {

/// Returns true if precbench's Hopper backward is taken although cuDNN has one. Measured on an H200 against cuDNN 9.14: at head
/// width 128 and with more than 4,096 keys cuDNN's is faster unless the GPU is at its power limit.
inline bool hopper_backward_is_faster(std::int64_t keys, std::int64_t head_dim, bool deterministic) {
  return deterministic || keys <= 4096 || head_dim != 128;
}

}  // namespace precbench::cuda
