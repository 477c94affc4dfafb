// Our own attention on tensor cores, for builds without cuDNN and shapes that it does not support: flash
// attention (Dao 2023, arXiv:2307.08691) in plain CUDA for compute capability 8.0 and newer. Contracts of
// ops::Attention and ops::AttentionBackward. Every sum has a fixed order, so results are the same in every
// run.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/cuda/attention/attention_tensors.h"

struct CUstream_st;

namespace precbench {

/// Caps of scores that our kernels support, Hopper's too. At the largest a probability's error is a quarter of BF16's rounding
/// (softcap.cuh). The smallest keeps exponents finite.
inline constexpr float kLargestSoftcap = 1024, kSmallestSoftcap = 0x1p-10f;

/// Returns why these kernels do not support a shape on the current GPU, in one line; empty: they do. head_dim is a multiple
/// of 8 up to 256, beyond 128 on GPUs whose blocks may have 137 KiB of shared memory (compute capability 8.0, 9.0, 10.0).
std::string flash_attention_refusal(const AttentionShape& shape);

void flash_attention(const AttentionTensors& tensors, const AttentionShape& shape, CUstream_st* stream,
                     const DocumentMask& documents = {});

/// Returns the workspace bytes of backward: one FP32 per row and head.
std::int64_t flash_attention_workspace(const AttentionShape& shape);

void flash_attention_backward(const AttentionGradients& gradients, const AttentionShape& shape,
                              CUstream_st* stream, const DocumentMask& documents = {});

}  // namespace precbench
