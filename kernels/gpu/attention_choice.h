// Rules by which attention's kernels are selected (kernels/cuda/attention), for predictions too, which are made without a GPU.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/device/operands.h"

namespace precbench::cuda {

/// Returns true if precbench's Hopper backward is taken although cuDNN has one. Measured on an H200 against cuDNN 9.14: at head
/// width 128 and with more than 4,096 keys cuDNN's is faster unless the GPU is at its power limit.
inline bool hopper_backward_is_faster(std::int64_t keys, std::int64_t head_dim, bool deterministic) {
  return deterministic || keys <= 4096 || head_dim != 128;
}

/// How a graph of cuDNN says which keys a query sees: `keys` of a sequence take part. Causal: query t sees keys up to its own.
/// At the end: the last query sees all, one before it a key less.
struct CudnnMask {
  enum class Kind { causal, causal_at_end, all } kind;
  std::int64_t keys;
};

/// Returns the mask of a shape without soft-capped scores; null if no graph of ours has it.
constexpr std::optional<CudnnMask> cudnn_mask(const AttentionShape& s) {
  using Kind = CudnnMask::Kind;
  if (s.softcap != 0 || s.offset < 0 || (s.window != 0 && !s.square())) return std::nullopt;
  if (s.offset == 0 && s.T <= s.keys()) return CudnnMask{Kind::causal, s.T};
  if (s.offset + 1 >= s.keys()) return CudnnMask{Kind::all, s.keys()};
  if (s.offset + s.T <= s.keys()) return CudnnMask{Kind::causal_at_end, s.offset + s.T};
  return std::nullopt;
}

}  // namespace precbench::cuda
