// Attention for Hopper (compute capability 9.0) with its own instructions, head widths 64 and 128; as the choice among
// implementations (attention.cpp) sees it. On any other GPU, and in a build without these kernels, there are none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device/device.h"

struct CUstream_st;

namespace precbench {

/// Operands as in ops::Attention; `kv` may be empty.
struct AttentionTensors {
  Tensor out, lse, qkv, kv;
};

/// Operands as in ops::AttentionBackward; `kv` and `dkv` may be empty. `workspace` is as long as the kernel wants.
struct AttentionGradients {
  Tensor dqkv, dkv, dout;
  AttentionTensors forward;
  void* workspace;
};

struct HopperForward {
  const char* name;  ///< for the record: "own 128x128", queries and keys of a tile
  std::int64_t head_dim;
  void (*launch)(const AttentionTensors& tensors, const AttentionShape& shape, CUstream_st* stream);
};

struct HopperBackward {
  const char* name;
  std::int64_t head_dim;
  bool deterministic;  ///< every sum has one writer and a fixed order: the same bits from run to run
  std::int64_t (*workspace_bytes)(const AttentionShape& shape);
  void (*launch)(const AttentionGradients& gradients, const AttentionShape& shape, CUstream_st* stream);
};

/// Those that take the shape on a GPU of this compute capability (90 is 9.0). All take keys and values in rows of their
/// own, offsets, and as many keys as there are. The launch throws std::runtime_error where CUDA refuses it.
std::vector<const HopperForward*> hopper_forward_kernels(const AttentionShape& shape, int compute_capability);
std::vector<const HopperBackward*> hopper_backward_kernels(const AttentionShape& shape,
                                                           int compute_capability);

/// The one of these that is best at the shape; null where there is none.
const HopperForward* hopper_forward(const AttentionShape& shape, int compute_capability);
const HopperBackward* hopper_backward(const AttentionShape& shape, int compute_capability,
                                      bool deterministic);
/// Whether it is faster than cuDNN 9.14's, as attention_bench found on an H200; the forward pass is at every shape. Of more
/// keys it is by 1.5% while the GPU is at its power limit, and slower while it is not.
bool hopper_backward_is_faster(const AttentionShape& shape, bool deterministic);

/// Every kernel of this build (hopper_*_sm90a.cu).
std::span<const HopperForward> all_hopper_forward_kernels();
std::span<const HopperBackward> all_hopper_backward_kernels();

}  // namespace precbench
