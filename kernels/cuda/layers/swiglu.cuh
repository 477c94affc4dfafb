// Shared by SwiGLU of all rows (swiglu.cu) and of expert rows (../experts/grouped_swiglu.cu): the only
// definition of values and gradients, and the passes that make their quantized copies.
#pragma once

#include "kernels/cuda/quantize/produce.cuh"

namespace precbench::cuda {

/// Like __expf and __fdividef, but flushing subnormals: no result bit changes, and it saves a third of the
/// instructions.
__device__ inline float sigmoid(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0f + exp2_approx(-x * 1.4426950408889634f)));
  return result;
}

/// Returns s, the same in forward and backward.
__device__ inline float gated(float gate, float sigma, float up) { return gate * sigma * up; }

/// Turns gate and up into their gradients, given s's.
__device__ inline void ungate(float& gate, float& up, float sigma, float ds) {
  const float dgate = ds * up * sigma * (1.0f + gate * (1.0f - sigma));
  up = ds * gate * sigma;
  gate = dgate;
}

/// Writes s from a Source.
template <class Source>
void produce_swiglu(CudaDevice& device, const Source& source, const QuantizedTensor& s,
                    const Groups* groups = nullptr) {
  void* amaxes = device.scratch(amax_scratch_bytes(device, s, groups));
  const TileOutput output = tile_output(device, s, writes_value(s), amaxes, groups);
  produce(device, source, TileOutputs<1>{{output}});
  quantize_from_value(device, s);
}

/// Writes dgate_up and s from a Source of dgate, dup and s, each F wide. `scratch`: amax_scratch_bytes of
/// both.
template <class Source>
void produce_swiglu_backward(CudaDevice& device, const Source& source, const QuantizedTensor& dgate_up,
                             const QuantizedTensor& s, std::byte* scratch, const Groups* groups = nullptr) {
  const std::int64_t F = s.value.cols;
  // Tiles of dup line up with the scopes of dgate_up's scales only if F is a multiple of a tile; otherwise
  // the values are written first and cast from memory.
  const bool aligned = F % kTile == 0;
  const TileOutput both = tile_output(device, dgate_up, false, scratch, groups);
  const TileOutput again =
      tile_output(device, s, false, scratch + amax_scratch_bytes(device, dgate_up, groups), groups);
  TileOutputs<3> outputs;
  if (aligned) outputs = {{both, both, again}};
  outputs.of[1].first_col = F;
  if (writes_value(dgate_up) || !aligned) {
    outputs.of[0].value = matrix(dgate_up.value, 0, F);
    outputs.of[1].value = matrix(dgate_up.value, F, F);
  }
  if (writes_value(s) || !aligned) outputs.of[2].value = matrix(s.value);
  produce(device, source, outputs);
  if (!aligned) {
    cast_value(device, dgate_up.value, both);
    cast_value(device, s.value, again);
  }
  quantize_from_value(device, dgate_up);
  quantize_from_value(device, s);
}

}  // namespace precbench::cuda
