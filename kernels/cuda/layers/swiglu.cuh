// What SwiGLU of all rows (swiglu.cu) and of experts' rows (../experts/grouped_swiglu.cu) share: the one definition of its
// values and gradients, and the passes that make their forms.
#pragma once

#include "kernels/cuda/quantize/produce.cuh"

namespace precbench::cuda {

__device__ inline float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

/// s, the same forward and backward.
__device__ inline float gated(float gate, float sigma, float up) { return gate * sigma * up; }

/// Of gate and up to their gradients, from s's.
__device__ inline void ungate(float& gate, float& up, float sigma, float ds) {
  const float dgate = ds * up * sigma * (1.0f + gate * (1.0f - sigma));
  up = ds * gate * sigma;
  gate = dgate;
}

/// Makes s of a Source of it.
template <class Source>
void produce_swiglu(CudaDevice& device, const Source& source, const QuantizedTensor& s,
                    const Groups* groups = nullptr) {
  void* amaxes = device.scratch(amax_scratch_bytes(device, s, groups));
  const TileOutput output = tile_output(device, s, writes_value(s), amaxes, groups);
  produce(device, source, TileOutputs<1>{{output}});
  quantize_from_value(device, s);
}

/// Makes dgate_up and s of a Source of dgate, dup and s, each F wide. `scratch`: amax_scratch_bytes of both.
template <class Source>
void produce_swiglu_backward(CudaDevice& device, const Source& source, const QuantizedTensor& dgate_up,
                             const QuantizedTensor& s, std::byte* scratch, const Groups* groups = nullptr) {
  const std::int64_t F = s.value.cols;
  // Tiles of dup line up with the scopes of dgate_up's scales only if F is a multiple of a tile; elsewhere
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
