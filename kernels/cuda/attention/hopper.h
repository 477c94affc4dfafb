// Attention with Hopper instructions (compute capability 9.0), head widths 64, 128 and 256: the interface for the choice among
// implementations (attention.cpp). On other GPUs, and in a build without these kernels, there are none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/attention/attention_tensors.h"

struct CUstream_st;

namespace precbench {

struct HopperForward {
  const char* name;  ///< for the record: "own 128x128", queries and keys of a tile
  std::int64_t head_dim;
  bool softcap;  ///< for soft-capped scores, and only these
  void (*launch)(const AttentionTensors& tensors, const AttentionShape& shape, CUstream_st* stream);
};

struct HopperBackward {
  const char* name;
  std::int64_t head_dim;
  bool softcap;
  bool deterministic;  ///< every sum has one writer and a fixed order: equal bits in every run
  std::int64_t (*workspace_bytes)(const AttentionShape& shape);
  void (*launch)(const AttentionGradients& gradients, const AttentionShape& shape, CUstream_st* stream);
};

/// Return the kernels that support the shape on a GPU of this compute capability (90 is 9.0). All support
/// separate keys and values, offsets, and any number of keys. Those for soft-capped scores also support a window, over as
/// many keys as queries. A launch throws std::runtime_error if CUDA rejects it.
std::vector<const HopperForward*> hopper_forward_kernels(const AttentionShape& shape, int compute_capability);
std::vector<const HopperBackward*> hopper_backward_kernels(const AttentionShape& shape,
                                                           int compute_capability);

/// Return the best of these for the shape; null if there is none.
const HopperForward* hopper_forward(const AttentionShape& shape, int compute_capability);
const HopperBackward* hopper_backward(const AttentionShape& shape, int compute_capability,
                                      bool deterministic);
/// Returns true if it is faster than cuDNN 9.14's, as measured by attention_bench on an H200; forward is at
/// every shape. At head width 128 and with more than 4,096 keys it is 1.5% faster only while the GPU is at its power limit, and
/// slower otherwise. Width 256 was measured at the power limit alone, where ours is 10% to 40% faster.
bool hopper_backward_is_faster(const AttentionShape& shape, bool deterministic);

/// Return every kernel of this build (hopper_*_sm90a.cu).
std::span<const HopperForward> all_hopper_forward_kernels();
std::span<const HopperBackward> all_hopper_backward_kernels();

}  // namespace precbench
